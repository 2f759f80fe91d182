"""Contents of messages: texts, parts, tool calls, and the tools of a conversation."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error

Message = dict[str, Any]
TOOLS_COLUMN = "tools"
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys of what an assistant thinks before its reply, the first one preferred."""
JSON_TYPE_NAMES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
"""Names of JSON types."""
REMOVE_HINT = "remove such conversations"


def parse_content(message: Mapping[str, Any], key: str, location: str) -> Any:
    """Return the content of a message: a text, a list of text parts, or None with tool calls.

    Raises:
        ProblemsFound: A data problem for anything else.
    """
    value = message.get(key)
    if value is None and message.get("tool_calls"):
        return None
    if isinstance(value, list):
        return [
            parse_text_part(part, f"{location} part {number} of")
            for number, part in enumerate(value, start=1)
        ]
    check_text(value, key, location)
    return value


def parse_text_part(part: Any, location: str) -> dict[str, Any]:
    """Return a part of a message's content.

    Raises:
        ProblemsFound: A data problem unless it is `{"type": "text", "text": "..."}`.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        found = f"type {kind!r}" if isinstance(kind, str) else "no type"
        raise problem_error(
            "data",
            f"{location} 'content' has {found}, but only text can be trained on",
            path=("path",),
            hint='write {"type": "text", "text": "..."}, or remove such conversations',
        )
    check_text(part.get("text"), "text", location)
    return {name: value for name, value in part.items() if value is not None}


def check_text(value: Any, column: str, location: str) -> None:
    """Check that a value is text."""
    if not isinstance(value, str):
        kind = JSON_TYPE_NAMES.get(type(value), type(value).__name__)
        message = f"{location} has {kind} in '{column}', not text"
        raise problem_error("data", message, path=("path",), hint=REMOVE_HINT)
    check_message_characters(value, column, location)


def check_message_characters(value: Any, column: str, location: str) -> None:
    """Check the characters of all texts in a value.

    Half a surrogate pair, which JSON can encode, is a data problem: it is not a character and has
    no token.
    """
    for text in iter_texts(value):
        # U+FDD0 and U+FDD1 are noncharacters too: they mark replies in the output of a template
        bad = next(
            (
                number
                for number, letter in enumerate(text, start=1)
                if "\ud800" <= letter <= "\udfff" or letter in "\ufdd0\ufdd1"
            ),
            None,
        )
        if bad is not None:
            message = f"{location} has an invalid Unicode character in '{column}' at position {bad}"
            raise problem_error(
                "data", message, path=("path",), hint="write the whole character, or remove it"
            )


def iter_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, names of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from iter_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from iter_texts(item)


def check_tool_calls(message: Mapping[str, Any], location: str) -> None:
    """Check that the tool calls of a message, if it has any, are a list of objects."""
    calls = message.get("tool_calls")
    if calls is None or (isinstance(calls, list) and all(isinstance(one, dict) for one in calls)):
        return
    raise problem_error(
        "data",
        f"{location} has no list of calls in 'tool_calls'",
        path=("path",),
        hint='write [{"type": "function", "function": {"name": "...", "arguments": {...}}}]',
    )


def parse_tools(record: Mapping[str, Any], location: str) -> list[dict[str, Any]] | None:
    """Return the tools of a record, a list or its JSON text, or None without tools.

    Raises:
        ProblemsFound: A data problem if they are no list of objects.
    """
    value = record.get(TOOLS_COLUMN)
    if isinstance(value, str):
        # a text that is not JSON is reported as it is: it is no list
        with suppress(ValueError):
            value = parse_json(value) if value.strip() else None
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise problem_error(
            "data",
            f"{location} has no list of tools in '{TOOLS_COLUMN}'",
            path=("path",),
            hint='write [{"type": "function", "function": {"name": "...", ...}}], or its JSON text',
        )
    check_message_characters(value, TOOLS_COLUMN, location)
    return value


def join_parts(content: Any) -> str:
    """Return the text of a message's content, empty without content."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""
