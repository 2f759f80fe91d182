"""`titanrun generate`: text or images from a checkpoint or a Hugging Face folder.

A separate process with torch does the work.
"""

import json
import math
from argparse import Namespace
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.run_argument import find_checkpoint
from titanrun.config.problems import problem_error
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_command import run_worker_command
from titanrun.launch.worker_pool import run_worker_pool
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.recipe.resolving.recipe_from_hf import resolve_from_huggingface
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.started_from import check_start_exists

SUMMARY = (
    "Continue prompts with the model of a checkpoint, of a run's newest checkpoint, or of a "
    "Hugging Face folder. Nothing is put before a prompt unless --add-bos or --chat is given. "
    "--temperature 0 is greedy and always generates the same text. An image model, such as flux, "
    "generates one image per prompt instead."
)
EXAMPLES = """  titanrun generate runs/first --prompt "Once upon a time" --max-new-tokens 40
  titanrun generate runs/first/checkpoint/step-40 --prompt One --prompt Two --temperature 0
  titanrun generate models/llama --prompt "Who are you?" --chat --top-p 0.9 --seed 3
  titanrun generate models/llama --prompt Hello --temperature 0 --json  text and token_ids
  titanrun generate models/llama --prompt Hello --nproc 2  tensor parallel over two processes
  titanrun generate runs/flux --prompt "a red circle left" -o circle.png"""


def run(arguments: list[str]) -> int:
    """Print the continuation of each prompt."""
    parser = build_generate_parser()
    options = parser.parse_args(arguments)
    require_torch()
    check_generation_options(options)
    words = {word: value for word, value in vars(options).items() if word != "folder"}
    written = [word for word, value in words.items() if value != parser.get_default(word)]
    job = {**get_weight_source(options.folder), **words, "written": written}
    if options.nproc > 1:
        # imported here: it loads rules, whose order in the registry depends on the import order
        from titanrun.recipe.resolving.validation_levels import check_tensor_parallel_split

        check_tensor_parallel_split(load_resolved_text(job["resolved"]), options.nproc)
        return run_worker_pool("generate", json.dumps(job), options.nproc)
    return run_worker_command("generate", job).returncode


def build_generate_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = CommandParser("generate", SUMMARY, EXAMPLES)
    parser.add_argument("folder", help="a checkpoint, a run directory, or a Hugging Face folder")
    parser.add_argument(
        "--prompt",
        action="append",
        required=True,
        metavar="TEXT",
        help="prompt to continue; several are batched",
    )
    add_text_options(parser)
    parser.add_moved_option()
    parser.add_argument(
        "--nproc",
        type=int,
        default=1,
        metavar="N",
        help="processes on this machine that split the model's matrices (1)",
    )
    add_image_options(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="one object per prompt: new text and new token_ids",
    )
    return parser


def add_text_options(parser: CommandParser) -> None:
    """Add the options of text models."""
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=64,
        metavar="N",
        help="maximum number of new tokens per prompt (64)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="sampling temperature (1); 0: greedy",
    )
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="sample from the K most likely tokens only"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the most likely tokens with total probability P (1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="sampling seed (0)")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop at this text, or special token, and omit it; may be repeated",
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="continue after the end-of-text token"
    )
    parser.add_argument(
        "--add-bos", action="store_true", help="put the begin-of-text token before each prompt"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="each prompt is a user message in the tokenizer's chat template",
    )


def add_image_options(parser: CommandParser) -> None:
    """Add the options of image models."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="PNG file of the image; several images get a number suffix each",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="denoising steps (50)")
    parser.add_argument(
        "--guidance",
        type=float,
        metavar="S",
        help="classifier-free guidance scale, or the guidance input of the model",
    )
    parser.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="width and height of an image; default: those of the training",
    )


def get_weight_source(named: str) -> dict[str, str]:
    """Return the location of the weights and the resolved recipe of their model."""
    folder = Path(named)
    if is_huggingface_folder(folder):
        return {"huggingface": named, "resolved": resolve_from_huggingface(folder).text}
    checkpoint = find_checkpoint(named, takes_models=True)
    # reads the recipe: the process that gets its text inherits where the plug-in files lie
    check_start_exists(checkpoint)
    text = (checkpoint / RESOLVED).read_text(encoding="utf-8")
    return {"checkpoint": str(checkpoint), "resolved": text}


def check_generation_options(options: Namespace) -> None:
    """Raise a usage problem for sampling options out of range."""
    wrong = {
        "--max-new-tokens must be 1 or more": options.max_new_tokens < 1,
        "--temperature must be 0 or more": not 0 <= options.temperature < math.inf,
        "--top-k must be 1 or more": options.top_k is not None and options.top_k < 1,
        "--top-p must be above 0 and at most 1": not 0 < options.top_p <= 1,
        "--seed must be 0 or more": options.seed < 0,
        "--nproc must be 1 or more": options.nproc < 1,
        "--steps must be 1 or more": options.steps is not None and options.steps < 1,
        "--guidance must be a number": options.guidance is not None
        and not math.isfinite(options.guidance),
        "--size must be 1 or more": options.size is not None and options.size < 1,
        "--stop must be a non-empty text": "" in options.stop,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise problem_error("usage", message)
