"""Option `--plugins` of commands that describe recipes but read none.

A recipe would list its plug-ins.
"""

from argparse import Namespace

from titanrun.cli.arguments import CommandParser
from titanrun.config.problems import ProblemsFound


def add_plugins_option(parser: CommandParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--plugins",
        metavar="NAME,...",
        help="also describe the additions of these installed plug-ins",
    )


def use_plugins(options: Namespace) -> None:
    """Enable the named plug-ins. Raise ProblemsFound for unknown ones."""
    if options.plugins is None:
        return
    # imported here, so that `explain` of a problem code imports no config
    from titanrun.recipe.plugins import activate_plugins

    problems = activate_plugins([name for name in options.plugins.split(",") if name])
    if problems:
        raise ProblemsFound(problems)
