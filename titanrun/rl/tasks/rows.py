"""Prompts with their expected answers, as questions for a policy and as rows to learn the answers from."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.compressed import opened_text
from titanrun.components.data.source_files import find_files
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import fail
from titanrun.rl.samples import Question
from titanrun.rl.tasks.config import (
    ArithmeticConfig,
    GuessTaskConfig,
    HubQuestionsConfig,
    LookupTaskConfig,
    QuestionsConfig,
    RecordsConfig,
    StringTaskConfig,
    SyntheticConfig,
    TaskConfig,
)

Draw = Callable[[np.random.Generator], tuple[str, str]]
# of all prompts that are drawn, those whose hash is a multiple of it are held out
HELD_OUT_ONE_IN = 5
# draws for each prompt that is wanted before the prompts count as used up
PATIENCE = 200
SHOWN_SEED = 20260101
# imported only where the Hub is asked, since it takes more than a second to import
HUB_READER = "titanrun.components.data.hub_records"


class TaskRows:
    """Questions by number. As a row: prompt, answer and the tokenizer's end token, of which answer and end count.

    Args:
        questions: all of them.
        tokenizer: makes ids of them when a row is asked for.
        row_length: ids of a row; longer ones are refused when they are met.
    """

    def __init__(
        self, questions: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, row_length: int
    ) -> None:
        self.questions = questions
        self.tokenizer = tokenizer
        self._row_length = row_length
        digest = hashlib.sha256(
            json.dumps([list(questions), tokenizer.fingerprint, row_length]).encode()
        )
        self.fingerprint = digest.hexdigest()
        self.max_token_id = tokenizer.vocab_size - 1

    def __len__(self) -> int:
        return len(self.questions)

    def question(self, number: int) -> Question:
        """The question of that number."""
        prompt, answer = self.questions[number]
        return Question(prompt, answer, number)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Ids, which of them count, and positions, [3, seq_len + 1]."""
        prompt, answer = self.questions[index]
        asked = self.tokenizer.encode(prompt, bos=True, eos=False)
        said = self.tokenizer.encode(answer, bos=False, eos=True)
        end = len(asked) + len(said)
        if end > self._row_length:
            message = f"prompt and answer number {index} have {end} tokens, and a row has {self._row_length - 1}"
            raise fail("data", message, help="raise training.seq_len")
        row = np.zeros((3, self._row_length), dtype=np.int64)
        row[0, :end] = asked + said
        row[1, len(asked) : end] = 1
        row[2, :end], row[2, end:] = np.arange(end), np.arange(self._row_length - end)
        return row

    def check(self) -> None:
        """All questions were read when the task was opened."""


