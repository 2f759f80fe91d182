"""The questions of a file, each with several answers."""

import json
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import ProblemsFound, fail

PATH = ("path",)
FORM = 'write {"question": "...", "choices": ["...", "..."], "answer": 0}'


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and which of them is right."""

    question: str
    choices: tuple[str, ...]
    answer: int


def read_questions(file: Path) -> list[Question]:
    """The questions of a file. Raises a data problem that names the line where one has another form."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise fail(
            "data", f"there is no '{file}'", path=PATH, help=f"paths are relative to {Path.cwd()}"
        ) from None
    except OSError as error:
        raise fail(
            "data",
            f"'{file}' cannot be read: {error.strerror}",
            path=PATH,
            help="name a file that can be read",
        ) from None
    except UnicodeDecodeError as error:
        raise fail("data", f"'{file}' cannot be read: {error}", path=PATH, help=FORM) from None
    found = [
        read_question(line, f"'{file}' line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise fail("data", f"'{file}' has no questions", path=PATH, help=FORM)
    return found


def read_question(line: str, place: str) -> Question:
    """The question in a line."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise fail("data", f"{place} is not JSON: {error}", path=PATH, help=FORM) from None
    if not isinstance(data, dict):
        raise another_form(place, "it is no object")
    question, choices, answer = (data.get(key) for key in ("question", "choices", "answer"))
    if not isinstance(question, str) or not question.strip():
        raise another_form(place, "'question' is no text")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise another_form(place, "'choices' is no list of two texts or more")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise another_form(
            place, f"'answer' is no place in its {len(choices)} choices, counted from 0"
        )
    return Question(question, tuple(choices), answer)


def another_form(place: str, what: str) -> ProblemsFound:
    """The problem of a line that is no question."""
    return fail("data", f"{place} is no question: {what}", path=PATH, help=FORM)
