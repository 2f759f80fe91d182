"""Loss on held-out data: the same batches every time, every token weighing the same."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from titanrun.components.data.batch import Batch, BatchMaker, TokenBatches
from titanrun.components.validation.config import ValidationConfig
from titanrun.config.placed import placed
from titanrun.config.problems import DataPath


class Rows(Protocol):
    """Indexed rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NDArray[Any]: ...

    def check(self) -> None: ...


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
        self.rows = rows
        self.batches = TokenBatches() if batches is None else batches
        self._place = place
        self.rows_per_batch = config.local_batch_size
        self.every_steps = config.freq
        available = len(rows) if config.steps is None else config.steps * config.local_batch_size
        self.row_count = min(available, len(rows))
        self._share = math.ceil(self.row_count / dp_size)
        self._share_start = dp_rank * self._share

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the model is validated after `step`: the first, every freq-th and the last."""
        return step == 1 or step % self.every_steps == 0 or is_last

    def measure(self, evaluate: Callable[[Any], Evaluation], *, stop: Callable[[], bool] = lambda: False) -> float | None:
        """Mean loss of a valid token. `evaluate` finds the model in evaluation mode; None when `stop` broke it off."""
        sums, counts = [], []
        for start in range(0, self._share, self.rows_per_batch):
            if stop():
                return None
            output = evaluate(self._batch(start))
            sums.append(output.loss_sum)
            counts.append(output.valid_tokens)
        # one transfer for all batches; summed in fp64, where the order does not matter
        total = torch.stack(sums).cpu().double().sum()
        return float(total / torch.stack(counts).cpu().sum().clamp(min=1))

    def _batch(self, start: int) -> Batch:
        """The rows from `start` of this rank's share on; the last row of all fills the batch up, and counts nothing."""
        first = self._share_start + start
        wanted = range(first, first + self.rows_per_batch)
        end = min(self._share_start + self._share, self.row_count)
        with placed(self._place):
            self.rows.check()
            rows = np.stack([self.rows[min(index, self.row_count - 1)] for index in wanted])
            self.rows.check()
        return self.batches.held_out(rows, counted=max(0, end - first))