def open_task(
    config: TaskConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> TaskRows:
    """The questions of a task. Raises a data problem where there are none, or a file cannot be read as such."""
    if isinstance(config, HubQuestionsConfig):
        questions = on_hub(config)
    else:
        questions = read(config) if isinstance(config, QuestionsConfig) else made_up(config)
    return TaskRows(questions, tokenizer, row_length=row_length)


def made_up(config: TaskConfig) -> list[tuple[str, str]]:
    """So many different prompts of one part, the same for the same config; fewer where there are no more."""
    assert isinstance(config, SyntheticConfig)
    draw: Draw = partial(DRAWS[config.name], config)
    generator = np.random.Generator(np.random.PCG64(SHOWN_SEED))
    found: dict[tuple[str, str], None] = {}
    for _ in range(config.count * PATIENCE):
        question = draw(generator)
        is_held_out = (
            int.from_bytes(hashlib.sha256("\0".join(question).encode()).digest()[:8], "little")
            % HELD_OUT_ONE_IN
            == 0
        )
        if is_held_out == (config.split == "held_out"):
            found.setdefault(question)
        if len(found) == config.count or (len(found) > 0 and _ > PATIENCE * (len(found) + 10)):
            break
    if not found:
        raise fail(
            "data",
            f"{config.name} has no prompt for the part {config.split}",
            help="let it draw from more of them",
        )
    return list(found)


def string_task(config: StringTaskConfig, generator: np.random.Generator) -> tuple[str, str]:
    """Letters, and what becomes of them."""
    letters = [
        config.alphabet[number]
        for number in generator.integers(len(config.alphabet), size=config.length)
    ]
    answers = {
        "reverse": letters[::-1],
        "copy": letters,
        "sort": sorted(letters),
        "upper": [letter.upper() for letter in letters],
    }
    return "".join(letters) + ">", "".join(answers[config.operation])


def arithmetic(config: ArithmeticConfig, generator: np.random.Generator) -> tuple[str, str]:
    """Numbers, and what they come to."""
    numbers = [int(number) for number in generator.integers(10**config.digits, size=2)]
    if config.operation == "digit_sum":
        text = str(numbers[0]).zfill(config.digits)
        return f"{text}:", str(sum(map(int, text)))
    return f"{numbers[0]}+{numbers[1]}=", str(sum(numbers))


def guess_task(config: GuessTaskConfig, generator: np.random.Generator) -> tuple[str, str]:
    """A number that the prompt says nothing about."""
    return "?", str(int(generator.integers(config.highest + 1)))


def lookup_task(config: LookupTaskConfig, generator: np.random.Generator) -> tuple[str, str]:
    """A word, and a dictionary with what it has for that."""
    numbers = generator.integers(10**config.digits, size=len(config.words))
    known = {
        word: str(number).zfill(config.digits)
        for word, number in zip(config.words, numbers, strict=True)
    }
    word = config.words[int(generator.integers(len(config.words)))]
    return f"{word}>", f"{','.join(f'{each}={known[each]}' for each in known)};{known[word]}"


DRAWS: dict[str, Callable[..., tuple[str, str]]] = {
    "string_task": string_task,
    "arithmetic": arithmetic,
    "guess_task": guess_task,
    "lookup_task": lookup_task,
}


def read(config: QuestionsConfig) -> list[tuple[str, str]]:
    """Prompt and answer of each line of the files."""
    found = []
    for file in find_files(config.path, (".jsonl",)):
        try:
            with opened_text(file) as lines:
                written = [
                    (number, line) for number, line in enumerate(lines, start=1) if line.strip()
                ]
        except (OSError, UnicodeDecodeError) as error:
            raise fail(
                "data",
                f"'{file}' cannot be read: {error}",
                path=("path",),
                help="write it again, as UTF-8",
            ) from None
        found += [
            question_in(line, config, f"line {number} of '{file}'") for number, line in written
        ]
    return found


def on_hub(config: HubQuestionsConfig) -> list[tuple[str, str]]:
    """Prompt and answer of each record of a split."""
    reader: Any = import_module(HUB_READER)
    records = islice(reader.hub_records(config), config.max_questions)
    return [question_of(record, config, place) for place, record in records]


def question_in(line: str, config: QuestionsConfig, place: str) -> tuple[str, str]:
    """Prompt and answer in a line of JSON."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise fail("data", f"{place} is no JSON: {error}", path=("path",)) from None
    return question_of(record, config, place)


def question_of(record: Any, config: RecordsConfig, place: str) -> tuple[str, str]:
    """Prompt and answer of a record."""
    columns = {"prompt_column": config.prompt_column, "answer_column": config.answer_column}
    for field, column in columns.items():
        if not isinstance(record, dict) or not isinstance(record.get(column), str):
            raise fail(
                "data",
                f"{place} has no text '{column}'",
                path=(field,),
                help="name the key that holds it",
            )
    if not record[config.prompt_column]:
        raise fail("data", f"{place} has an empty prompt", path=("prompt_column",))
    return record[config.prompt_column], answer_in(record[config.answer_column], config, place)


def answer_in(text: str, config: RecordsConfig, place: str) -> str:
    """The expected answer in what its column says."""
    if config.answer_pattern is None:
        return text
    try:
        found = re.search(config.answer_pattern, text)
    except re.error as error:
        raise fail(
            "data", f"the pattern cannot be read: {error}", path=("answer_pattern",)
        ) from None
    if found is None:
        raise fail(
            "data",
            f"{place} has no match in '{config.answer_column}'",
            path=("answer_pattern",),
            help="name what every answer has",
        )
    return str(found[1 if found.re.groups else 0] or "")
