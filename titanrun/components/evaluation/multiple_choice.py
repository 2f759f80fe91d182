"""Questions with several answers, taken by how likely the model finds them."""

import json
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.evaluation.config import MultipleChoiceTaskConfig
from titanrun.components.evaluation.subject import Numbers, Subject
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import ProblemsFound, fail

PATH = ("path",)
FORM = 'write {"question": "...", "choices": ["...", "..."], "answer": 0}'


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and which of them is right."""

    question: str
    choices: tuple[str, ...]
    answer: int


def measure_choices(config: MultipleChoiceTaskConfig, *, subject: Subject) -> Numbers:
    """The share of questions whose likeliest answer is the right one: by the log-probability of the answer, and by that of a byte of it."""
    if subject.tokenizer is None:
        raise fail("data", "multiple_choice needs a tokenizer", path=PATH)
    questions = read_questions(Path(config.path))[: config.limit]
    pairs = [split(question.question, choice, subject.tokenizer) for question in questions for choice in question.choices]
    too_long = max((len(context) + len(rest) for context, rest in pairs), default=0)
    if too_long > subject.longest:
        message = f"a question with an answer has {too_long} tokens, and the model's rows {subject.longest} at most"
        raise fail("data", message, path=PATH, help="shorten it, or leave it out")
    scores = []
    for start in range(0, len(pairs), subject.batch_size):
        scores += subject.scored(pairs[start : start + subject.batch_size])
    right = right_by_byte = at = 0
    for question in questions:
        likely = [score.logprob for score in scores[at : at + len(question.choices)]]
        by_byte = [value / max(1, len(choice.encode())) for value, choice in zip(likely, question.choices, strict=True)]
        right += likely.index(max(likely)) == question.answer
        right_by_byte += by_byte.index(max(by_byte)) == question.answer
        at += len(question.choices)
    count = len(questions)
    return {"accuracy": right / count, "accuracy_per_byte": right_by_byte / count, "questions": count}


def split(question: str, choice: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids of a question and of an answer as they are when one text is made of both: white space between them belongs to the answer."""
    stem = question.rstrip()
    whole = tokenizer.encode(question + choice, bos=True, eos=False)
    context = tokenizer.encode(stem, bos=True, eos=False)
    if not context or len(context) >= len(whole):
        raise fail("data", f"the question '{question}' and its answer '{choice}' have no tokens to tell apart", path=PATH, help=FORM)
    return whole[: len(context)], whole[len(context) :]


def read_questions(file: Path) -> list[Question]:
    """The questions of a file. Raises a data problem that names the line where one has another form."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise fail("data", f"'{file}' cannot be read: {error}", path=PATH, help=FORM) from None
    found = [read_question(line, f"'{file}' line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
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
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) and choice for choice in choices):
        raise another_form(place, "'choices' is no list of two texts or more")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise another_form(place, f"'answer' is no place in its {len(choices)} choices, counted from 0")
    return Question(question, tuple(choices), answer)


def another_form(place: str, what: str) -> ProblemsFound:
    """The problem of a line that is no question."""
    return fail("data", f"{place} is no question: {what}", path=PATH, help=FORM)
