"""Multiple-choice questions of a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.near_path import explain_missing_path
from titanrun.config.problems import ProblemsFound, problem_error

TASK_PATH_FIELD = ("path",)
QUESTION_FORMAT_HINT = 'write {"question": "...", "choices": ["...", "..."], "answer": 0}'


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """Question, its choices, and the index of the correct one."""

    question: str
    choices: tuple[str, ...]
    answer: int


def load_choice_questions(file: Path) -> list[ChoiceQuestion]:
    """Return the questions of a file.

    Raises:
        ProblemsFound: A data problem that names the line of an invalid question.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise problem_error(
            "data",
            f"file not found: '{file}'",
            path=TASK_PATH_FIELD,
            hint=explain_missing_path(str(file)),
        ) from None
    except OSError as error:
        raise problem_error(
            "data",
            f"'{file}' cannot be read: {error.strerror}",
            path=TASK_PATH_FIELD,
            hint="name a file that can be read",
        ) from None
    except UnicodeDecodeError as error:
        raise problem_error(
            "data",
            f"'{file}' cannot be read: {error}",
            path=TASK_PATH_FIELD,
            hint=QUESTION_FORMAT_HINT,
        ) from None
    found = [
        parse_choice_question(line, f"'{file}' line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise problem_error(
            "data", f"'{file}' has no questions", path=TASK_PATH_FIELD, hint=QUESTION_FORMAT_HINT
        )
    return found


def parse_choice_question(line: str, location: str) -> ChoiceQuestion:
    """Parse the question in a line."""
    try:
        data = parse_json(line)
    except ValueError as error:
        raise problem_error(
            "data",
            f"{location} is not JSON: {error}",
            path=TASK_PATH_FIELD,
            hint=QUESTION_FORMAT_HINT,
        ) from None
    if not isinstance(data, dict):
        raise malformed_question_error(location, "it is not an object")
    return build_choice_question(data, location)


def build_choice_question(data: Mapping[str, Any], location: str) -> ChoiceQuestion:
    """Return the question of a record."""
    question, choices, answer = (data.get(key) for key in ("question", "choices", "answer"))
    if not isinstance(question, str) or not question.strip():
        reason = "is empty" if isinstance(question, str) else "is not a text"
        raise malformed_question_error(location, f"'question' {reason}")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise malformed_question_error(location, "'choices' is not a list of two texts or more")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise malformed_question_error(
            location, f"'answer' is not an index of its {len(choices)} choices, counted from 0"
        )
    return ChoiceQuestion(question, tuple(choices), answer)


def malformed_question_error(location: str, reason: str) -> ProblemsFound:
    """Build the problem of an invalid line."""
    return problem_error(
        "data",
        f"{location} is not a question: {reason}",
        path=TASK_PATH_FIELD,
        hint=QUESTION_FORMAT_HINT,
    )
