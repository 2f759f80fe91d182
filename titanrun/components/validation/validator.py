"""Loss on held-out data: the same batches every time, with equal weights of all tokens."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from titanrun.components.data.dataloader import create_dataloader_workers
from titanrun.components.data.dataloader_workers import stack_samples
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.sample_order import view_first_epoch
from titanrun.components.data.token_batch import Batch, compute_loss_divisor
from titanrun.components.data.token_collator import Collator, TokenCollator
from titanrun.components.validation.config import ValidationConfig
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath


class BatchLoss(Protocol):
    """Loss of one batch as a sum, with its number of tokens."""

    @property
    def loss_sum(self) -> Tensor:
        """Sum of the loss over all tokens in the loss."""

    @property
    def valid_tokens(self) -> Tensor:
        """Number of tokens in the loss."""

    @property
    def accuracy_counts(self) -> Tensor | None:
        """Labels that are the likeliest tokens, and all labels in the loss; None if not counted."""


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """Result of a validation.

    Args:
        loss: mean loss per valid token.
        accuracy: share of the labels that are the likeliest tokens. None if nothing was counted.
    """

    loss: float
    accuracy: float | None = None


class Validator:
    """Loss over the first `steps` batches of the held-out samples, or over all of them once.

    The samples do not depend on the ranks: these get equal, consecutive shares, the last of which
    are padded with samples that do not count, so that all ranks run the same number of forward
    passes of the same shape. `recipe_path` is the path of the dataset in the recipe, for problems
    with it.
    """

    def __init__(
        self,
        config: ValidationConfig,
        *,
        dataset: IndexedDataset,
        collator: Collator | None = None,
        dp_rank: int = 0,
        dp_size: int = 1,
        recipe_path: DataPath = (),
    ) -> None:
        assert config.local_batch_size != "auto"
        dataset = view_first_epoch(dataset)
        self.dataset, self._recipe_path = dataset, recipe_path
        self.collator = TokenCollator() if collator is None else collator
        self.local_batch_size = config.local_batch_size
        self.interval_steps = config.freq
        available = len(dataset) if config.steps is None else config.steps * config.local_batch_size
        self.num_samples = min(available, len(dataset))
        self._samples_per_rank = math.ceil(self.num_samples / dp_size)
        self._first_sample = dp_rank * self._samples_per_rank
        self._workers = create_dataloader_workers(
            dataset, self._find_sample_indices, config.dataloader
        )
        self._has_persistent_workers = config.dataloader.persistent_workers

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Return whether to validate after `step`: the first, every freq-th and the last."""
        return step == 1 or step % self.interval_steps == 0 or is_last

    def validate(
        self,
        evaluate: Callable[[Any], BatchLoss],
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> HeldOutScore | None:
        """Return loss and accuracy, or None if `should_stop` interrupted it.

        `evaluate` must run the model in evaluation mode.
        """
        outputs = []
        for number in range(math.ceil(self._samples_per_rank / self.local_batch_size)):
            if should_stop():
                return None
            outputs.append(evaluate(self._load_batch(number)))
        if not self._has_persistent_workers:
            self.close()
        loss_sum = sum_on_host([output.loss_sum for output in outputs])
        count = sum_on_host([output.valid_tokens for output in outputs])
        loss = float(loss_sum / compute_loss_divisor(count))
        counted = [
            output.accuracy_counts for output in outputs if output.accuracy_counts is not None
        ]
        right, labels = sum_on_host(counted).tolist() if counted else (0, 0)
        return HeldOutScore(loss, right / labels if labels else None)

    def close(self) -> None:
        """Stop the worker processes."""
        if self._workers is not None:
            self._workers.close()

    def _load_batch(self, number: int) -> Batch:
        """Return a batch of this rank's share, padded with a sample that does not count."""
        with nest_problems(self._recipe_path):
            self.dataset.check()
            samples = (
                stack_samples(self.dataset, self._get_sample_indices(number))
                if self._workers is None
                else self._workers.get_batch(number)
            )
            self.dataset.check()
        end = min(self._first_sample + self._samples_per_rank, self.num_samples)
        return self.collator.collate_validation(
            samples, num_counted=max(0, end - self._first_sample - number * self.local_batch_size)
        )

    def _find_sample_indices(self, number: int) -> list[int] | None:
        """Return the sample indices of a batch, None after the last one."""
        return (
            self._get_sample_indices(number)
            if number * self.local_batch_size < self._samples_per_rank
            else None
        )

    def _get_sample_indices(self, number: int) -> list[int]:
        first = self._first_sample + number * self.local_batch_size
        return [
            min(index, self.num_samples - 1)
            for index in range(first, first + self.local_batch_size)
        ]


def sum_on_host(values: list[Tensor]) -> Tensor:
    """Sum over the list in fp64, so that the order does not matter; one transfer for all."""
    return torch.stack(values).cpu().double().sum(0)


class ValidatorGroup:
    """Validators of several held-out sets by the prefix of their metrics, such as `validation`.

    The first one decides when they are all validated.
    """

    def __init__(self, sets: Mapping[str, Validator]) -> None:
        self._sets = dict(sets)
        self._first = next(iter(self._sets.values()))

    def __iter__(self) -> Iterator[tuple[str, Validator]]:
        """Return the prefixes with their validators."""
        return iter(self._sets.items())

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Return whether to validate after `step`."""
        return self._first.is_due(step, is_last=is_last)

    def close(self) -> None:
        """Stop the worker processes."""
        for validator in self._sets.values():
            validator.close()
