"""Writes plain data as canonical YAML, or as TOML."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

INDENT = "  "
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
# words that mean themselves wherever a value may stand, also between braces
PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
TOML_KEY = re.compile(r"[A-Za-z0-9_-]+")
# words that some YAML reader takes for null or a boolean
RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
# DEL and C1 controls, line and paragraph separators, byte order mark, non-characters: YAML readers drop or refuse them unescaped
FRAGILE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
SURROGATE = re.compile("[\ud800-\udfff]")


def emit(data: Mapping[str, object]) -> str:
    """`data` as canonical YAML 1.2: block style, two spaces, LF, text in double quotes, floats by repr.

    Takes dicts with text keys, lists, tuples and scalars. Raises ValueError for text with lone surrogates, TypeError for the rest.
    """
    return "".join(f"{line}\n" for line in block(data)) if data else "{}\n"


def block(value: object) -> Iterator[str]:
    """The lines of a mapping or list that is not empty, without indentation."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from entry(f"{key_text(key, PLAIN_KEY)}:", child)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from bullet(item)


def entry(head: str, value: object) -> Iterator[str]:
    """The lines of one key and its value."""
    if is_block(value):
        yield head
        yield from (INDENT + line for line in block(value))
    else:
        yield f"{head} {scalar(value)}"


def bullet(value: object) -> Iterator[str]:
    """The lines of one list item: the first line of a mapping or list stands behind the dash."""
    lines = list(block(value)) if is_block(value) else [scalar(value)]
    yield f"- {lines[0]}"
    yield from (INDENT + line for line in lines[1:])


def is_block(value: object) -> bool:
    """Whether a value takes lines of its own."""
    return isinstance(value, Mapping | list | tuple) and bool(value)


def scalar(value: object) -> str:
    """A scalar, or an empty mapping or list."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return "null" if value is None else scalar_text(value)


def scalar_text(value: object) -> str:
    """A scalar that YAML and TOML write alike."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) in (int, float):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    raise TypeError(f"a recipe cannot hold a {type(value).__name__}")


def plain_scalar(value: object) -> str:
    """A scalar inside longer text: text as it is, everything else as in YAML."""
    return value if isinstance(value, str) else scalar(value)


def readable(value: object) -> str:
    """A scalar as people write it: words that YAML reads as text stand without quotes."""
    if isinstance(value, str) and PLAIN_WORD.fullmatch(value) and value.lower() not in RESERVED:
        return value
    return scalar(value)


def flow(value: object) -> str:
    """A value on one line of YAML, as people write it: `{name: adamw, lr: 0.001}`."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{key_text(key, PLAIN_KEY)}: {flow(child)}" for key, child in value.items()
            )
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return readable(value)


def quoted(text: str) -> str:
    """Text in double quotes with JSON's escapes; everything printable stands as it is."""
    if SURROGATE.search(text):
        raise ValueError("text with a lone surrogate cannot be written")
    return FRAGILE.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False)
    )


def key_text(key: object, unquoted: re.Pattern[str]) -> str:
    """A key, in quotes where it could be read as something else."""
    if not isinstance(key, str):
        raise TypeError(f"a key must be text, not {type(key).__name__}")
    return key if unquoted.fullmatch(key) and key.lower() not in RESERVED else quoted(key)


def emit_toml(data: Mapping[str, object]) -> str:
    """`data` as TOML 1.0, sections as tables, lists of mappings as arrays of tables; null, which TOML lacks, is the text "null"."""
    return "\n".join(toml_table(data, ())).lstrip("\n") + "\n" if data else ""


def toml_table(data: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a table: its plain values, then its tables, since what follows a table's header belongs to that table."""
    for key, value in data.items():
        if not isinstance(value, Mapping) and not is_table_list(value):
            yield f"{key_text(key, TOML_KEY)} = {toml_value(value)}"
    for key, value in data.items():
        name = (*path, key_text(key, TOML_KEY))
        if isinstance(value, Mapping):
            yield from ("", f"[{'.'.join(name)}]")
            yield from toml_table(value, name)
        elif is_table_list(value):
            for item in value:
                yield from ("", f"[[{'.'.join(name)}]]")
                yield from toml_table(item, name)


def is_table_list(value: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    """Whether a value is a list of mappings only."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def toml_value(value: object) -> str:
    """A value on one line."""
    if value is None:
        return '"null"'
    if isinstance(value, Mapping):
        pairs = ", ".join(
            f"{key_text(key, TOML_KEY)} = {toml_value(child)}" for key, child in value.items()
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return scalar_text(value)
