"""A model of titanrun as the LM Evaluation Harness sees it. Needs the extra `lm-eval`."""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from titanrun.components.evaluation.subject import Scored, Subject
from titanrun.config.problems import fail

__all__ = ["HarnessModel", "TaskManager", "evaluated"]
MAX_NEW_TOKENS = 256
# the harness's own
FEW_SHOT_SEED = 1234
BOOTSTRAPS = 1000
Pair = tuple[list[int], list[int]]


class HarnessModel(LM):
    """Answers the harness's three questions: how likely a continuation is, how likely a whole text, and what comes after a prompt."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        tokenizer = subject.tokenizer
        assert tokenizer is not None
        self._tokenizer = tokenizer
        # what a text without anything before it begins with: every model has seen documents begin after one of them
        first = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
        self._prefix = 0 if first is None else first

    @property
    def tokenizer_name(self) -> str:
        """Part of the harness's cache keys; it keeps no cache here."""
        return type(self._tokenizer).__name__

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether it is what greedy decoding gives."""
        pairs = [self._cut(self._pair(*request.args)) for request in requests]
        return [(score.logprob, score.is_greedy) for score in self._scored(pairs)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """The log-probability of each text, cut into rows that do not overlap."""
        found = []
        for request in requests:
            ids = self._tokenizer.encode(request.args[0], bos=False, eos=False)
            longest = self._subject.longest - 1
            windows = get_rolling_token_windows(
                ids, prefix_token=self._prefix, max_seq_len=longest, context_len=1
            )
            found.append(
                sum(
                    score.logprob
                    for score in self._scored([make_disjoint_window(window) for window in windows])
                )
            )
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The likeliest text after each prompt, up to the first of the words that end it. Raises a problem where it is to be drawn."""
        return [self._said(*request.args) for request in requests]

    def _said(self, prompt: str, options: dict[str, Any]) -> str:
        if options.get("do_sample") and options.get("temperature", 1.0) > 0:
            message = "this task draws its answers at random; titanrun takes the likeliest tokens"
            raise fail("usage", message, path=("task",), help="take a task with do_sample: false")
        until = options.get("until") or []
        ends = [until] if isinstance(until, str) else list(until)
        most = int(options.get("max_gen_toks", MAX_NEW_TOKENS))
        room = self._subject.longest - most
        if room < 1:
            raise fail(
                "data",
                f"answers of {most} tokens leave no room for a prompt in rows of {self._subject.longest}",
                path=("task",),
            )
        ids = self._tokenizer.encode(prompt, bos=True, eos=False)[-room:]
        end_ids = frozenset(() if self._tokenizer.eos_id is None else (self._tokenizer.eos_id,))
        (found,) = self._subject.continued([ids], max_new_tokens=most, end_ids=end_ids)
        text = self._tokenizer.decode(found)
        return text[
            : min([text.find(end) for end in ends if end and end in text], default=len(text))
        ]

    def _pair(self, context: str, continuation: str) -> Pair:
        """The ids of both as they are when one text is made of them: white space between them belongs to the continuation."""
        stem = context.rstrip()
        continuation = context[len(stem) :] + continuation
        if not stem:
            return [self._prefix], self._tokenizer.encode(continuation, bos=False, eos=False)
        before = self._tokenizer.encode(stem, bos=True, eos=False)
        return before, self._tokenizer.encode(stem + continuation, bos=True, eos=False)[
            len(before) :
        ]

    def _cut(self, pair: Pair) -> Pair:
        """The pair with as much of the end of its context as a row has room for."""
        context, rest = pair
        room = self._subject.longest - len(rest)
        if not rest or room < 1:
            message = f"a continuation has {len(rest)} tokens; rows have {self._subject.longest}, and one has to stand before it"
            raise fail("data", message, path=("task",))
        return context[-room:], rest

    def _scored(self, pairs: list[Pair]) -> list[Scored]:
        size = self._subject.batch_size
        return [
            score
            for start in range(0, len(pairs), size)
            for score in self._subject.scored(pairs[start : start + size])
        ]


def evaluated(
    model: HarnessModel, task: str, manager: Any, *, few_shot: int | None, limit: int | None
) -> dict[str, Any]:
    """What the harness finds. As by its own command, a task that sets num_fewshot to 0 keeps it."""
    try:
        loaded = manager.load([task])
    except (OSError, ValueError) as error:
        message = f"the harness cannot read the data of '{task}': {error}"
        raise fail(
            "data",
            message,
            path=("task",),
            help="the harness fetches them from the Hugging Face Hub, or from the task's files",
        ) from error
    for one in loaded["tasks"].values():
        own = one.get_config("num_fewshot")
        if own != 0:
            one.set_config(key="num_fewshot", value=few_shot if few_shot is not None else own or 0)
        one.set_fewshot_seed(seed=FEW_SHOT_SEED)
    found = evaluate(model, loaded, limit=limit, bootstrap_iters=BOOTSTRAPS, log_samples=False)
    assert found is not None, "one process measures"
    return dict(found)
