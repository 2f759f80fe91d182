"""The option `--plugins` of commands that describe what a recipe may hold, and read none that would list plug-ins."""

from argparse import Namespace

from titanrun.cli.arguments import Parser
from titanrun.config.problems import ProblemsFound


def takes_plugins(parser: Parser) -> None:
    """Add the option."""
    parser.add_argument(
        "--plugins", metavar="NAME,...", help="describe what these installed plug-ins add too"
    )


def use_plugins(options: Namespace) -> None:
    """Put the plug-ins that are named into use. Raises ProblemsFound."""
    if options.plugins is None:
        return
    # here, so that `explain` of a problem code imports no config
    from titanrun.recipe.plugins import use

    problems = use([name for name in options.plugins.split(",") if name])
    if problems:
        raise ProblemsFound(problems)
