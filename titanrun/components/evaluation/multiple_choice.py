"""Multiple-choice questions, answered by the likelihood of each choice."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.record_source import find_hub_source
from titanrun.components.evaluation.config import MultipleChoiceTaskConfig
from titanrun.components.evaluation.eval_model import EvalModel, TaskMetrics
from titanrun.components.evaluation.spec.choice_questions import (
    QUESTION_FORMAT_HINT,
    TASK_PATH_FIELD,
    ChoiceQuestion,
    build_choice_question,
    load_choice_questions,
)
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error

if TYPE_CHECKING:
    from titanrun.components.data import hub_records
else:
    # imported on first use: the import takes more than a second
    hub_records = LazyModule("titanrun.components.data.hub_records")


def evaluate_multiple_choice(
    config: MultipleChoiceTaskConfig, *, eval_model: EvalModel
) -> TaskMetrics:
    """Return the share of questions whose most likely answer is correct.

    Likelihood is the log-probability of the answer, or for accuracy_per_byte the log-probability
    per byte of it.
    """
    if eval_model.tokenizer is None:
        raise problem_error("data", "multiple_choice needs a tokenizer", path=TASK_PATH_FIELD)
    questions = load_questions(config)
    pairs = [
        encode_question_and_choice(question.question, choice, eval_model.tokenizer)
        for question in questions
        for choice in question.choices
    ]
    too_long = max((len(context) + len(rest) for context, rest in pairs), default=0)
    if too_long > eval_model.max_seq_len:
        message = (
            f"a question with an answer has {too_long:,} tokens, "
            f"but the model's max_seq_len is {eval_model.max_seq_len:,}"
        )
        raise problem_error("data", message, path=TASK_PATH_FIELD, hint="shorten it, or remove it")
    scores = []
    for start in range(0, len(pairs), eval_model.batch_size):
        scores += eval_model.score_continuations(pairs[start : start + eval_model.batch_size])
    right = right_by_byte = at = 0
    for question in questions:
        likely = [score.logprob for score in scores[at : at + len(question.choices)]]
        by_byte = [
            value / max(1, len(choice.encode()))
            for value, choice in zip(likely, question.choices, strict=True)
        ]
        right += likely.index(max(likely)) == question.answer
        right_by_byte += by_byte.index(max(by_byte)) == question.answer
        at += len(question.choices)
    count = len(questions)
    return {
        "accuracy": right / count,
        "accuracy_per_byte": right_by_byte / count,
        "questions": count,
    }


def load_questions(config: MultipleChoiceTaskConfig) -> list[ChoiceQuestion]:
    """Return the questions of the file or of the Hub, the first `limit` ones."""
    hub = find_hub_source(config)
    if hub is None:
        return load_choice_questions(Path(config.path or ""))[: config.limit]
    records = islice(hub_records.iter_hub_records(hub), config.limit)
    return [build_choice_question(record, place) for place, record in records]


def encode_question_and_choice(
    question: str, choice: str, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    """Encode a question and an answer as one text.

    White space between them belongs to the answer.
    """
    stem = question.rstrip()
    whole = tokenizer.encode(question + choice, add_bos=True, add_eos=False)
    context = tokenizer.encode(stem, add_bos=True, add_eos=False)
    if not context or len(context) >= len(whole):
        raise problem_error(
            "data",
            f"the question '{question}' and its answer '{choice}' share their tokens",
            path=TASK_PATH_FIELD,
            hint=QUESTION_FORMAT_HINT,
        )
    return whole[: len(context)], whole[len(context) :]
