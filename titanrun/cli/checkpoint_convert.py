"""`titanrun checkpoint export` and `import`: validate a request, run it with torch.

A separate process with torch does the work.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.next_command import print_choices, print_next
from titanrun.cli.run_argument import find_checkpoint
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    is_storage_path,
    parse_storage_path,
)
from titanrun.components.converters.quantization_config import (
    DEFAULT_GROUP_SIZE,
    GROUP_SIZES,
    GROUPED_SCHEMES,
    SCHEMES,
)
from titanrun.config.problems import problem_error
from titanrun.config.suggest import format_word_list
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_command import run_worker_command
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.recipe.resolving.recipe_from_hf import resolve_from_huggingface
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.checkpoint_lookup import fetch_resolved_recipe
from titanrun.recipe.rundir.next_commands import choose_text_command
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_recipe import (
    names_adapters,
    names_reward_model,
    read_plain_recipe,
)
from titanrun.recipe.rundir.started_from import check_start_exists

EXAMPLES = """  titanrun checkpoint export runs/first out --format hf --dtype bfloat16
  titanrun checkpoint export runs/first/checkpoint/step-40 weights.pt --format torch
  titanrun checkpoint export runs/tuned out --format adapter     adapters alone, for peft
  titanrun checkpoint export runs/tuned out --format hf --merge  adapters within the weights
  titanrun checkpoint export runs/first out --format hf --quantize int8_weight_only
  titanrun checkpoint export runs/tuned tuned.gguf --format gguf --dtype q8_0 --ollama
  titanrun checkpoint import models/llama out --from hf
  titanrun checkpoint import adapter recipe.yaml out --from peft
  titanrun checkpoint import outputs/checkpoint/step-1000 out --from torchtitan
  titanrun checkpoint import runs/first out --from titanrun
  titanrun train recipe.yaml checkpoint.initial_load_path=out/step-0"""
ORIGINS_WITH_MODEL = {"hf": "config.json is", "torchtitan": "the parameters' shapes are"}
DTYPES = ("float32", "bfloat16", "float16")
# the quantized dtype of the format, for it alone
GGUF_DTYPE = "q8_0"
DEFAULT_SHARD_BYTES = 5 * 10**9


def export_checkpoint(arguments: list[str]) -> int:
    """Export the weights of a checkpoint."""
    options = parse_export_options(arguments)
    check_group_size(options.quantize, options.group_size)
    check_gguf_options(options)
    if is_storage_path(options.out):
        raise problem_error(
            "usage",
            f"'{options.out}' is a URL, but exports are written to this machine",
            hint="use a local path, then copy it",
        )
    check_path_is_new(Path(options.out))
    checkpoint = find_checkpoint(options.place)
    source = read_plain_recipe(Path(str(checkpoint)) / RESOLVED)
    check_adapter_options(options, source)
    if options.merge or options.format == "gguf":
        check_start_exists(checkpoint)
    asked = {
        "merge": options.merge,
        "dtype": options.dtype,
        "shard_bytes": options.shard_bytes,
    }
    asked |= {"quantize": options.quantize, "group_size": options.group_size}
    asked |= {"ollama": options.ollama}
    # adapters that are not merged are written for peft
    kind = "hf" if options.format == "adapter" else options.format
    place = {"checkpoint": str(checkpoint), "out": options.out, "format": kind}
    code = run_checkpoint_worker({"do": "export", **place, **asked})
    # with a Modelfile the worker has told the command of Ollama
    if code == 0 and not options.ollama:
        print_choices(options, *list_uses(options, has_replies=not names_reward_model(source)))
    return code


def list_uses(options: Namespace, *, has_replies: bool = True) -> list[list[str]]:
    """Return the commands for what was exported: talk to it if it replies, publish it."""
    if not has_replies:
        return [["push", options.place, "OWNER/NAME"]]
    if options.format not in ("hf", "adapter", "gguf") or options.quantize:
        return [["serve", options.place]]
    push = ["push", options.place, "OWNER/NAME"]
    if options.format == "gguf":
        return [[*push, "--format", "gguf"]]
    folder = Path(options.out)
    if not is_huggingface_folder(folder):
        return [[*push, "--format", "adapter"]]
    return [choose_text_command(options.out, folder), push]


def parse_export_options(arguments: list[str]) -> Namespace:
    """Parse the command line of `checkpoint export`."""
    parser = CommandParser(
        "checkpoint export",
        "Export the weights of a checkpoint to a standard format; the recipe is not needed.",
        EXAMPLES,
    )
    parser.add_argument(
        "place", metavar="checkpoint", help="a checkpoint, or a run directory for its newest one"
    )
    parser.add_argument("out", help="the output path; it must not exist")
    parser.add_argument(
        "--format",
        required=True,
        choices=("hf", "adapter", "safetensors", "torch", "gguf"),
        help=(
            "a folder for transformers (of adapters, as adapter: for peft), one of safetensors, "
            "one torch file, or one GGUF file for llama.cpp, with adapters merged"
        ),
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="merge adapters into the weights that they adapt",
    )
    parser.add_argument(
        "--dtype",
        choices=(*DTYPES, GGUF_DTYPE),
        help="type of the weights; default: as saved. q8_0: 8 bits, for gguf",
    )
    parser.add_argument(
        "--ollama", action="store_true", help="with gguf: also write a Modelfile beside the file"
    )
    parser.add_argument(
        "--shard-bytes",
        type=int,
        default=DEFAULT_SHARD_BYTES,
        metavar="N",
        help="largest file, for hf and safetensors (5 GB)",
    )
    add_quantization_options(parser)
    parser.add_moved_option()
    parser.add_trust_option()
    return parser.parse_args(arguments)


def add_quantization_options(parser: CommandParser) -> None:
    """Add the options of torchao's formats."""
    parser.add_argument(
        "--quantize",
        choices=SCHEMES,
        metavar="SCHEME",
        help="quantize linear modules except the output head in a format of torchao",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="N",
        help=f"values per scale, for 4-bit weights ({DEFAULT_GROUP_SIZE})",
    )


