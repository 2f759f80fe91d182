"""`titanrun chat`: a conversation with a model in the terminal, or with two models at once.

A separate process with torch does the work.
"""

import math
import shlex
import sys
from argparse import SUPPRESS, Namespace
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.generate import get_weight_source
from titanrun.cli.next_command import print_next
from titanrun.cli.serve import build_base_source, get_model_name
from titanrun.config.problems import problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.launch.model_process import run_model_process
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.resolve import load_resolved_text

SUMMARY = (
    "Converse with a model by the chat template that it was trained with: that of a run's newest "
    "checkpoint, of a checkpoint or of a Hugging Face folder. Two models get the same messages, "
    "and /pick collects the better replies as pairs to train on. Where stdin is no terminal, its "
    "lines are turns of one conversation, /reset on a line of its own starts another one, and each "
    "reply is a JSON object in a line."
)
EXAMPLES = """  titanrun chat runs/sft
  titanrun chat runs/sft runs/dpo --temperature 0.7  two models side by side
  titanrun chat runs/lora --base                     beside the model without adapters
  titanrun chat runs/sft --system "Be brief."
  echo "Say: moon" | titanrun chat runs/sft --temperature 0"""


def run(arguments: list[str]) -> int:
    """Converse until the input ends."""
    parser = CommandParser("chat", SUMMARY, EXAMPLES)
    parser.add_argument("folder", help="a checkpoint, a run directory, or a Hugging Face folder")
    parser.add_argument("other", nargs="?", help="another one, to compare with")
    parser.add_argument(
        "--base",
        action="store_true",
        help="compare with the model that the run started from, without its adapters",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="most tokens of a reply (512)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="sampling temperature (1); 0: greedy",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the most likely tokens with total probability P (1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="sampling seed (0)")
    parser.add_moved_option()
    parser.add_argument(
        "--requests",
        action="store_true",
        help="for programs: each line of stdin is a request, each line of stdout an event, as JSON",
    )
    parser.add_argument("--prompt", help=SUPPRESS)
    options = parser.parse_args(arguments)
    require_torch()
    check_chat_options(options)
    models = list_models(options)
    job = {"models": models, "system": options.system, "history": str(get_history_file())}
    job |= {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
    module = "chat_requests" if options.requests else "chat"
    code = run_model_process(module, {**job, "max_new_tokens": options.max_new_tokens})
    # programs read what is not typed at a terminal
    if code == 0 and sys.stdin.isatty() and "checkpoint" in models[0]:
        print_next(options, *build_export_words(options.folder, models[0]["resolved"]))
    return code


def list_models(options: Namespace) -> list[dict[str, Any]]:
    """Return where the weights of one model or of two are, with their names."""
    folders = [options.folder, *([options.other] if options.other else [])]
    names = [get_model_name(folder) for folder in folders]
    if len(set(names)) < len(names):
        names = folders
    models: list[dict[str, Any]] = [
        {**get_weight_source(folder), "name": name}
        for folder, name in zip(folders, names, strict=True)
    ]
    if not options.base:
        return models
    return [*models, build_base_source(options.folder, models[0])]


def build_export_words(place: str, resolved: str) -> list[str]:
    """Return the words of the command that exports a run, with adapters merged."""
    has_adapters = find_lora_converter(load_resolved_text(resolved)) is not None
    merge = ["--merge"] if has_adapters else []
    return ["checkpoint", "export", place, "out", "--format", "hf", *merge]


def check_chat_options(options: Namespace) -> None:
    """Raise a usage problem for options out of range, or of `generate`."""
    if options.prompt is not None:
        command = ["titanrun", "generate", options.folder, "--chat", "--prompt", options.prompt]
        message = "titanrun chat reads messages from the terminal or stdin, not from --prompt"
        raise problem_error("usage", message, hint=shlex.join(command))
    limit = options.max_new_tokens
    wrong = {
        "--max-new-tokens must be 1 or more": limit is not None and limit < 1,
        "--temperature must be 0 or more": not 0 <= options.temperature < math.inf,
        "--top-p must be above 0 and at most 1": not 0 < options.top_p <= 1,
        "--seed must be 0 or more": options.seed < 0,
        "--base already adds a second model, the one that the run started from: omit --base or "
        "the second name": options.base and options.other is not None,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise problem_error("usage", message)


def get_history_file() -> Path:
    """Return the file with what was typed in earlier conversations."""
    state = get_environment().get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "titanrun/chat_history"
