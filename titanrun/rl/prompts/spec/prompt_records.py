"""Prompts and answers of the records of JSONL files."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
    """Return prompt and answer of a record."""
    columns = {"prompt_column": config.prompt_column, "answer_column": config.answer_column}
    for field, column in columns.items():
        if column is not None and (
            not isinstance(record, dict) or not isinstance(record.get(column), str)
        ):
            held = f"; it has: {', '.join(record)}" if isinstance(record, dict) and record else ""
            without = ", or to null where no reward reads answers" * (field == "answer_column")
            raise problem_error(
                "data",
                f"{location} has no text in '{column}'{held}",
                path=(field,),
                hint=f"{describe_text_key(record, field, columns)}{without}",
            )
    if not record[config.prompt_column]:
        raise problem_error("data", f"{location} has an empty prompt", path=("prompt_column",))
    answer = ""
    if config.answer_column is not None:
        answer = extract_expected_answer(record[config.answer_column], config, location)
    return record[config.prompt_column], answer


def describe_text_key(record: Any, field: str, columns: Mapping[str, str | None]) -> str:
    """Return what to write for the key of a text, with its name if only one can be meant.

    Args:
        record: the record, which has no text at that key.
        field: the setting that names the key.
        columns: the keys that each setting names.
    """
    taken = {column for name, column in columns.items() if name != field}
    texts = [
        key
        for key, value in (record if isinstance(record, dict) else {}).items()
        if isinstance(value, str) and key not in taken
    ]
    if len(texts) == 1:
        return f"set {field}: {to_flow_yaml(texts[0])}"
    return f"set {field} to the key that holds the text"


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
