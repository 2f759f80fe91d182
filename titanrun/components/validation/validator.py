"""Loss on held-out data: the same batches every time, every token weighing the same."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from titanrun.components.data.batch import TokenBatch
from titanrun.components.validation.config import ValidationConfig


class Rows(Protocol):
    """Indexed rows of seq_len + 1 token ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NDArray[np.int64]: ...


class Evaluation(Protocol):
    """The loss of one batch as a sum, and the tokens it was summed over."""

    @property
    def loss_sum(self) -> Tensor: ...

    @property
    def valid_tokens(self) -> Tensor: ...


class Validator:
    """Measures the loss over the first `steps` batches of the held-out rows, or over all of them once."""

    def __init__(self, config: ValidationConfig, *, rows: Rows) -> None:
        assert config.local_batch_size != "auto"
        self.rows = rows
        self.rows_per_batch = config.local_batch_size
        self.every_steps = config.freq
        available = len(rows) if config.steps is None else config.steps * config.local_batch_size
        self.row_count = min(available, len(rows))

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the model is validated after `step`: the first, every freq-th and the last."""
        return step == 1 or step % self.every_steps == 0 or is_last

    def measure(self, evaluate: Callable[[TokenBatch], Evaluation], *, stop: Callable[[], bool] = lambda: False) -> float | None:
        """Mean loss of a valid token. `evaluate` finds the model in evaluation mode; None when `stop` broke it off."""
        sums, counts = [], []
        for start in range(0, self.row_count, self.rows_per_batch):
            if stop():
                return None
            output = evaluate(self._batch(start))
            sums.append(output.loss_sum)
            counts.append(output.valid_tokens)
        # one transfer for all batches; summed in fp64, where the order does not matter
        total = torch.stack(sums).cpu().double().sum()
        return float(total / torch.stack(counts).cpu().sum().clamp(min=1))

    def _batch(self, start: int) -> TokenBatch:
        end = min(start + self.rows_per_batch, self.row_count)
        return TokenBatch.from_rows(np.stack([self.rows[index] for index in range(start, end)]))
