"""Measures a model by the tasks of `evaluation`.

`python -m titanrun.worker.evaluate` does what `titanrun eval` asks for, as a JSON object on stdin; a run of kind eval calls `measured`.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.data.batch import TokenBatch, documents_of
from titanrun.components.data.config import ConversationsConfig, DatasetConfig
from titanrun.components.data.documents import Marking
from titanrun.components.data.rows import Rows
from titanrun.components.evaluation.config import ExactMatchTaskConfig, LossTaskConfig, TaskConfig
from titanrun.components.evaluation.subject import Numbers, Scored
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropy
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.placed import placed
from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.render import render_text
from titanrun.models.shared.config import decided
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.training.generator import generate
from titanrun.training.sampling import Sampling
from titanrun.worker.build_data import build_marking, build_rows, build_tokenizer
from titanrun.worker.failures import failure_of
from titanrun.worker.loaded_model import Job, model_with_weights

# the table of RoPE has a row for each; no task here needs more
LONGEST = 32_768
GREEDY = Sampling(temperature=0)
TASKS = ("evaluation", "tasks")


@dataclass(slots=True)
class LoadedSubject:
    """A model in this process; see `Subject`."""

    model: nn.Module
    recipe: Recipe
    tokenizer: Tokenizer | None
    marking: Marking
    longest: int
    cache_folder: Path

    @property
    def batch_size(self) -> int:
        """Rows of a forward pass."""
        return self.recipe.evaluation.batch_size

    @torch.no_grad()
    def loss_sum(self, batch: TokenBatch) -> Tensor:
        """The cross entropy of the labels that count, summed up in fp32."""
        whole = self.marking(batch).to(self._device)
        return CrossEntropy(CrossEntropyConfig())(
            self.model(whole.tokens, whole.positions, **documents_of(whole)), whole
        )

    @torch.no_grad()
    def scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
        """How likely the second token ids of each pair follow the first."""
        rows = [[*context, *rest] for context, rest in pairs]
        width = max(map(len, rows))
        # filled up behind their end, where no token of theirs looks
        tokens_BT = torch.tensor(
            [row + [0] * (width - len(row)) for row in rows], device=self._device
        )
        batch = self.marking(
            TokenBatch(tokens_BT, tokens_BT, None, torch.ones_like(tokens_BT, dtype=torch.bool))
        )
        logprobs_BTV = (
            self.model(batch.tokens, batch.positions, **documents_of(batch)).float().log_softmax(-1)
        )
        found = []
        for number, (context, rest) in enumerate(pairs):
            said_TV = logprobs_BTV[number, len(context) - 1 : len(context) + len(rest) - 1]
            ids_T = torch.tensor(rest, device=self._device)
            likely = float(said_TV.gather(1, ids_T[:, None]).double().sum())
            found.append(Scored(likely, bool((said_TV.argmax(-1) == ids_T).all())))
        return found

    def continued(
        self, prompts: Sequence[list[int]], *, max_new_tokens: int, end_ids: frozenset[int]
    ) -> list[list[int]]:
        """The likeliest tokens after each prompt, up to an end token, which is left out."""
        if "text generation" in self.recipe.model.lacks:
            message = f"titanrun does not generate with a {self.recipe.model.name} model, so it gives no replies"
            raise fail("usage", message, help="take a task that asks how likely a text is")
        longest = max(map(len, prompts)) + max_new_tokens
        if longest > self.longest:
            message = f"a prompt and its answer may have {longest} tokens, and the model's rows have {self.longest} at most"
            raise fail(
                "data",
                message,
                path=("max_new_tokens",),
                help="ask for fewer, or leave long prompts out",
            )
        found = generate(
            self.model, prompts, max_new_tokens=max_new_tokens, sampling=GREEDY, end_ids=end_ids
        )
        return [
            continuation.tokens[:-1] if continuation.tokens[-1] in end_ids else continuation.tokens
            for continuation in found
        ]

    def rows(self, dataset: DatasetConfig, *, seq_len: int) -> Rows:
        """The rows of a dataset."""
        return build_rows(
            dataset,
            ("dataset",),
            self.recipe,
            tokenizer=self.tokenizer,
            seq_len=seq_len,
            run_dir=self.cache_folder,
        )

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def main() -> int:
    """Does the job. Returns the exit code."""
    job = json.load(sys.stdin)
    try:
        recipe = read_resolved_text(job["resolved"])
        with tempfile.TemporaryDirectory(prefix="titanrun-") as folder:
            for found in measured(recipe, job, cache_folder=Path(folder)):
                print(json.dumps(found) if job["json"] else line_of(found), flush=True)
    except ProblemsFound as error:
        sys.stderr.write(render_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        failure = failure_of(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    return 0


def measured(recipe: Recipe, job: Job, *, cache_folder: Path) -> Iterator[dict[str, Any]]:
    """What each task finds: its name, the dataset's or file's, and the numbers. Raises ProblemsFound."""
    tasks = tasks_of(recipe)
    row_length = min(decided(recipe.model.max_seq_len), LONGEST)
    for number, task in enumerate(tasks):
        refuse_too_much(recipe, task, number, row_length)
    tokenizer = build_tokenizer(recipe)
    model = model_with_weights(recipe, job, row_length=row_length)
    subject = LoadedSubject(
        model, recipe, tokenizer, build_marking(recipe, tokenizer), row_length, cache_folder
    )
    for number, task in enumerate(tasks):
        with placed((*TASKS, number)):
            numbers: Numbers = task.builder()(task, subject=subject)
        yield {"task": task.name, "data": data_name(task), **numbers}


def tasks_of(recipe: Recipe) -> tuple[TaskConfig, ...]:
    """The tasks of the recipe; where it names none, what can be measured on its held-out data. Raises a problem where that is nothing."""
    if recipe.evaluation.tasks:
        return recipe.evaluation.tasks
    dataset = recipe.validation.dataset
    if dataset is None:
        help = "set validation.dataset, or 'evaluation.tasks=[{name: loss, dataset: {...}}]'"
        raise fail(
            "usage",
            "the recipe has no held-out data to measure the model on",
            path=TASKS,
            help=help,
        )
    data = {"dataset": dataset}
    loss = LossTaskConfig.model_validate({**data, "seq_len": recipe.validation.seq_len})
    return (
        (loss, ExactMatchTaskConfig.model_validate(data))
        if isinstance(dataset, ConversationsConfig)
        else (loss,)
    )


def refuse_too_much(recipe: Recipe, task: TaskConfig, number: int, row_length: int) -> None:
    """Raises a problem for a task that the model cannot do, before anything is loaded."""
    if "text generation" in recipe.model.lacks and isinstance(task, ExactMatchTaskConfig):
        message = (
            f"titanrun does not generate with a {recipe.model.name} model, so it gives no replies"
        )
        raise fail(
            "usage", message, path=(*TASKS, number), help="take the task loss or multiple_choice"
        )
    seq_len = getattr(task, "seq_len", None)
    if isinstance(seq_len, int) and seq_len > row_length:
        message = (
            f"rows of {seq_len} tokens are longer than the model's, which have {row_length} at most"
        )
        raise fail("usage", message, path=(*TASKS, number, "seq_len"), help="take shorter ones")


def data_name(task: TaskConfig) -> str:
    """What a task is measured on, in a word or a path."""
    source = getattr(task, "dataset", task)
    named = (
        getattr(source, "path", None)
        or getattr(source, "split", None)
        or getattr(source, "task", None)
    )
    return ", ".join(filter(None, [source.name if source is not task else None, named]))


def line_of(found: dict[str, Any]) -> str:
    """What a task found, for a person."""
    numbers = {name: value for name, value in found.items() if name not in ("task", "data")}
    return f"{found['task']} on {found['data']}: " + ", ".join(
        f"{name} {number_text(value)}" for name, value in numbers.items()
    )


def number_text(value: float) -> str:
    """A number as short as it can be said."""
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.4f}"
        if math.isfinite(value) and value < 1e6
        else f"{value:.3e}"
    )


if __name__ == "__main__":
    sys.exit(main())
