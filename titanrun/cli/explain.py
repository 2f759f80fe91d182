"""`titanrun explain`: explain a field, a component, a problem code or a rule."""

import json
import sys

from titanrun.cli.arguments import CommandParser
from titanrun.cli.plugin_option import add_plugins_option, use_plugins
from titanrun.cli.terminal import get_terminal_width, wrap_to_width
from titanrun.config.problems import ProblemsFound

EXAMPLES = """\
  titanrun explain training.seq_len    a field: type, default, unit, effect of a change
  titanrun explain optimizer           a section and its fields
  titanrun explain optimizer:adamw     a component and its fields
  titanrun explain unknown-key         a problem code: cause and fix
  titanrun explain batch-sizes-divide  a rule, named after the slash of a problem
  titanrun explain warmup              a word to search for in fields, components and rules
  titanrun explain resume              a command, and what the reference says of the word
  titanrun explain optimizer:lion --plugins ./lion.py
  titanrun explain --all > reference.md"""


def run(arguments: list[str]) -> int:
    """Print entries of the reference, all of it, or what it explains."""
    parser = CommandParser(
        "explain", "Explain a field, a component, a problem code or a rule.", EXAMPLES
    )
    parser.add_argument(
        "word",
        nargs="*",
        help="a path, slot:name, a problem code, a rule, a command, or a word to search for",
    )
    parser.add_argument("--all", action="store_true", help="print the whole reference as Markdown")
    parser.add_argument("--json", action="store_true", help="one JSON object per word")
    add_plugins_option(parser)
    options = parser.parse_args(arguments)
    use_plugins(options)
    if options.all:
        from titanrun.recipe.reference.reference_page import build_reference_page

        sys.stdout.write(build_reference_page())
        return 0
    if not options.word:
        from titanrun.recipe.reference.explain_overview import format_overview

        sys.stdout.write(wrap_to_width(format_overview(), get_terminal_width()))
        return 0
    from titanrun.recipe.reference.tool_words import find_tool_word

    together = " ".join(options.word)
    words = [together] if find_tool_word(together) else options.word
    if options.json:
        for word in words:
            print(json.dumps({"word": word, "text": explain_any_word(word)}, ensure_ascii=False))
        return 0
    columns = get_terminal_width()
    text = "\n".join(explain_any_word(word, columns) for word in words)
    sys.stdout.write(wrap_to_width(text, columns))
    return 0


def explain_any_word(word: str, columns: int | None = None) -> str:
    """Return what the command of that name does, and what the reference explains.

    Raises:
        ProblemsFound: With a suggestion if there is neither.
    """
    from titanrun.recipe.reference.explain import explain_word

    command = format_command(word)
    try:
        return "\n".join(filter(None, [command, explain_word(word, columns=columns)]))
    except ProblemsFound:
        if not command:
            raise
        return command


def format_command(word: str) -> str:
    """Return what a command does, by its name or a word that people type for it; else nothing."""
    from titanrun.cli.main import COMMAND_SYNONYMS, COMMANDS

    name = COMMAND_SYNONYMS.get(word, word)
    summary = COMMANDS.get(name.partition(" ")[0])
    if summary is None:
        return ""
    return f"titanrun {name}\n  {summary}: see titanrun {name} --help\n"
