"""Sequences read just as a trainer reads them: passes of the same shape, so that kernels take the same way through the same numbers.

Shapes: N rows of a pass, T tokens of a row, B sequences, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from titanrun.components.data.documents import Marking
from titanrun.rl.packing import empty_rows


@dataclass(frozen=True, slots=True)
class AsTrained:
    """Reads sequences, each in a row of its own.

    Args:
        rows: of a trainer's pass.
        length: tokens of a row.
        marking: numbers the documents of rows, as the trainer's does.
    """

    rows: int
    length: int
    marking: Marking

    def __call__(
        self, model: Any, sequences: Sequence[Sequence[int]], *, device: torch.device
    ) -> Tensor:
        """Logits [B, V] after each sequence."""
        return torch.cat(
            [
                self._pass(model, sequences[start : start + self.rows], device)
                for start in range(0, len(sequences), self.rows)
            ]
        )

    def _pass(self, model: Any, sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
        batch = empty_rows(self.rows, self.length)
        assert batch.positions is not None
        for row, sequence in enumerate(sequences):
            end = len(sequence)
            batch.tokens[row, :end] = torch.tensor(sequence)
            # what is left of a row is a document of its own
            batch.positions[row, end:] = torch.arange(self.length - end)
        logits_NTV = self.marking(batch).to(device).through(model)
        last_B = torch.tensor([len(sequence) - 1 for sequence in sequences], device=device)
        return logits_NTV[torch.arange(len(sequences), device=device), last_B]
