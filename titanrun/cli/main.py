"""The command `titanrun`: run one command, import only that one, exit with its code."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from titanrun.components.metrics.spec.console_stream import (
    drain_console,
    open_standard_descriptors,
    protect_stderr,
    protect_stdout,
)
from titanrun.config.safe_stream import make_safe
from titanrun.launch.launch_env import disable_pydantic_plugins, set_trust

COMMANDS = {
    "train": "train a recipe",
    "launch": "start a run as its launch section says: here or as a Slurm job",
    "resume": "resume a run, from its directory or a checkpoint",
    "stop": "stop a running run after its current step, or at once",
    "fleet": "generate for the trainer of an RL run, also on another machine",
    "fork": "start a new run from the weights of a checkpoint",
    "reproduce": "rerun a run and compare it step by step",
    "generate": "continue prompts with a checkpoint or a Hugging Face folder",
    "chat": "converse with a model in the terminal, or with two at once",
    "serve": "answer requests over HTTP with a model, as OpenAI does",
    "eval": "evaluate a checkpoint or a Hugging Face folder",
    "checkpoint": "list, verify, compare, export, import and delete checkpoints",
    "push": "upload a run to the Hugging Face Hub, with a model card",
    "download": "fetch a model from the Hugging Face Hub",
    "data": "tokenize and inspect the data of a recipe, manage the token cache",
    "runs": "list, show, compare, tag and remove runs",
    "bundle": "pack a run into one reproducible archive",
    "sweep": "train a recipe with many values and rank the results",
    "plot": "plot the metrics of runs in the terminal or into a file",
    "report": "write an HTML report of a run",
    "validate": "find all problems of recipes, without a GPU",
    "plan": "estimate memory, communication and batch sizes without GPUs",
    "diff-config": "compare two recipes, runs or checkpoints",
    "show": "show every setting of a recipe and the source of each value",
    "explain": "explain a field, a component, a problem code or a rule",
    "ls": "list available recipes, models, optimizers, datasets ...",
    "cat": "print a shipped recipe",
    "cp": "copy a shipped recipe to a new file",
    "init": "write a commented starter recipe",
    "migrate": "convert an older recipe, or a configuration of another program",
    "doctor": "check this machine and its installation",
    "completion": "print a completion script for bash, zsh or fish",
    "ui": "edit recipes, watch and compare runs, in the browser",
    "lsp": "language server: check and complete recipes in editors",
    "schema": "print the JSON Schema of recipes, for editors, or of run outputs",
}
# what people type for a command that has another name
COMMAND_SYNONYMS = {
    "export": "checkpoint export",
    "convert": "checkpoint export",
    "import": "checkpoint import",
    "merge": "checkpoint export",
    "run": "train",
    "finetune": "train",
    "start": "train",
    "continue": "resume",
    "infer": "generate",
    "evaluate": "eval",
    "upload": "push",
    "check": "validate",
}
# their output is a report on training, which does not depend on it; that of others is their result
TRAINING_COMMANDS = {"train", "launch", "resume", "fork", "reproduce", "sweep"}
# called by completion scripts at each key press
HIDDEN_COMMANDS = {"__complete"}
HELP_TEMPLATE = """usage: titanrun COMMAND [ARGUMENT ...]

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
    # short-lived: garbage collection and interpreter teardown cost more than they free
    gc.disable()
    disable_pydantic_plugins()
    # only the flag allows it, never a leftover environment variable
    set_trust(None)
    open_console(sys.argv[1:])
    code = run_and_flush(sys.argv[1:])
    drain_console()
    os._exit(code)


def open_console(arguments: Sequence[str]) -> None:
    """Prepare stdout and stderr, which may be closed, full or not read.

    Nothing depends on stderr, and a command that trains does not depend on stdout either.
    """
    open_standard_descriptors()
    # None if the stream was closed from the start, as by `>&-`
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    protect_stderr()
    if arguments and arguments[0] in TRAINING_COMMANDS:
        protect_stdout()
    # text of files is shown, never obeyed by the terminal
    sys.stdout, sys.stderr = make_safe(sys.stdout), make_safe(sys.stderr)


def run_and_flush(arguments: Sequence[str]) -> int:
    """Run the command, flush its output and return the exit code, 2 if the output fails.

    A reader that closed the pipe, as `| head` does, is not an error.
    """
    code = 0
    try:
        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        return code
    except OSError as error:
        print(
            f"error[file]: cannot write the output: {(error.strerror or str(error)).lower()}",
            file=sys.stderr,
        )
        return 2
    return code


def run(arguments: Sequence[str]) -> int:
    """Return the exit code of one command line."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(format_main_help(), end="")
        return 0
    if arguments[0] == "--version":
        from titanrun.config.version import VERSION

        print(f"titanrun {VERSION}")
        return 0
    command = arguments[0]
    if command not in COMMANDS and command not in HIDDEN_COMMANDS:
        return (
            report_early_option(arguments)
            if command.startswith("-")
            else report_unknown_command(command)
        )
    from titanrun.cli.error_boundary import run_guarded

    module = f"titanrun.cli.{command.strip('_').replace('-', '_')}"
    return run_guarded(lambda rest: int(import_module(module).run(rest)), arguments[1:])


def format_main_help() -> str:
    """Return the text of `titanrun --help`."""
    width = max(map(len, COMMANDS))
    return HELP_TEMPLATE.format(
        commands="\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    )


def report_early_option(arguments: Sequence[str]) -> int:
    """Report an option before the command, with the order that works."""
    from shlex import join

    option, *rest = arguments
    words = [*rest, option] if rest and rest[0] in COMMANDS else ["COMMAND", option]
    print(
        f"error[usage]: option '{option}' before the command\n"
        f"  = help: options follow the command: {join(['titanrun', *words])}",
        file=sys.stderr,
    )
    return 2


def report_unknown_command(command: str) -> int:
    """Report an unknown command with a suggestion."""
    from titanrun.config.suggest import find_closest, format_word_list

    meant = COMMAND_SYNONYMS.get(command) or find_closest(command, COMMANDS)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"commands: {format_word_list(COMMANDS, conjunction='and')}"
    )
    print(f"error[usage]: unknown command '{command}'\n  = help: {hint}", file=sys.stderr)
    return 2
