"""The two dtypes of training: what weights, gradients and states are stored in, and what matrix products run in."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from titanrun.distributed.dtypes import dtype_named


@dataclass(frozen=True, slots=True)
class Precision:
    """`storage` of weights, gradients and optimizer states; `compute` of matrix products. RoPE and the loss stay in fp32."""

    storage: torch.dtype
    compute: torch.dtype

    @property
    def without_autocast(self) -> "Precision":
        """For a model whose weights arrive in the compute dtype, as those that FSDP gathers do."""
        return Precision(self.storage, self.storage)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Autocast to `compute` around a forward pass; nothing where the stored type is the one to compute in."""
        if self.storage != torch.float32 or self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.compute)


def precision_named(storage: str, compute: str) -> Precision:
    """The precision of `training.dtype` and `training.mixed_precision_param`; weights stored in bf16 also compute in it."""
    stored = dtype_named(storage)
    return Precision(stored, dtype_named(compute) if stored == torch.float32 else stored)
