"""A command's help as a page of Markdown, and examples that fit a terminal."""

import re
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Mapping

# a remark stands two blanks or more behind its command
REMARK = re.compile(r"( *)(\S.*?)(?: {2,}(\S.*))?")
SHARED_OPTIONS = ("--help", "--help-markdown", "--quiet", "--verbose")
INDEX_HEAD = """# Commands

{table}

Every command has these options:

| option | meaning |
|---|---|
| `-h`, `--help` | the help, with examples |
| `-q`, `--quiet` | say nothing beside the answer and errors |
| `-v`, `--verbose` | say on stderr what was read, and from where |

Answers go to stdout, everything else to stderr. Exit codes: 0 ok, 1 differs or warnings under `--strict`, 2 recipe or usage, 3 data,
4 checkpoint, 70 a fault of titanrun; the README lists what else a run can end with. `titanrun completion bash|zsh|fish` prints a
completion script.
"""


def fitted_examples(text: str, width: int) -> str:
    """The lines of examples; all remarks stand above their commands where one does not fit beside it."""
    lines = text.split("\n")
    return (
        text if all(len(line) <= width for line in lines) else "\n".join(map(remark_above, lines))
    )


def remark_above(line: str) -> str:
    """One line of examples, its remark on a line of its own."""
    found = REMARK.fullmatch(line)
    return f"{found[1]}# {found[3]}\n{found[1]}{found[2]}" if found and found[3] else line


def as_markdown(parser: ArgumentParser) -> str:
    """The page of one command."""
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
        " ".join([parser.prog, *["[OPTION ...]"] * bool(options), *map(word_text, words)])
        + overrides
    )
    parts = [
        f"# {parser.prog}",
        parser.description or "",
        f"```\n{usage}\n```",
        table("argument", words),
        table("option", options),
    ]
    parts += [
        capitalised(changes.strip()),
        "```\n" + "\n".join(line.removeprefix("  ") for line in examples.split("\n")) + "\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def index(summaries: Mapping[str, str]) -> str:
    """The page that lists all commands."""
    rows = [f"| [{name}](commands/{name}.md) | {summary} |" for name, summary in summaries.items()]
    return INDEX_HEAD.format(table="\n".join(["| command | what it does |", "|---|---|", *rows]))


def table(head: str, actions: list[Action]) -> str:
    """Arguments or options with what they mean."""
    rows = [
        f"| {name_text(action)} | {escaped(action.help or choices_text(action))} |"
        for action in actions
    ]
    return "\n".join([f"| {head} | meaning |", "|---|---|", *rows]) if rows else ""


def name_text(action: Action) -> str:
    """An option with its value, or an argument, as code."""
    if not action.option_strings:
        return f"`{shown_name(action)}`"
    value = (
        ""
        if action.nargs == 0
        else f" {escaped('|'.join(map(str, action.choices)) if action.choices else shown_name(action))}"
    )
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def word_text(action: Action) -> str:
    """An argument in the usage line."""
    name = shown_name(action)
    # argparse hides the number of words while options are mixed with them
    nargs = str(getattr(action, "save_nargs", action.nargs))
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(nargs, name)


def shown_name(action: Action) -> str:
    """What an argument or a value is called."""
    if isinstance(action.metavar, str):
        return action.metavar
    return action.dest if not action.option_strings else action.dest.upper()


def choices_text(action: Action) -> str:
    """The values to choose from, for what has no sentence."""
    return ", ".join(map(str, action.choices)) if action.choices else ""


def escaped(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|")


def capitalised(text: str) -> str:
    """A sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""
