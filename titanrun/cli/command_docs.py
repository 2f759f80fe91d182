"""Help of a command as a Markdown page, and examples that fit a terminal."""

import re
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Mapping

# a remark follows its command after two or more blanks
REMARK_PATTERN = re.compile(r"( *)(\S.*?)(?: {2,}(\S.*))?")
# an argument with its quotes, in which blanks do not count
ARGUMENT_PATTERN = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
CONTINUATION = " \\"
SHARED_OPTIONS = ("--help", "--help-markdown", "--quiet", "--verbose")
INDEX_HEAD = """# Commands

Every command, with a page on its options and examples.

{table}

Every command has these options:

| option | meaning |
|---|---|
| `-h`, `--help` | the help, with examples |
| `-q`, `--quiet` | print only the result and errors |
| `-v`, `--verbose` | log to stderr which files are read |

Results go to stdout, everything else to stderr. `titanrun completion bash|zsh|fish` prints a
completion script.

The exit code says how a command ended: [Exit codes](exit_codes.md) lists all.
"""


def wrap_examples(text: str, width: int) -> str:
    """Wrap the lines of examples.

    If one remark does not fit next to its command, all remarks are put above their commands. A
    command that is too long is continued after a backslash, so that it can still be pasted.
    """
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return text
    moved = "\n".join(map(move_remark_above, lines)).split("\n")
    return "\n".join(break_command(line, width) for line in moved)


def break_command(line: str, width: int) -> str:
    """Break a line with a command into lines that a shell reads as one.

    A quoted argument is never broken.
    """
    if len(line) <= width or line.lstrip().startswith("#"):
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    pieces = [""]
    for word in ARGUMENT_PATTERN.findall(line):
        if pieces[-1] and len(f"{indent}{pieces[-1]} {word}{CONTINUATION}") > width:
            pieces.append(f"  {word}")
        else:
            pieces[-1] = f"{pieces[-1]} {word}" if pieces[-1] else word
    return f"{CONTINUATION}\n".join(f"{indent}{piece}" for piece in pieces)


def select_examples(command: str, examples: str) -> str:
    """Return the examples of one subcommand, or all if it has none of its own."""
    own = [line for line in examples.split("\n") if f"titanrun {command} " in f"{line} "]
    return "\n".join(own) if own and " " in command else examples


def move_remark_above(line: str) -> str:
    """Move the remark of an example to a separate line above."""
    found = REMARK_PATTERN.fullmatch(line)
    return f"{found[1]}# {found[3]}\n{found[1]}{found[2]}" if found and found[3] else line


def format_command_page(parser: ArgumentParser) -> str:
    """Format the page of one command."""
    actions = [action for action in parser._actions if action.help is not SUPPRESS]
    words = [action for action in actions if not action.option_strings]
    options = [
        action
        for action in actions
        if action.option_strings and action.option_strings[-1] not in SHARED_OPTIONS
    ]
    changes, _, examples = (parser.epilog or "").partition("examples:\n")
    overrides = " [path=value ...]" if changes else ""
    usage = (
        " ".join([parser.prog, *["[OPTION ...]"] * bool(options), *map(format_usage_word, words)])
        + overrides
    )
    parts = [
        f"# {parser.prog}",
        parser.description or "",
        f"```\n{usage}\n```",
        format_argument_table("argument", words),
        format_argument_table("option", options),
    ]
    parts += [
        format_sentence(changes.strip()),
        "```\n" + "\n".join(line.removeprefix("  ") for line in examples.split("\n")) + "\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_command_index(summaries: Mapping[str, str]) -> str:
    """Format the page that lists all commands."""
    rows = [f"| [{name}](commands/{name}.md) | {summary} |" for name, summary in summaries.items()]
    return INDEX_HEAD.format(table="\n".join(["| command | description |", "|---|---|", *rows]))


def format_argument_table(head: str, actions: list[Action]) -> str:
    """Format a table of arguments or options with their meaning."""
    rows = [
        f"| {format_argument_name(action)} | "
        f"{escape_table_cell(action.help or format_choices(action))} |"
        for action in actions
    ]
    return "\n".join([f"| {head} | meaning |", "|---|---|", *rows]) if rows else ""


def format_argument_name(action: Action) -> str:
    """Format an option with its value, or an argument, as code."""
    if not action.option_strings:
        return f"`{get_display_name(action)}`"
    shown = action.metavar or "|".join(map(str, action.choices or ())) or get_display_name(action)
    value = "" if action.nargs == 0 else f" {escape_table_cell(str(shown))}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def format_usage_word(action: Action) -> str:
    """Format an argument for the usage line."""
    name = get_display_name(action)
    # argparse hides nargs while positionals are mixed with options
    nargs = str(getattr(action, "save_nargs", action.nargs))
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(nargs, name)


def get_display_name(action: Action) -> str:
    """Return the displayed name of an argument or a value."""
    if isinstance(action.metavar, str):
        return action.metavar
    return action.dest if not action.option_strings else action.dest.upper()


def format_choices(action: Action) -> str:
    """Format the choices of an argument that has no help text."""
    return ", ".join(map(str, action.choices)) if action.choices else ""


def escape_table_cell(text: str) -> str:
    """Escape text for a table cell."""
    return text.replace("|", "\\|")


def format_sentence(text: str) -> str:
    """Format text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""
