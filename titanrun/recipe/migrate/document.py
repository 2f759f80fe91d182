"""docs/migration.md: the migration table as a page for people who come from torchtitan."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from titanrun.config.emit import toml_value
from titanrun.recipe.migrate.extensions import (
    EXPERIMENTS,
    EXTENSIONS,
    IMPLIED,
    OLD_SPELLINGS,
    OLDER,
)
from titanrun.recipe.migrate.keys import Key
from titanrun.recipe.migrate.layouts import LATER, MOVES, ROWS
from titanrun.recipe.migrate.table import CORE

HEAD = """\
# From torchtitan

```sh
titanrun migrate --from torchtitan llama3_8b.toml -o llama3_8b.yaml
```

makes a recipe of a TOML file that torchtitan 0.2 reads; comments come along. A report on stderr says what became of each key:

- *mapped*: the same meaning, here or at another path;
- *changed*: carried over, and it means something else here; the report says what;
- *left out*: nothing reads it with these settings, or titanrun needs no such switch. Where it has a place it stands in the recipe
  behind a `#`, to be switched on;
- *refused*: this version of titanrun cannot do it. The key stands at the end of the recipe as a comment, with the reason.

A key that the file does not have had torchtitan's default: where titanrun's is another, the recipe spells torchtitan's out. So an
empty file becomes torchtitan 0.2.2's default run. Whether a target is built is looked up when the command runs: what is refused
today as "not built" is carried over as soon as it is there, and this page lists where it will go.

The exit code is 0 when no key was refused and the recipe validates, 1 when one was or it does not, 2 when the file cannot be read.
With `-q` the report is cut to what is refused. Nothing is ever overwritten.

`titanrun migrate --from torchtitan FILE.json` reads the config dumps of torchtitan 0.2.2 and of later versions, which have other
layouts (see below); in the recipe they leave out what titanrun has by default too.

`titanrun migrate FILE` brings a recipe of titanrun itself up to date: it shows as a patch what has a new name, `--check` exits 1
if anything has, `--write` changes these places of the file and no other byte.

Written by `tools/write_reference.py` from the table that the command reads. Its paths and defaults were compared with the
configuration classes in the wheel of torchtitan 0.2.2: all 149 keys agree, and so do the 35 of its extensions.

## The keys of torchtitan 0.2.2

*Read while* is a condition of torchtitan's: without it the key does nothing there, and is left out here.
"""
COLUMNS = ("torchtitan", "default", "titanrun", "read while", "what changes, or why not")


def document() -> str:
    """The whole page."""
    return "\n".join([HEAD, *core(), *implied(), *extensions(), *older(), *later()]) + "\n"


def core() -> Iterator[str]:
    """One table a section."""
    sections: dict[str, list[Key]] = {}
    for key in CORE:
        sections.setdefault(key.path.partition(".")[0], []).append(key)
    for section, keys in sections.items():
        yield f"### `[{section}]`\n"
        yield from key_table(keys)
        yield ""


def key_table(
    keys: Iterable[Key], program: str = "torchtitan", spelled: Callable[[Any], str] = toml_value
) -> Iterator[str]:
    """Rows of keys."""
    yield row((program, *COLUMNS[1:]))
    yield row("---" for _ in COLUMNS)
    for key in keys:
        default = "unset" if key.default is None else f"`{spelled(key.default)}`"
        conditions = " and ".join(need.words.removeprefix("with ") for need in key.needs)
        yield row((f"`{key.path}`", default, target_words(key), conditions, remark(key)))


def remark(key: Key) -> str:
    """What changes in meaning, or how values are spelled."""
    if key.how or key.convert is None:
        return key.how.removeprefix("left out: ")
    sentence = (key.convert.__doc__ or "").partition("\n")[0].removesuffix(".")
    return sentence[0].lower() + sentence[1:]


def target_words(key: Key) -> str:
    """Where a key goes."""
    if key.target is None:
        return "refused" if key.outcome == "refused" else "nowhere"
    return "the same" if key.target == key.path else f"`{key.target}`"


def implied() -> Iterator[str]:
    """What torchtitan does without being asked."""
    yield "## What torchtitan does without a key for it\n"
    yield "The recipe says it, where its dataset has the setting:\n"
    for target, value, why in IMPLIED:
        yield f"- `{target}: {toml_value(value)}`: {why}"


def extensions() -> Iterator[str]:
    """torchtitan's experiments, and the keys that they and its models add."""
    yield "\n## Extensions and experiments\n"
    for name, fate in EXPERIMENTS.items():
        yield f"- {name}: {fate}"
    yield "\nTheir keys:\n"
    yield from key_table(EXTENSIONS)
    yield "\nA module of your own in `job.custom_config_module` is refused, with its keys: recipes import nothing. A plug-in, an"
    yield "installed package that the recipe lists under `plugins`, can add components to every slot."


def older() -> Iterator[str]:
    """Spellings before 0.2.2."""
    yield "\n## Older spellings\n"
    for old, new in OLD_SPELLINGS.items():
        yield f"- `{old}*` is `{new}*`" if old.endswith(".") else f"- `{old}` is `{new}`"
    yield "- the converters `float8` and `mx` are `quantize.linear.float8` and `quantize.linear.mx`"
    yield "- a filter `lm_head` is `output`"
    for key in OLDER:
        yield f"- `{key.path}` is refused: {key.how}"


def later() -> Iterator[str]:
    """Dumps of versions after 0.2.2."""
    yield "\n## Config dumps of later versions\n"
    yield "Their keys are brought back to those of 0.2.2 first:\n"
    for new, old in {
        **MOVES,
        **{f"training.{tokens}": rows for tokens, rows in ROWS.items()},
    }.items():
        yield f"- `{new}*` is `{old}*`" if new.endswith(".") else f"- `{new}` is `{old}`"
    yield "\nA number of tokens becomes a number of rows of `training.max_context_length`; one optimizer group that takes all parameters"
    yield "becomes the `optimizer` section, and several are refused; converters and the kind of activation checkpointing are told by"
    yield "their fields, since a dump does not name them. What only later versions have:\n"
    yield from key_table(LATER)


def row(texts: Iterable[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
