"""Loss on held-out data: the same batches every time, every token weighing the same."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from titanrun.components.data.batch import Batch, BatchMaker, TokenBatches, divisor_of
from titanrun.components.data.loader import loader_processes
from titanrun.components.data.loader_processes import stacked
from titanrun.components.data.rows import Rows
from titanrun.components.validation.config import ValidationConfig
from titanrun.config.placed import placed
from titanrun.config.problems import DataPath


class Evaluation(Protocol):
    """The loss of one batch as a sum, and the tokens it was summed over."""

    @property
    def loss_sum(self) -> Tensor: ...

    @property
    def valid_tokens(self) -> Tensor: ...


class Validator:
    """Measures the loss over the first `steps` batches of the held-out rows, or over all of them once.

    Which rows those are does not depend on the ranks: they are dealt to them in equal, consecutive shares, the last of which are
    filled up with rows that count nothing, so that all ranks make equally many passes of the same shape. `place`: of the dataset in the
    recipe, for problems with it.
    """

    def __init__(
        self,
        config: ValidationConfig,
        *,
        rows: Rows,
        batches: BatchMaker | None = None,
        dp_rank: int = 0,
        dp_size: int = 1,
        place: DataPath = (),
    ) -> None:
        assert config.local_batch_size != "auto"
        self.rows, self._place = rows, place
        self.batches = TokenBatches() if batches is None else batches
        self.rows_per_batch = config.local_batch_size
        self.every_steps = config.freq
        available = len(rows) if config.steps is None else config.steps * config.local_batch_size
        self.row_count = min(available, len(rows))
        self._share = math.ceil(self.row_count / dp_size)
        self._share_start = dp_rank * self._share
        self._processes = loader_processes(rows, self._numbers_at, config.dataloader)
        self._processes_stay = config.dataloader.persistent_workers

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the model is validated after `step`: the first, every freq-th and the last."""
        return step == 1 or step % self.every_steps == 0 or is_last

    def measure(
        self, evaluate: Callable[[Any], Evaluation], *, stop: Callable[[], bool] = lambda: False
    ) -> float | None:
        """Mean loss of a valid token. `evaluate` finds the model in evaluation mode; None when `stop` broke it off."""
        sums, counts = [], []
        for number in range(math.ceil(self._share / self.rows_per_batch)):
            if stop():
                return None
            output = evaluate(self._batch(number))
            sums.append(output.loss_sum)
            counts.append(output.valid_tokens)
        if not self._processes_stay:
            self.close()
        # one transfer for all batches; summed in fp64, where the order does not matter
        total = torch.stack(sums).cpu().double().sum()
        return float(total / divisor_of(torch.stack(counts).cpu().double().sum()))

    def close(self) -> None:
        """End the processes that read ahead."""
        if self._processes is not None:
            self._processes.close()

    def _batch(self, number: int) -> Batch:
        """A batch of this rank's share; the last row of all fills it up, and counts nothing."""
        with placed(self._place):
            self.rows.check()
            rows = (
                stacked(self.rows, self._numbers(number))
                if self._processes is None
                else self._processes.batch(number)
            )
            self.rows.check()
        end = min(self._share_start + self._share, self.row_count)
        return self.batches.held_out(
            rows, counted=max(0, end - self._share_start - number * self.rows_per_batch)
        )

    def _numbers_at(self, number: int) -> list[int] | None:
        """The numbers of the rows of a batch; None behind the last one."""
        return self._numbers(number) if number * self.rows_per_batch < self._share else None

    def _numbers(self, number: int) -> list[int]:
        first = self._share_start + number * self.rows_per_batch
        return [
            min(index, self.row_count - 1) for index in range(first, first + self.rows_per_batch)
        ]


class Validators:
    """Several held-out sets, each with the name of the metric that its loss is logged as; the first one says when they are measured."""

    def __init__(self, sets: Mapping[str, Validator]) -> None:
        self._sets = dict(sets)
        self._first = next(iter(self._sets.values()))

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the model is validated after `step`."""
        return self._first.is_due(step, is_last=is_last)

    def measure(
        self, evaluate: Callable[[Any], Evaluation], *, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float]:
        """The loss of each set; those that `stop` broke off are left out."""
        losses = {
            name: validator.measure(evaluate, stop=stop) for name, validator in self._sets.items()
        }
        return {name: loss for name, loss in losses.items() if loss is not None}

    def close(self) -> None:
        """End the processes that read ahead."""
        for validator in self._sets.values():
            validator.close()
