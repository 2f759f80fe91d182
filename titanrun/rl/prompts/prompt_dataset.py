"""Prompts with expected answers, as RL prompts and as training sequences."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.record_source import find_hub_source
from titanrun.components.data.spec.hub_source import HubSource
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error
from titanrun.rl.prompts.config import (
    ArithmeticConfig,
    GuessTaskConfig,
    HubQuestionsConfig,
    LookupTaskConfig,
    PromptDatasetConfig,
    QuestionsConfig,
    StringTaskConfig,
    SyntheticPromptsConfig,
)
from titanrun.rl.prompts.spec.prompt_records import iter_jsonl_prompts, parse_prompt_record
from titanrun.rl.rollout_types import Prompt

if TYPE_CHECKING:
    from titanrun.components.data import hub_records
else:
    # imported on first use: the import takes more than a second
    hub_records = LazyModule("titanrun.components.data.hub_records")

DrawPromptFn = Callable[[np.random.Generator], tuple[str, str]]
# prompts whose hash is a multiple of this are held out
HELD_OUT_ONE_IN = 5
# draws per requested prompt until the prompts count as exhausted
MAX_DRAWS_PER_PROMPT = 200
SYNTHETIC_SEED = 20260101


class PromptDataset:
    """Dataset of prompts.

    As a sequence, an item is prompt, answer and the tokenizer's end token, with a loss on answer
    and end token.

    Args:
        prompt_answer_pairs: all prompts with their answers.
        tokenizer: encodes an item when it is read.
        sample_length: tokens per item. Longer items raise an error when they are read.
    """

    def __init__(
        self,
        prompt_answer_pairs: Sequence[tuple[str, str]],
        tokenizer: Tokenizer,
        *,
        sample_length: int,
    ) -> None:
        self.prompt_answer_pairs = prompt_answer_pairs
        self.tokenizer = tokenizer
        self._sample_length = sample_length
        digest = hashlib.sha256(
            json.dumps([list(prompt_answer_pairs), tokenizer.fingerprint, sample_length]).encode()
        )
        self.fingerprint = digest.hexdigest()
        self.max_token_id = tokenizer.vocab_size - 1

    def __len__(self) -> int:
        return len(self.prompt_answer_pairs)

    def get_prompt(self, number: int) -> Prompt:
        """Return the prompt of that number."""
        prompt, answer = self.prompt_answer_pairs[number]
        return Prompt(prompt, answer, number)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Return ids, loss mask, and positions, [3, seq_len + 1]."""
        prompt, answer = self.prompt_answer_pairs[index]
        prompt_ids = self.tokenizer.encode(prompt, add_bos=True, add_eos=False)
        answer_ids = self.tokenizer.encode(answer, add_bos=False, add_eos=True)
        end = len(prompt_ids) + len(answer_ids)
        if end > self._sample_length:
            message = (
                f"prompt and answer number {index} have {end:,} tokens, "
                f"but seq_len is {self._sample_length - 1:,}"
            )
            raise problem_error("data", message, hint="raise training.seq_len")
        item = np.zeros((3, self._sample_length), dtype=np.int64)
        item[0, :end] = prompt_ids + answer_ids
        item[1, len(prompt_ids) : end] = 1
        item[2, :end], item[2, end:] = np.arange(end), np.arange(self._sample_length - end)
        return item

    def check(self) -> None:
        """Do nothing: all prompts were read when the dataset was built."""


def build_prompt_dataset(
    config: PromptDatasetConfig, *, tokenizer: Tokenizer, sample_length: int, cache_folder: Path
) -> PromptDataset:
    """Build the prompts of a task.

    Raises:
        ProblemsFound: there are no prompts, or a file cannot be read.
    """
    if isinstance(config, HubQuestionsConfig):
        hub = HubSource(
            config.repo, config.subset, config.split, config.revision, streaming=config.streaming
        )
        questions = read_hub_prompts(config, hub)
    elif isinstance(config, QuestionsConfig):
        questions = read_record_prompts(config)
    else:
        questions = generate_synthetic(config)
    return PromptDataset(questions, tokenizer, sample_length=sample_length)


def generate_synthetic(config: PromptDatasetConfig) -> list[tuple[str, str]]:
    """Generate different prompts of one split, always the same for the same config.

    Return fewer than `count` if there are not enough different prompts.
    """
    assert isinstance(config, SyntheticPromptsConfig)
    draw: DrawPromptFn = partial(DRAW_FNS[config.name], config)
    generator = np.random.Generator(np.random.PCG64(SYNTHETIC_SEED))
    found: dict[tuple[str, str], None] = {}
    for _ in range(config.count * MAX_DRAWS_PER_PROMPT):
        question = draw(generator)
        is_held_out = (
            int.from_bytes(hashlib.sha256("\0".join(question).encode()).digest()[:8], "little")
            % HELD_OUT_ONE_IN
            == 0
        )
        if is_held_out == (config.split == "held_out"):
            found.setdefault(question)
        if len(found) == config.count or (
            len(found) > 0 and _ > MAX_DRAWS_PER_PROMPT * (len(found) + 10)
        ):
            break
    if not found:
        raise problem_error(
            "data",
            f"{config.name} has no prompt for the split {config.split}",
            hint="increase the number of possible prompts",
        )
    return list(found)


def draw_string_task(config: StringTaskConfig, generator: np.random.Generator) -> tuple[str, str]:
    """Draw letters and their transformation."""
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


def draw_arithmetic(config: ArithmeticConfig, generator: np.random.Generator) -> tuple[str, str]:
    """Draw numbers and their sum."""
    numbers = [int(number) for number in generator.integers(10**config.digits, size=2)]
    if config.operation == "digit_sum":
        text = str(numbers[0]).zfill(config.digits)
        return f"{text}:", str(sum(map(int, text)))
    return f"{numbers[0]}+{numbers[1]}=", str(sum(numbers))


def draw_guess_task(config: GuessTaskConfig, generator: np.random.Generator) -> tuple[str, str]:
    """Draw a number that the prompt does not reveal."""
    return "?", str(int(generator.integers(config.highest + 1)))


def draw_lookup_task(config: LookupTaskConfig, generator: np.random.Generator) -> tuple[str, str]:
    """Draw a word, and a dictionary with its value."""
    numbers = generator.integers(10**config.digits, size=len(config.words))
    known = {
        word: str(number).zfill(config.digits)
        for word, number in zip(config.words, numbers, strict=True)
    }
    word = config.words[int(generator.integers(len(config.words)))]
    return f"{word}>", f"{','.join(f'{each}={known[each]}' for each in known)};{known[word]}"


DRAW_FNS: dict[str, Callable[..., tuple[str, str]]] = {
    "string_task": draw_string_task,
    "arithmetic": draw_arithmetic,
    "guess_task": draw_guess_task,
    "lookup_task": draw_lookup_task,
}


def read_record_prompts(config: QuestionsConfig) -> list[tuple[str, str]]:
    """Read prompt and answer of each line of the files, or of each record on the Hub."""
    hub = find_hub_source(config)
    if hub is not None:
        return read_hub_prompts(config, hub)
    return list(iter_jsonl_prompts(config))[: config.max_questions]


def read_hub_prompts(
    config: HubQuestionsConfig | QuestionsConfig, hub: HubSource
) -> list[tuple[str, str]]:
    """Read prompt and answer of each record of a split."""
    records = islice(hub_records.iter_hub_records(hub), config.max_questions)
    return [parse_prompt_record(record, config, place) for place, record in records]
