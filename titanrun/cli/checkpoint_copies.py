"""`titanrun checkpoint export` and `import`: what they are asked for is checked here; a process with torch does it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.components.checkpoints.addresses import Place, is_address, place
from titanrun.components.converters.schemes import GROUP_SIZE, GROUP_SIZES, IN_GROUPS, SCHEMES
from titanrun.config.problems import fail
from titanrun.config.suggest import listing
from titanrun.launch.environment import environment
from titanrun.recipe.of_huggingface import recipe_of
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.recipe.saved import checkpoint_at, resolved_file

EXAMPLES = """  titanrun checkpoint export runs/first out --format hf --dtype bfloat16
  titanrun checkpoint export runs/first/checkpoint/step-40 weights.pt --format torch
  titanrun checkpoint export runs/tuned adapter --format hf              adapters alone, for peft
  titanrun checkpoint export runs/tuned out --format hf --merge          adapters within the weights
  titanrun checkpoint export runs/first out --format hf --quantize int8_weight_only
  titanrun checkpoint import models/llama out --from hf
  titanrun checkpoint import adapter recipe.yaml out --from peft
  titanrun checkpoint import outputs/checkpoint/step-1000 out --from torchtitan
  titanrun checkpoint import runs/first out --from titanrun
  titanrun train recipe.yaml checkpoint.initial_load_path=out/step-0"""
BRING_A_MODEL = {"hf": "config.json is", "torchtitan": "the parameters' shapes are"}
DTYPES = ("float32", "bfloat16", "float16")
SHARD_BYTES = 5 * 10**9


def export(arguments: list[str]) -> int:
    """Copy the weights of a checkpoint out."""
    parser = Parser(
        "checkpoint export",
        "Copy the weights of a checkpoint into a format that others read; the recipe is not needed.",
        EXAMPLES,
    )
    parser.add_argument(
        "place", metavar="checkpoint", help="a checkpoint, or a run directory for its newest one"
    )
    parser.add_argument("out", help="what to write; it may not exist")
    parser.add_argument(
        "--format",
        required=True,
        choices=("hf", "safetensors", "torch"),
        help="a folder for transformers (of adapters: for peft), one of safetensors, or one torch file",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="adapters become part of the weights beside which they are",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="type of the weights; default: as they are saved"
    )
    parser.add_argument(
        "--shard-bytes",
        type=int,
        default=SHARD_BYTES,
        metavar="N",
        help="largest file, for hf and safetensors (5 GB)",
    )
    parser.add_argument(
        "--quantize",
        choices=SCHEMES,
        metavar="SCHEME",
        help=f"linear modules but the output head as torchao's {listing(SCHEMES)}",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="N",
        help=f"numbers with one scale, for weights in 4 bits ({GROUP_SIZE})",
    )
    parser.takes_trust()
    options = parser.parse_args(arguments)
    refuse_groups(options.quantize, options.group_size)
    if is_address(options.out):
        raise fail(
            "usage",
            f"'{options.out}' is an address, and exports are written on this machine",
            help="name a path, then copy it",
        )
    refuse_existing(Path(options.out))
    checkpoint = checkpoint_at(place(options.place))
    asked = {"merge": options.merge, "dtype": options.dtype, "shard_bytes": options.shard_bytes}
    asked |= {"quantize": options.quantize, "group_size": options.group_size}
    return in_worker(
        {
            "do": "export",
            "checkpoint": str(checkpoint),
            "out": options.out,
            "format": options.format,
            **asked,
        }
    )


def refuse_groups(scheme: str | None, group_size: int | None) -> None:
    """Raises a problem where a group size means nothing, or is none that kernels have."""
    if group_size is None:
        return
    if scheme not in IN_GROUPS:
        raise fail(
            "usage", f"--group-size is for {listing(IN_GROUPS, last='and')}", help="leave it out"
        )
    if group_size not in GROUP_SIZES:
        raise fail(
            "usage",
            f"there are no groups of {group_size}",
            help=f"use {listing([str(size) for size in GROUP_SIZES], last='or')}",
        )


def take_in(arguments: list[str]) -> int:
    """Make a checkpoint of weights from elsewhere."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "checkpoint import",
        "Make a checkpoint, step 0, of weights from elsewhere, for runs to start from.",
        EXAMPLES,
    )
    parser.add_argument(
        "source",
        help="a Hugging Face folder, a checkpoint of torchtitan or of another run, or adapters that peft saved",
    )
    parser.add_argument(
        "recipe", nargs="?", help="the recipe whose model takes them; only adapters need one"
    )
    parser.add_argument("out", help="the folder to write step-0 into")
    parser.add_argument(
        "--from", dest="origin", required=True, choices=("hf", "torchtitan", "titanrun", "peft")
    )
    parser.takes_trust()
    parser.takes_overrides()
    options = parser.parse_args(others)
    if not place(options.source).is_dir():
        raise fail(
            "file",
            f"there is no folder '{options.source}'",
            help="name the folder that holds the weights",
        )
    refuse_existing(place(options.out) / "step-0")
    source = (
        str(checkpoint_at(place(options.source)))
        if options.origin == "titanrun"
        else options.source
    )
    resolved = recipe_for(options.origin, source, options.recipe, overrides)
    text = None if resolved is None else resolved.text
    return in_worker(
        {
            "do": "import",
            "from": options.origin,
            "source": source,
            "out": options.out,
            "resolved": text,
        }
    )


def recipe_for(
    origin: str, source: str, recipe: str | None, overrides: Sequence[str]
) -> Resolved | None:
    """The recipe that is named, or the one that the weights bring along; None where their shapes tell it. Raises where they bring none."""
    if recipe is None and overrides and origin in BRING_A_MODEL:
        message = f"{BRING_A_MODEL[origin]} the recipe here, and overrides need one that is named"
        raise fail("usage", message, help="name a recipe, or leave them out")
    if recipe is None and origin == "hf":
        return recipe_of(Path(source))
    if recipe is None and origin == "torchtitan":
        return None
    if recipe is None and origin == "peft":
        raise fail(
            "usage", "adapters come without a recipe", help="name one, before the folder to write"
        )
    return resolve(recipe or resolved_file(place(source)), overrides, environment=environment())


def refuse_existing(out: Place) -> None:
    """Nothing is written over."""
    if out.exists():
        raise fail("file", f"'{out}' exists and is never written over", help="name something new")


def in_worker(job: dict[str, object]) -> int:
    """The exit code of the process that reads tensors."""
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-m", "titanrun.worker.checkpoint"],
        input=json.dumps(job),
        text=True,
        check=False,
    ).returncode
