"""Forward passes of the generator with exactly the shapes of the trainer's passes.

With equal shapes, kernels compute bitwise equal results.

Shapes: N sequences of a pass, T tokens per sequence, B prompts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from titanrun.components.data.document_ids import DocumentIdFn
from titanrun.rl.rollout_packing import build_empty_batch


@dataclass(frozen=True, slots=True)
class BatchInvariantForward:
    """Forward pass with one prompt per sequence.

    Args:
        local_batch_size: sequences of a trainer's pass.
        seq_len: tokens per sequence.
        document_id_fn: assigns document ids, same as the trainer's.
    """

    local_batch_size: int
    seq_len: int
    document_id_fn: DocumentIdFn

    def __call__(
        self, model: Any, sequences: Sequence[Sequence[int]], *, device: torch.device
    ) -> Tensor:
        """Compute logits [B, V] after each prompt."""
        return torch.cat(
            [
                self._forward_batch(model, sequences[start : start + self.local_batch_size], device)
                for start in range(0, len(sequences), self.local_batch_size)
            ]
        )

    def _forward_batch(
        self, model: Any, sequences: Sequence[Sequence[int]], device: torch.device
    ) -> Tensor:
        batch = build_empty_batch(self.local_batch_size, self.seq_len)
        assert batch.positions is not None
        for index, sequence in enumerate(sequences):
            end = len(sequence)
            batch.tokens[index, :end] = torch.tensor(sequence)
            # the padding is a separate document
            batch.positions[index, end:] = torch.arange(self.seq_len - end)
        logits_NTV = self.document_id_fn(batch).to(device).forward_model(model)
        last_B = torch.tensor([len(sequence) - 1 for sequence in sequences], device=device)
        return logits_NTV[torch.arange(len(sequences), device=device), last_B]
