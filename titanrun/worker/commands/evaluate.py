"""Evaluation of a model on the tasks of the `evaluation` section.

`python -m titanrun.worker.commands.evaluate` serves `titanrun eval`, with a JSON object on stdin. A
run of kind eval calls `iter_task_results`.

Shapes: B sequences, T tokens per sequence, V vocabulary.
"""

import json
import math
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.document_ids import DocumentIdFn
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.token_batch import TokenBatch, build_document_kwargs
from titanrun.components.evaluation.config import ExactMatchTaskConfig, LossTaskConfig, TaskConfig
from titanrun.components.evaluation.eval_model import ScoredContinuation, TaskMetrics
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.components.metrics.spec.metric_format import format_decimals
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.rank_env import get_environment_variables
from titanrun.models.shared.config import unwrap_auto
from titanrun.recipe.consent.recipe_code import check_code_is_trusted
from titanrun.recipe.recipe import Recipe, is_reward_model
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.training.decoding import generate
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.build.build_data import (
    build_dataset,
    build_document_id_fn,
    build_tokenizer,
    get_holdout,
)
from titanrun.worker.weights.load_model import WeightSource, load_model
from titanrun.worker.worker_failures import classify_failure

# size of the RoPE cache; no task needs more
MAX_ROPE_POSITIONS = 32_768
GREEDY_SAMPLING = SamplingParams(temperature=0)
TASKS_PATH = ("evaluation", "tasks")
EVAL_OF_FOLDER = (
    "titanrun eval {} 'evaluation.tasks=[{{name: loss, dataset: {{name: text, path: FILE}}}}]'"
)


