"""Prompts and answers of the records of JSONL files."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from titanrun.components.data.spec.chat_content import JSON_TYPE_NAMES
from titanrun.components.data.spec.compression import open_decompressed_text
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.rl.prompts.config import PromptRecordsConfig, QuestionsConfig


def iter_jsonl_prompts(config: QuestionsConfig) -> Iterator[tuple[str, str]]:
    """Yield prompt and answer of each line of the files.

    Raises:
        ProblemsFound: If a file cannot be read, or a line has no prompt or no answer.
    """
    for file in [] if config.path is None else resolve_data_files(config.path, (".jsonl",)):
        for number, line in iter_numbered_lines(file):
            yield parse_prompt_line(line, config, f"line {number} of '{file}'")


def iter_numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, with their numbers from 1 on."""
    try:
        with open_decompressed_text(file) as lines:
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise problem_error(
            "data",
            f"'{file}' cannot be read: {error}",
            path=("path",),
            hint="save it as UTF-8",
        ) from None


def parse_prompt_line(line: str, config: QuestionsConfig, location: str) -> tuple[str, str]:
    """Parse prompt and answer of a line of JSON."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise problem_error(
            "data", f"{location} is not valid JSON: {error}", path=("path",)
        ) from None
    return parse_prompt_record(record, config, location)


def parse_prompt_record(record: Any, config: PromptRecordsConfig, location: str) -> tuple[str, str]:
    """Return prompt and answer of a record. A prompt may be messages, whose first one counts."""
    columns = {"prompt_column": config.prompt_column, "answer_column": config.answer_column}
    if isinstance(record, dict):
        record = dict(record)
        prompt = record.get(config.prompt_column)
        if is_message_list(prompt):
            record[config.prompt_column] = read_user_message(prompt, config, location)
    for field, column in columns.items():
        if column is not None and (
            not isinstance(record, dict) or not isinstance(record.get(column), str)
        ):
            raise problem_error(
                "data",
                f"{location} {describe_missing_text(record, column)}",
                path=(field,),
                hint=describe_text_key(record, field, columns),
            )
    if not record[config.prompt_column]:
        raise problem_error("data", f"{location} has an empty prompt", path=("prompt_column",))
    answer = ""
    if config.answer_column is not None:
        answer = extract_expected_answer(record[config.answer_column], config, location)
    return record[config.prompt_column], answer


def is_message_list(prompt: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether a prompt is a list of messages with roles."""
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(message, dict) and "role" in message for message in prompt)
    )


def read_user_message(
    messages: list[dict[str, Any]], config: PromptRecordsConfig, location: str
) -> str:
    """Return the text of the first message, which is the user's.

    The replies after it, and what follows them, are not part of the prompt.

    Raises:
        ProblemsFound: Another message comes first, or before the first reply, or it has no text.
    """
    roles = [message["role"] for message in messages[:2]]
    content = messages[0].get("content")
    if roles not in (["user"], ["user", "assistant"]) or not isinstance(content, str):
        raise problem_error(
            "data",
            f"{location} has messages in '{config.prompt_column}' that do not begin with one text "
            "of the user",
            path=("prompt_column",),
            hint="begin each record with one message of the user, or write its text alone; what "
            "the system says comes first in that text",
        )
    return content


def describe_missing_text(record: Any, column: str) -> str:
    """Return what a record has instead of a text in a column."""
    if isinstance(record, dict) and column in record:
        value = record[column]
        kind = JSON_TYPE_NAMES.get(type(value), type(value).__name__)
        return f"has {kind} in '{column}', not text"
    held = f"; it has: {', '.join(record)}" if isinstance(record, dict) and record else ""
    return f"has no text in '{column}'{held}"


def describe_text_key(record: Any, field: str, columns: Mapping[str, str | None]) -> str:
    """Return what to write for the key of a text, with its name if only one can be meant.

    Args:
        record: the record, which has no text at that key.
        field: the setting that names the key.
        columns: the keys that each setting names.
    """
    taken = {column for name, column in columns.items() if name != field}
    found = record if isinstance(record, dict) else {}
    texts = [key for key, value in found.items() if isinstance(value, str) and key not in taken]
    without = ", or to null where no reward reads answers" * (field == "answer_column")
    if columns[field] in found:
        also = f"; or set {field}{without.removeprefix(', or')}" if without else ""
        return f"write it as a text in quotes{also}"
    if len(texts) == 1:
        return f"set {field}: {to_flow_yaml(texts[0])}{without}"
    return f"set {field} to the key that holds the text{without}"


def extract_expected_answer(text: str, config: PromptRecordsConfig, location: str) -> str:
    """Extract the expected answer from the text of its column."""
    if config.answer_pattern is None:
        return text
    try:
        found = re.search(config.answer_pattern, text)
    except re.error as error:
        raise problem_error(
            "data", f"the pattern cannot be read: {error}", path=("answer_pattern",)
        ) from None
    if found is None:
        raise problem_error(
            "data",
            f"{location} has no match in '{config.answer_column}'",
            path=("answer_pattern",),
            hint="use a pattern that matches every answer",
        )
    return str(found[1 if found.re.groups else 0] or "")
