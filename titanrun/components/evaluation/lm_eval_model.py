"""Adapter of a titanrun model for the LM Evaluation Harness. Needs the extra `lm-eval`."""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from titanrun.components.evaluation.eval_model import EvalModel, ScoredContinuation
from titanrun.config.problems import problem_error

__all__ = ["LmEvalModel", "TaskManager", "run_lm_eval"]
MAX_NEW_TOKENS = 256
# the harness's defaults
FEW_SHOT_SEED = 1234
BOOTSTRAP_ITERS = 1000
ContextAndContinuation = tuple[list[int], list[int]]


class LmEvalModel(LM):  # type: ignore[misc]  # lm_eval has no types
    """Model with the harness's interface: continuations, whole texts and generation."""

    def __init__(self, eval_model: EvalModel) -> None:
        super().__init__()
        self._eval_model = eval_model
        tokenizer = eval_model.tokenizer
        assert tokenizer is not None
        self._tokenizer = tokenizer
        # first token of a text without context: in training, documents begin after one of these
        first = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
        self._prefix = 0 if first is None else first

    @property
    def tokenizer_name(self) -> str:
        """Part of the harness's cache keys; no cache is used here."""
        return type(self._tokenizer).__name__

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether it is the greedy one."""
        pairs = [self._truncate_context(self._encode_pair(*request.args)) for request in requests]
        return [(score.logprob, score.is_greedy) for score in self._score_pairs(pairs)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-probability of each text, split into disjoint windows."""
        found = []
        for request in requests:
            ids = self._tokenizer.encode(request.args[0], add_bos=False, add_eos=False)
            longest = self._eval_model.max_seq_len - 1
            windows = get_rolling_token_windows(
                ids, prefix_token=self._prefix, max_seq_len=longest, context_len=1
            )
            found.append(
                sum(
                    score.logprob
                    for score in self._score_pairs(
                        [make_disjoint_window(window) for window in windows]
                    )
                )
            )
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the most likely text after each prompt, up to the first stop word.

        Raises:
            ProblemsFound: If the task samples at random.
        """
        return [self._generate_answer(*request.args) for request in requests]

    def _generate_answer(self, prompt: str, options: dict[str, Any]) -> str:
        if options.get("do_sample") and options.get("temperature", 1.0) > 0:
            message = "this task samples its answers at random; titanrun decodes greedily"
            raise problem_error(
                "usage", message, path=("task",), hint="choose a task with do_sample: false"
            )
        until = options.get("until") or []
        ends = [until] if isinstance(until, str) else list(until)
        most = int(options.get("max_gen_toks", MAX_NEW_TOKENS))
        max_context = self._eval_model.max_seq_len - most
        if max_context < 1:
            raise problem_error(
                "data",
                f"answers of {most:,} tokens leave no space for a prompt in sequences of "
                f"{self._eval_model.max_seq_len:,}",
                path=("task",),
            )
        ids = self._tokenizer.encode(prompt, add_bos=True, add_eos=False)[-max_context:]
        end_ids = frozenset(() if self._tokenizer.eos_id is None else (self._tokenizer.eos_id,))
        (found,) = self._eval_model.generate_greedy([ids], max_new_tokens=most, end_ids=end_ids)
        text = self._tokenizer.decode(found)
        return text[
            : min([text.find(end) for end in ends if end and end in text], default=len(text))
        ]

    def _encode_pair(self, context: str, continuation: str) -> ContextAndContinuation:
        """Encode both as one text; white space between them belongs to the continuation."""
        stem = context.rstrip()
        continuation = context[len(stem) :] + continuation
        if not stem:
            return [self._prefix], self._tokenizer.encode(
                continuation, add_bos=False, add_eos=False
            )
        before = self._tokenizer.encode(stem, add_bos=True, add_eos=False)
        return before, self._tokenizer.encode(stem + continuation, add_bos=True, add_eos=False)[
            len(before) :
        ]

    def _truncate_context(self, pair: ContextAndContinuation) -> ContextAndContinuation:
        """Truncate the start of the context so that the pair fits a sequence."""
        context, rest = pair
        max_context = self._eval_model.max_seq_len - len(rest)
        if not rest or max_context < 1:
            message = (
                f"a continuation has {len(rest):,} tokens, but sequences have "
                f"{self._eval_model.max_seq_len:,}, and one token must come before it"
            )
            raise problem_error("data", message, path=("task",))
        return context[-max_context:], rest

    def _score_pairs(self, pairs: list[ContextAndContinuation]) -> list[ScoredContinuation]:
        size = self._eval_model.batch_size
        return [
            score
            for start in range(0, len(pairs), size)
            for score in self._eval_model.score_continuations(pairs[start : start + size])
        ]


def run_lm_eval(
    model: LmEvalModel, task: str, manager: Any, *, few_shot: int | None, limit: int | None
) -> dict[str, Any]:
    """Return the results of the harness.

    As in its own command, a task that sets num_fewshot to 0 keeps it.
    """
    try:
        loaded = manager.load([task])
    except (OSError, ValueError) as error:
        message = f"the harness cannot read the data of '{task}': {error}"
        raise problem_error(
            "data",
            message,
            path=("task",),
            hint="the harness reads it from the Hugging Face Hub, or from the task's files",
        ) from error
    for loaded_task in loaded["tasks"].values():
        own = loaded_task.get_config("num_fewshot")
        if own != 0:
            loaded_task.set_config(
                key="num_fewshot", value=few_shot if few_shot is not None else own or 0
            )
        loaded_task.set_fewshot_seed(seed=FEW_SHOT_SEED)
    found = evaluate(model, loaded, limit=limit, bootstrap_iters=BOOTSTRAP_ITERS, log_samples=False)
    assert found is not None, "one process measures"
    return dict(found)
