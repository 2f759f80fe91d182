"""Storage dtype and compute dtype of training."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from titanrun.distributed.dtypes import get_dtype


@dataclass(frozen=True, slots=True)
class Precision:
    """Storage dtype of weights, gradients and optimizer states, and dtype of matrix products.

    RoPE and the loss stay in fp32.
    """

    storage_dtype: torch.dtype
    compute_dtype: torch.dtype

    @property
    def without_autocast(self) -> "Precision":
        """Precision of a model whose weights arrive in the compute dtype, as FSDP gathers them."""
        return Precision(self.storage_dtype, self.storage_dtype)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return an autocast context to `compute_dtype` for a forward pass.

        The context does nothing if the storage dtype is the one to compute in.
        """
        if self.storage_dtype != torch.float32 or self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.compute_dtype)


def get_precision(storage: str, compute: str) -> Precision:
    """Return the precision of `training.dtype` and `training.mixed_precision_param`.

    Weights stored in bf16 also compute in bf16.
    """
    stored = get_dtype(storage)
    return Precision(stored, get_dtype(compute) if stored == torch.float32 else stored)
