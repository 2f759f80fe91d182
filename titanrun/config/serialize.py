"""Serialization of plain data as canonical YAML or TOML."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

INDENT = "  "
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
# words that are literal in every value position, also between braces
PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
TOML_KEY = re.compile(r"[A-Za-z0-9_-]+")
# words that some YAML readers parse as null or a boolean
RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
# DEL and C1 controls, line and paragraph separators, byte order mark, non-characters: YAML readers
# drop or reject them unescaped
UNSAFE_CHARACTERS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
SURROGATE = re.compile("[\ud800-\udfff]")


def to_yaml(data: Mapping[str, object]) -> str:
    """Serialize `data` as canonical YAML 1.2.

    Block style, two spaces, LF, text in double quotes, floats by repr. Accepts dicts with text
    keys, lists, tuples and scalars. Raises ValueError for text with lone surrogates, TypeError for
    other types.
    """
    return "".join(f"{line}\n" for line in iter_block_lines(data)) if data else "{}\n"


def iter_block_lines(value: object) -> Iterator[str]:
    """Yield the lines of a non-empty mapping or list, without indentation."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from iter_entry_lines(f"{format_key(key, PLAIN_KEY)}:", child)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_list_item_lines(item)


def iter_entry_lines(head: str, value: object) -> Iterator[str]:
    """Yield the lines of one key and its value."""
    if is_block(value):
        yield head
        yield from (INDENT + line for line in iter_block_lines(value))
    else:
        yield f"{head} {format_yaml_scalar(value)}"


def iter_list_item_lines(value: object) -> Iterator[str]:
    """Yield the lines of one list item.

    The first line of a mapping or list follows the dash.
    """
    lines = list(iter_block_lines(value)) if is_block(value) else [format_yaml_scalar(value)]
    yield f"- {lines[0]}"
    yield from (INDENT + line for line in lines[1:])


def is_block(value: object) -> bool:
    """Return whether a value needs several lines."""
    return isinstance(value, Mapping | list | tuple) and bool(value)


def format_yaml_scalar(value: object) -> str:
    """Format a scalar, or an empty mapping or list."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return "null" if value is None else format_common_scalar(value)


def format_common_scalar(value: object) -> str:
    """Format a scalar that YAML and TOML write in the same way."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) in (int, float):
        return repr(value)
    if isinstance(value, str):
        return quote_text(value)
    raise TypeError(f"a recipe cannot contain a {type(value).__name__}")


def format_embedded_scalar(value: object) -> str:
    """Format a scalar inside longer text: text literally, everything else as in YAML."""
    return value if isinstance(value, str) else format_yaml_scalar(value)


def format_readable_scalar(value: object) -> str:
    """Format a scalar for people: words that YAML reads as text have no quotes."""
    if isinstance(value, str) and PLAIN_WORD.fullmatch(value) and value.lower() not in RESERVED:
        return value
    return format_yaml_scalar(value)


def to_flow_yaml(value: object) -> str:
    """Format a value on one line of YAML for people: `{name: adamw, lr: 0.001}`."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{format_key(key, PLAIN_KEY)}: {to_flow_yaml(child)}"
                for key, child in value.items()
            )
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_flow_yaml(item) for item in value) + "]"
    return format_readable_scalar(value)


def quote_text(text: str) -> str:
    """Quote text with JSON's escapes; printable characters stay literal."""
    if SURROGATE.search(text):
        raise ValueError("text with a lone surrogate cannot be written")
    return UNSAFE_CHARACTERS.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False)
    )


def format_key(key: object, plain_pattern: re.Pattern[str]) -> str:
    """Format a key, quoted if it could be read as something else."""
    if not isinstance(key, str):
        raise TypeError(f"a key must be text, not {type(key).__name__}")
    return key if plain_pattern.fullmatch(key) and key.lower() not in RESERVED else quote_text(key)


def to_toml(data: Mapping[str, object]) -> str:
    """Serialize `data` as TOML 1.0.

    Sections become tables, lists of mappings arrays of tables. null, which TOML lacks, becomes the
    text "null".
    """
    return "\n".join(iter_toml_lines(data, ())).lstrip("\n") + "\n" if data else ""


def iter_toml_lines(data: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: plain values first, then subtables.

    Lines after the header of a subtable would belong to that subtable.
    """
    for key, value in data.items():
        if not isinstance(value, Mapping) and not is_table_list(value):
            yield f"{format_key(key, TOML_KEY)} = {format_toml_value(value)}"
    for key, value in data.items():
        name = (*path, format_key(key, TOML_KEY))
        if isinstance(value, Mapping):
            yield from ("", f"[{'.'.join(name)}]")
            yield from iter_toml_lines(value, name)
        elif is_table_list(value):
            for item in value:
                yield from ("", f"[[{'.'.join(name)}]]")
                yield from iter_toml_lines(item, name)


def is_table_list(value: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    """Return whether a value is a list of mappings only."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def format_toml_value(value: object) -> str:
    """Format a value on one line."""
    if value is None:
        return '"null"'
    if isinstance(value, Mapping):
        pairs = ", ".join(
            f"{format_key(key, TOML_KEY)} = {format_toml_value(child)}"
            for key, child in value.items()
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_toml_value(item) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return format_common_scalar(value)