def check_adapter_options(options: Namespace, source: dict[str, Any]) -> None:
    """Raise a problem for adapters that a run does not have, or that are to be changed.

    Args:
        options: Options of the command line.
        source: Resolved recipe of the run, empty if it is not there.
    """
    if options.format != "adapter":
        return
    if source and not names_adapters(source):
        message = f"{options.place} has no adapters"
        raise problem_error("usage", message, hint="use --format hf")
    if options.merge:
        message = "--merge writes whole weights, --format adapter the adapters alone"
        raise problem_error("usage", message, hint="use --format hf, or omit --merge")
    if options.quantize is not None:
        hint = "omit --quantize, or use --format hf --merge"
        raise problem_error("usage", "adapters cannot be quantized", hint=hint)


def check_gguf_options(options: Namespace) -> None:
    """Raise a problem for options that go with one format only."""
    only_gguf = {"--ollama": options.ollama, f"--dtype {GGUF_DTYPE}": options.dtype == GGUF_DTYPE}
    if options.format != "gguf":
        for option, is_used in only_gguf.items():
            if is_used:
                raise problem_error("usage", f"{option} is for --format gguf", hint="omit it")
        return
    if options.quantize is not None:
        raise problem_error(
            "usage",
            "--quantize is for torchao's formats, not for gguf",
            hint=f"use --dtype {GGUF_DTYPE}, or llama-quantize of llama.cpp on the file",
        )
    if options.ollama:
        modelfile = Path(options.out).parent / "Modelfile"
        check_path_is_new(modelfile, hint="write the GGUF file into another folder")


def check_group_size(scheme: str | None, group_size: int | None) -> None:
    """Raise a problem for a group size that is unused or that kernels do not support."""
    if group_size is None:
        return
    if scheme not in GROUPED_SCHEMES:
        raise problem_error(
            "usage",
            f"--group-size is for {format_word_list(GROUPED_SCHEMES, conjunction='and')}",
            hint="omit it",
        )
    if group_size not in GROUP_SIZES:
        raise problem_error(
            "usage",
            f"unsupported group size {group_size}",
            hint=f"use {format_word_list([str(size) for size in GROUP_SIZES], conjunction='or')}",
        )


def import_checkpoint(arguments: list[str]) -> int:
    """Create a checkpoint from foreign weights."""
    overrides, rest = split_overrides(arguments)
    parser = CommandParser(
        "checkpoint import",
        "Create a checkpoint of step 0 from foreign weights, for runs to start from.",
        EXAMPLES,
    )
    parser.add_argument(
        "source",
        help="a Hugging Face folder, a checkpoint of torchtitan or of another run, or adapters of "
        "peft",
    )
    parser.add_argument(
        "recipe", nargs="?", help="the recipe of the model; only required for adapters"
    )
    parser.add_argument("out", help="the folder to write step-0 into")
    parser.add_argument(
        "--from", dest="origin", required=True, choices=("hf", "torchtitan", "titanrun", "peft")
    )
    parser.add_trust_option()
    parser.allow_overrides()
    options = parser.parse_args(rest)
    is_run = options.origin == "titanrun"
    source = str(find_checkpoint(options.source)) if is_run else options.source
    if not parse_storage_path(source).is_dir():
        raise problem_error(
            "file",
            f"folder not found: '{options.source}'",
            hint="pass the folder of the weights",
        )
    check_path_is_new(parse_storage_path(options.out) / "step-0")
    resolved = resolve_import_recipe(options.origin, source, options.recipe, overrides)
    text = None if resolved is None else resolved.text
    code = run_checkpoint_worker(
        {
            "do": "import",
            "from": options.origin,
            "source": source,
            "out": options.out,
            "resolved": text,
        }
    )
    if code == 0 and options.recipe is not None:
        start = "checkpoint.initial_load_path="
        others = [one for one in overrides if not one.removeprefix("--").startswith(start)]
        print_next(options, "train", options.recipe, *others, f"{start}{options.out}/step-0")
    return code


def resolve_import_recipe(
    origin: str, source: str, recipe: str | None, overrides: Sequence[str]
) -> Resolved | None:
    """Return the named recipe, or the one that comes with the weights.

    Return None if the shapes of the weights determine the model. Raises ProblemsFound if the
    weights come without a recipe.
    """
    if recipe is None and overrides and origin in ORIGINS_WITH_MODEL:
        message = (
            f"{ORIGINS_WITH_MODEL[origin]} the recipe here, and overrides need one that is named"
        )
        raise problem_error("usage", message, hint="pass a recipe, or omit the overrides")
    if recipe is None and origin == "hf":
        return resolve_from_huggingface(Path(source))
    if recipe is None and origin == "torchtitan":
        return None
    if recipe is None and origin == "peft":
        raise problem_error(
            "usage", "adapters require a recipe", hint="pass one before the output folder"
        )
    return resolve_recipe(
        recipe or fetch_resolved_recipe(parse_storage_path(source)),
        overrides,
        environment=get_environment(),
    )


def check_path_is_new(out: AnyPath, *, hint: str = "use a new path") -> None:
    """Raise a problem if the path exists: nothing is overwritten."""
    if out.exists():
        raise problem_error("file", f"'{out}' exists and is never overwritten", hint=hint)


def run_checkpoint_worker(request: dict[str, object]) -> int:
    """Run the process that reads tensors and return its exit code."""
    require_torch()
    return run_worker_command("checkpoint", request).returncode
