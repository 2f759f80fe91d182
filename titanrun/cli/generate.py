"""`titanrun generate`: text, or pictures, from a checkpoint or a Hugging Face folder; a process with torch does it."""

import json
import math
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.components.checkpoints.addresses import place
from titanrun.config.problems import fail
from titanrun.launch.together import do_together
from titanrun.recipe.of_huggingface import is_huggingface, recipe_of
from titanrun.recipe.resolve import read_resolved_text
from titanrun.recipe.saved import RESOLVED, checkpoint_at

SUMMARY = (
    "Continue prompts with the model of a checkpoint, of a run's newest checkpoint, or of a Hugging Face folder. Nothing is put before "
    "a prompt unless --add-bos or --chat asks for it. --temperature 0 takes the likeliest token each time, and always gives the same text. "
    "A model of pictures, such as flux, draws one for each prompt instead."
)
EXAMPLES = """  titanrun generate runs/first --prompt "Once upon a time" --max-new-tokens 40
  titanrun generate runs/first/checkpoint/step-40 --prompt One --prompt Two --temperature 0
  titanrun generate models/llama --prompt "Who are you?" --chat --top-p 0.9 --seed 3
  titanrun generate models/llama --prompt Hello --temperature 0 --json          {"text": ..., "token_ids": [...]}
  titanrun generate models/llama --prompt Hello --nproc 2                       two processes, each with half of each matrix
  titanrun generate runs/flux --prompt "a red circle left" -o circle.png"""


def run(arguments: list[str]) -> int:
    """Print what follows each prompt."""
    parser = Parser("generate", SUMMARY, EXAMPLES)
    parser.add_argument("folder", help="a checkpoint, a run directory, or a Hugging Face folder")
    parser.add_argument(
        "--prompt",
        action="append",
        required=True,
        metavar="TEXT",
        help="what to continue; several are computed together",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=64,
        metavar="N",
        help="tokens after a prompt, at most (64)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="what logits are divided by (1); 0: the likeliest token",
    )
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the likeliest tokens that together have P (1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (0)")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end where this appears, and leave it out; may repeat",
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="go on after the end-of-text token"
    )
    parser.add_argument(
        "--add-bos", action="store_true", help="put the begin-of-text token before each prompt"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="each prompt is what a user says, in the tokenizer's chat template",
    )
    parser.add_argument(
        "--nproc",
        type=int,
        default=1,
        metavar="N",
        help="processes on this machine that split the model's matrices (1)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="PNG file of a picture; of several pictures, each gets a number behind it",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps from noise to a picture (50)")
    parser.add_argument(
        "--guidance",
        type=float,
        metavar="S",
        help="factor of what a caption adds to a picture; or what the model is told",
    )
    parser.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="of a picture's sides; else those that the model was trained on",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="one object a prompt: text and token_ids, of what is new only",
    )
    options = parser.parse_args(arguments)
    refuse_senseless(options)
    words = {word: value for word, value in vars(options).items() if word != "folder"}
    written = [word for word, value in words.items() if value != parser.get_default(word)]
    job = {**weights_of(options.folder), **words, "written": written}
    if options.nproc > 1:
        # by name: it loads rules, which the rule book orders by who comes first
        import_module("titanrun.recipe.splitting").refuse_split(
            read_resolved_text(job["resolved"]), options.nproc
        )
        return do_together("generate", json.dumps(job), options.nproc)
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-m", "titanrun.worker.generate"],
        input=json.dumps(job),
        text=True,
        check=False,
    ).returncode


def weights_of(named: str) -> dict[str, str]:
    """Where the weights are, and the resolved recipe of their model."""
    folder = Path(named)
    if is_huggingface(folder):
        return {"huggingface": named, "resolved": recipe_of(folder).text}
    checkpoint = checkpoint_at(place(named))
    return {
        "checkpoint": str(checkpoint),
        "resolved": (checkpoint / RESOLVED).read_text(encoding="utf-8"),
    }


def refuse_senseless(options: Namespace) -> None:
    """Raises a usage problem for numbers that choose no token."""
    wrong = {
        "--max-new-tokens is 1 or more": options.max_new_tokens < 1,
        "--temperature is 0 or more": not 0 <= options.temperature < math.inf,
        "--top-k is 1 or more": options.top_k is not None and options.top_k < 1,
        "--top-p is above 0, and 1 at most": not 0 < options.top_p <= 1,
        "--seed is 0 or more": options.seed < 0,
        "--nproc is 1 or more": options.nproc < 1,
        "--steps is 1 or more": options.steps is not None and options.steps < 1,
        "--guidance is a number": options.guidance is not None
        and not math.isfinite(options.guidance),
        "--size is 1 or more": options.size is not None and options.size < 1,
        "--stop is a text that is not empty": "" in options.stop,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise fail("usage", message)