@dataclass(slots=True)
class LoadedEvalModel:
    """Model in this process, see `EvalModel`."""

    model: nn.Module
    recipe: Recipe
    tokenizer: Tokenizer | None
    document_id_fn: DocumentIdFn
    max_seq_len: int
    cache_folder: Path

    @property
    def batch_size(self) -> int:
        """Sequences per forward pass."""
        return self.recipe.evaluation.batch_size

    @torch.no_grad()
    def compute_loss_sum(self, batch: TokenBatch) -> Tensor:
        """Compute the cross-entropy summed over valid labels in fp32."""
        whole = self.document_id_fn(batch).to(self._device)
        return CrossEntropyLoss(CrossEntropyConfig())(
            self.model(whole.tokens, whole.positions, **build_document_kwargs(whole)), whole
        )

    @torch.no_grad()
    def score_continuations(
        self, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[ScoredContinuation]:
        """Return the log-likelihood of the second ids after the first ids of each pair."""
        sequences = [[*context, *rest] for context, rest in pairs]
        longest = max(map(len, sequences))
        # padded at the end, where causal attention hides the padding
        tokens_BT = torch.tensor(
            [ids + [0] * (longest - len(ids)) for ids in sequences], device=self._device
        )
        batch = self.document_id_fn(
            TokenBatch(tokens_BT, tokens_BT, None, torch.ones_like(tokens_BT, dtype=torch.bool))
        )
        logprobs_BTV = (
            self.model(batch.tokens, batch.positions, **build_document_kwargs(batch))
            .float()
            .log_softmax(-1)
        )
        found = []
        for number, (context, rest) in enumerate(pairs):
            continuation_TV = logprobs_BTV[number, len(context) - 1 : len(context) + len(rest) - 1]
            ids_T = torch.tensor(rest, device=self._device)
            logprob = float(continuation_TV.gather(1, ids_T[:, None]).double().sum())
            is_greedy = bool((continuation_TV.argmax(-1) == ids_T).all())
            found.append(ScoredContinuation(logprob, is_greedy))
        return found

    def generate_greedy(
        self, prompts: Sequence[list[int]], *, max_new_tokens: int, end_ids: frozenset[int]
    ) -> list[list[int]]:
        """Return the most likely tokens after each prompt, up to an end token, which is removed."""
        if "text generation" in self.recipe.model.unsupported_features:
            message = f"model '{self.recipe.model.name}' does not support text generation"
            raise problem_error(
                "usage", message, hint="use a task that scores the likelihood of texts"
            )
        longest = max(map(len, prompts)) + max_new_tokens
        if longest > self.max_seq_len:
            message = (
                f"a prompt and its completion may have {longest:,} tokens, "
                f"but the model supports at most {self.max_seq_len:,}"
            )
            raise problem_error(
                "data",
                message,
                path=("max_new_tokens",),
                hint="lower it, or remove long prompts",
            )
        found = generate(
            self.model,
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=GREEDY_SAMPLING,
            eos_ids=end_ids,
        )
        return [
            continuation.tokens[:-1] if continuation.tokens[-1] in end_ids else continuation.tokens
            for continuation in found
        ]

    @property
    def held_out(self) -> tuple[DatasetConfig, Holdout] | None:
        """Training dataset with the side of its documents that training holds out."""
        holdout = get_holdout(self.recipe, is_validation=True)
        return None if holdout is None else (self.recipe.training.dataset, holdout)

    def open_dataset(self, dataset: DatasetConfig | None, *, seq_len: int) -> IndexedDataset:
        """Build a dataset, or that of the held-out documents."""
        holdout = None
        if dataset is None:
            assert self.held_out is not None, "the rule tasks-have-data checks this"
            dataset, holdout = self.held_out
        return build_dataset(
            dataset,
            ("dataset",),
            self.recipe,
            tokenizer=self.tokenizer,
            seq_len=seq_len,
            run_dir=self.cache_folder,
            holdout=holdout,
        )

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def main() -> int:
    """Evaluate the requested tasks and return the exit code."""
    job = json.load(sys.stdin)
    try:
        recipe = load_resolved_text(job["resolved"])
        check_code_is_trusted(recipe, get_environment_variables())
        with tempfile.TemporaryDirectory(prefix="titanrun-") as folder:
            for found in iter_task_results(recipe, job, cache_folder=Path(folder)):
                print(json.dumps(found) if job["json"] else format_task_result(found), flush=True)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        failure = classify_failure(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    return 0


def iter_task_results(
    recipe: Recipe, job: WeightSource, *, cache_folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield the result of each task: its name, its data, and its metrics.

    Raises:
        ProblemsFound: a task is not possible with the model or its data.
    """
    tasks = get_evaluation_tasks(recipe, folder=job.get("huggingface"))
    max_seq_len = min(unwrap_auto(recipe.model.max_seq_len), MAX_ROPE_POSITIONS)
    for number, task in enumerate(tasks):
        check_task(recipe, task, number, max_seq_len)
    tokenizer = build_tokenizer(recipe)
    model = load_model(recipe, job, seq_len=max_seq_len)
    eval_model = LoadedEvalModel(
        model, recipe, tokenizer, build_document_id_fn(recipe, tokenizer), max_seq_len, cache_folder
    )
    for number, task in enumerate(tasks):
        with nest_problems((*TASKS_PATH, number)):
            metrics: TaskMetrics = task.load_builder()(task, eval_model=eval_model)
        yield {"task": task.name, "data": format_task_data(task), **metrics}


def get_evaluation_tasks(recipe: Recipe, *, folder: str | None = None) -> tuple[TaskConfig, ...]:
    """Return the recipe's tasks, or the default tasks for its held-out data, also the further sets.

    Args:
        recipe: recipe of the model.
        folder: folder in Hugging Face layout that the model is in, which has no data.

    Raises:
        ProblemsFound: the recipe has neither tasks nor held-out data.
    """
    if recipe.evaluation.tasks:
        return recipe.evaluation.tasks
    dataset = recipe.validation.dataset
    if dataset is None and recipe.validation.holdout is None:
        hint = "set validation.dataset, or 'evaluation.tasks=[{name: loss, dataset: {...}}]'"
        message = "the recipe has no held-out data to evaluate the model on"
        if folder is not None:
            message = f"'{folder}' is a model without data to evaluate it on"
            hint = f"name some: {EVAL_OF_FOLDER.format(shlex.quote(folder))}; or name its run"
        raise problem_error(
            "usage",
            message,
            path=TASKS_PATH,
            hint=hint,
        )
    losses = [
        LossTaskConfig.model_validate({"dataset": measured, "seq_len": recipe.validation.seq_len})
        for measured in (dataset, *(one.dataset for one in recipe.validation.further))
    ]
    has_replies = isinstance(dataset or recipe.training.dataset, ConversationsConfig)
    matches = [ExactMatchTaskConfig.model_validate({"dataset": dataset})] if has_replies else []
    return (*losses, *matches)


def check_task(recipe: Recipe, task: TaskConfig, number: int, max_seq_len: int) -> None:
    """Check that the model supports a task, before anything is loaded.

    Raises:
        ProblemsFound: it does not.
    """
    if is_reward_model(recipe):
        raise problem_error(
            "usage",
            "a reward model gives scores, which no task of an evaluation reads",
            path=(*TASKS_PATH, number),
            hint="its held-out loss and accuracy are in the metrics of its run: titanrun plot RUN",
        )
    if "text generation" in recipe.model.unsupported_features and isinstance(
        task, ExactMatchTaskConfig
    ):
        message = f"model '{recipe.model.name}' does not support text generation"
        raise problem_error(
            "usage",
            message,
            path=(*TASKS_PATH, number),
            hint="use the task loss or multiple_choice",
        )
    seq_len = getattr(task, "seq_len", None)
    if isinstance(seq_len, int) and seq_len > max_seq_len:
        message = (
            f"sequences of {seq_len:,} tokens are too long: "
            f"the model supports at most {max_seq_len:,}"
        )
        raise problem_error(
            "usage", message, path=(*TASKS_PATH, number, "seq_len"), hint="use shorter sequences"
        )


def format_task_data(task: TaskConfig) -> str:
    """Return a short name of a task's data: a word or a path."""
    source = getattr(task, "dataset", task)
    if source is None:
        return "validation.holdout"
    named = (
        getattr(source, "path", None)
        or getattr(source, "repo", None)
        or getattr(source, "split", None)
        or getattr(source, "task", None)
    )
    return ", ".join(filter(None, [source.name if source is not task else None, named]))


def format_task_result(found: dict[str, Any]) -> str:
    """Format the result of a task for people."""
    numbers = {name: value for name, value in found.items() if name not in ("task", "data")}
    return f"{found['task']} on {found['data']}: " + ", ".join(
        f"{name} {format_metric_value(value)}" for name, value in numbers.items()
    )


def format_metric_value(value: float) -> str:
    """Format a number compactly."""
    return (
        f"{value:,}"
        if isinstance(value, int)
        else format_decimals(value, 4)
        if math.isfinite(value) and value < 1e6
        else f"{value:.3e}"
    )


if __name__ == "__main__":
    sys.exit(main())
