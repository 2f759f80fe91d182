"""Consent of the user to the code that a recipe names, on the command line or on a terminal."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from titanrun.config.problems import ProblemsFound
from titanrun.config.tree import format_path
from titanrun.config.trust import (
    TRUST_FLAG,
    TRUST_MODEL_CODE,
    NamedCode,
    get_trust_folder,
    is_trusted,
    remember_trust,
)
from titanrun.launch.launch_env import get_environment, get_rank_and_world_size
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.consent.recipe_code import build_untrusted_problem, find_recipe_code
from titanrun.recipe.plugins import ask_before_plugins
from titanrun.recipe.resolving.read_recipe import find_plugin_files
from titanrun.recipe.resolving.resolve import Resolved, attach_origin

QUESTION = "Run this code? It can do all that you can do. [y/N] "


def request_consent(
    runs: Sequence[Resolved], options: Namespace, command: Sequence[str], *, submits: bool = False
) -> None:
    """Ensure that all code the runs need is allowed: by --trust, by an earlier answer, or now.

    Args:
        runs: the runs to start.
        options: options of the command.
        command: the words of the command line, for the command that allows the code.
        submits: whether the shell lines of a batch script run too.

    Raises:
        ProblemsFound: if code is not allowed, and there is no terminal to ask on.
    """
    if options.trust:
        remember_all(runs)
        return
    missing = [(code, run) for run in runs for code in list_untrusted_code(run, submits=submits)]
    if not missing:
        return
    if is_interactive() and ask([code for code, _ in missing]):
        for code, _ in missing:
            remember_trust(code, get_environment())
        return
    hint = f"read it, then run: {format_trusting_command(command)}"
    found = {
        code.digest: attach_origin(build_untrusted_problem(code, hint), run.tree)
        for code, run in missing
    }
    raise ProblemsFound(found.values())


def ask_about_plugin_files() -> None:
    """Ask on a terminal before a plug-in file runs for the first time: a recipe is read by it."""

    def agree(code: NamedCode) -> bool:
        if not is_interactive() or not ask([code]):
            return False
        remember_trust(code, get_environment())
        return True

    ask_before_plugins(agree)


def list_code(run: Resolved) -> list[NamedCode]:
    """Return the code that a run names, its plug-in files first."""
    files = [file.code for file in find_plugin_files(run.tree)]
    return [*files, *find_recipe_code(run.run, Path.cwd())]


def list_untrusted_code(run: Resolved, *, submits: bool = False) -> list[NamedCode]:
    """Return the code that a run needs and that is not allowed yet.

    `submits` says whether the shell lines of a batch script run too.
    """
    return [
        code
        for code in list_code(run)
        if code.is_required
        and (submits or code.kind != "shell")
        and not is_trusted(code, get_environment())
    ]


def needs_consent(run: Resolved) -> bool:
    """Return whether the run cannot start without consent."""
    return any(code.is_required and code.kind != "shell" for code in list_code(run))


def uses_model_code(run: Resolved) -> bool:
    """Return whether code that comes with weights is allowed and is there."""
    return any(
        code.kind == TRUST_MODEL_CODE and is_trusted(code, get_environment())
        for code in list_code(run)
    )


def remember_all(runs: Sequence[Resolved]) -> None:
    """Remember consent to all code of the runs."""
    remember_codes(code for run in runs for code in list_code(run))


def remember_codes(codes: Iterable[NamedCode]) -> None:
    """Remember consent to code; note once if that is not possible."""
    known = {code.digest: code for code in codes}
    remembered = [remember_trust(code, get_environment()) for code in known.values()]
    if not all(remembered):
        log_line(
            f"note: consent is not remembered, {get_trust_folder(get_environment())} "
            "cannot be written",
            level="warning",
        )


def is_interactive() -> bool:
    """Return whether a person can be asked: a terminal, and no other ranks that wait."""
    return (
        sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stderr.isatty()
        and get_rank_and_world_size(get_environment())[1] == 1
    )


def ask(codes: Sequence[NamedCode]) -> bool:
    """Show what would run and return whether the user agrees."""
    print("This recipe runs code that it names:", file=sys.stderr)
    for code in codes:
        print(f"  {format_path(code.path)}: {code.text}", file=sys.stderr)
    print(QUESTION, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def format_trusting_command(command: Sequence[str]) -> str:
    """Format the command line with consent."""
    name, *arguments = command
    return shlex.join(["titanrun", name, TRUST_FLAG, *arguments])


def format_code_list(run: Resolved) -> list[str]:
    """Format a line for each code that a run names, with whether it is allowed."""
    return [
        f"runs code, {'allowed' if is_trusted(code, get_environment()) else 'not allowed yet'}: "
        f"{format_path(code.path)}: {code.text}"
        for code in list_code(run)
    ]
