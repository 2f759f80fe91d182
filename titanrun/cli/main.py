"""The command `titanrun`: picks one command, imports only that one, and exits with its code."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from titanrun.launch.environment import leave_out_pydantic_plugins, trust_remote_code

COMMANDS = {
    "train": "train a recipe",
    "launch": "start a run where its launch section says: here, or as a job of Slurm",
    "resume": "go on with a run, from its directory or a checkpoint",
    "fork": "start a new run from the weights of a checkpoint",
    "reproduce": "train a run once more, and compare it step by step",
    "generate": "continue prompts with a checkpoint or a Hugging Face folder",
    "eval": "measure a checkpoint or a Hugging Face folder",
    "checkpoint": "list, check, compare, export, import and clear away checkpoints",
    "download": "fetch a model from the Hugging Face Hub",
    "data": "tokenise, show and measure the data of a recipe, and care for what is tokenised",
    "runs": "list, show, compare, tag and remove the runs there are",
    "bundle": "pack what a run can be trained again from into one file",
    "sweep": "train a recipe with many values, and say which did best",
    "plot": "draw the metrics of runs into the terminal or a file",
    "report": "write all that a run's folder tells of it on one HTML page",
    "validate": "find everything that is wrong with recipes, without a GPU",
    "plan": "what a run on many ranks needs, worked out on a laptop",
    "diff-config": "what differs between two recipes, runs or checkpoints",
    "show": "every setting of a recipe, and where each value came from",
    "explain": "what a field, a component, a problem code or a rule means",
    "ls": "what can be named: recipes, models, optimizers, datasets ...",
    "cat": "print a shipped recipe",
    "cp": "copy a shipped recipe to a file of your own",
    "init": "write a commented recipe to begin with",
    "migrate": "bring an older recipe, or one of torchtitan, up to date",
    "doctor": "what this machine has, and whether titanrun can train on it",
    "completion": "a completion script for bash, zsh or fish",
    "schema": "JSON Schemas of recipes, for editors, and of what runs write",
}
# what completion scripts call at each key press
HIDDEN = {"__complete"}
HELP = """usage: titanrun COMMAND [ARGUMENT ...]

PyTorch-native LLM training from plain text recipes.

commands:
{commands}

examples:
  titanrun train recipes/llama3_debug.yaml
  titanrun train recipes/llama3_debug.yaml training.steps=50 optimizer.lr=1e-3
  titanrun validate my_recipe.yaml
  titanrun diff-config a.yaml b.yaml

`titanrun COMMAND --help` explains a command.
"""


def main() -> NoReturn:
    """Run the command in sys.argv and exit."""
    # short-lived: collecting garbage costs more than it frees, and so does tearing the interpreter down
    gc.disable()
    leave_out_pydantic_plugins()
    # a flag permits it, and no environment that somebody left behind
    trust_remote_code(False)
    # None where the stream was closed from the start, as by `>&-`
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    os._exit(answered(sys.argv[1:]))


def answered(arguments: Sequence[str]) -> int:
    """The exit code once all that is said is out; 2 where it cannot get out. A reader that went away, as `| head` does, is no fault."""
    code = 0
    try:
        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        return code
    except OSError as error:
        print(
            f"error[file]: cannot write the answer: {(error.strerror or str(error)).lower()}",
            file=sys.stderr,
        )
        return 2
    return code


def run(arguments: Sequence[str]) -> int:
    """The exit code of one command line."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0
    if arguments[0] == "--version":
        print(f"titanrun {installed_version()}")
        return 0
    command = arguments[0]
    if command not in COMMANDS and command not in HIDDEN:
        return unknown_command(command)
    guard = import_module("titanrun.cli.guard")
    return int(
        guard.guarded(
            lambda rest: import_module(f"titanrun.cli.{command.strip('_').replace('-', '_')}").run(
                rest
            ),
            arguments[1:],
        )
    )


def help_text() -> str:
    """The text of `titanrun --help`."""
    width = max(map(len, COMMANDS))
    return HELP.format(
        commands="\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    )


def installed_version() -> str:
    """Version of the installed package."""
    return import_module("importlib.metadata").version("titanrun")  # type: ignore[no-any-return]


def unknown_command(command: str) -> int:
    """Say which command was meant."""
    from titanrun.config.suggest import closest, listing

    meant = closest(command, COMMANDS)
    help = f"did you mean '{meant}'?" if meant else f"commands: {listing(COMMANDS, last='and')}"
    print(f"error[usage]: unknown command '{command}'\n  = help: {help}", file=sys.stderr)
    return 2
