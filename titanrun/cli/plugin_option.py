"""Option `--plugins` of commands that describe recipes but read none.

A recipe would list its plug-ins.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText

OPTION = "--plugins"


def add_plugins_option(parser: CommandParser) -> None:
    """Add the option, and that of consent to a plug-in file."""
    parser.add_argument(
        OPTION,
        metavar="NAME,...",
        help="also describe the additions of these plug-ins: installed ones, or files such as "
        "./mine.py",
    )
    parser.add_trust_option()


def use_plugins(options: Namespace) -> None:
    """Enable the named plug-ins; files are relative to the working directory.

    Raises:
        ProblemsFound: one is unknown, or a file that has not been allowed.
    """
    if options.plugins is None:
        return
    # imported here, so that `explain` of a problem code imports no config
    from titanrun.cli.consent import ask_about_plugin_files, remember_codes
    from titanrun.recipe.plugins import activate_plugins, get_plugin_codes

    names = [name for name in options.plugins.split(",") if name]
    ask_about_plugin_files()
    problems = activate_plugins(names, {name: [Path(name)] for name in names})
    if options.trust:
        remember_codes(get_plugin_codes())
    if problems:
        raise ProblemsFound([locate_in_option(problem, names) for problem in problems])


def locate_in_option(problem: Problem, names: Sequence[str]) -> Problem:
    """Return a problem of a listed plug-in with its place on the command line."""
    index = problem.path[-1] if problem.path else None
    if not isinstance(index, int):
        return problem
    text = f"{OPTION} {names[index]}"
    start = len(OPTION) + 2
    origin = Origin(SourceText(text, text, kind="override"), 1, start, len(text) + 1)
    is_missing = problem.message.startswith("plug-in file not found")
    hint = "its path is relative to the working directory" if is_missing else problem.hint
    return replace(problem, path=(), origin=origin, hint=hint)
