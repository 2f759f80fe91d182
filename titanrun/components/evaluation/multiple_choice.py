"""Questions with several answers, taken by how likely the model finds them."""

from pathlib import Path

from titanrun.components.evaluation.config import MultipleChoiceTaskConfig
from titanrun.components.evaluation.questions import FORM, PATH, read_questions
from titanrun.components.evaluation.subject import Numbers, Subject
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import fail


def measure_choices(config: MultipleChoiceTaskConfig, *, subject: Subject) -> Numbers:
    """The share of questions whose likeliest answer is the right one: by the log-probability of the answer, and by that of a byte of it."""
    if subject.tokenizer is None:
        raise fail("data", "multiple_choice needs a tokenizer", path=PATH)
    questions = read_questions(Path(config.path))[: config.limit]
    pairs = [
        split(question.question, choice, subject.tokenizer)
        for question in questions
        for choice in question.choices
    ]
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


def split(question: str, choice: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids of a question and of an answer as they are when one text is made of both: white space between them belongs to the answer."""
    stem = question.rstrip()
    whole = tokenizer.encode(question + choice, bos=True, eos=False)
    context = tokenizer.encode(stem, bos=True, eos=False)
    if not context or len(context) >= len(whole):
        raise fail(
            "data",
            f"the question '{question}' and its answer '{choice}' have no tokens to tell apart",
            path=PATH,
            help=FORM,
        )
    return whole[: len(context)], whole[len(context) :]
