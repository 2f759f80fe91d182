"""Storage dtype and compute dtype of training."""

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
    def as_stored(self) -> "Precision":
        """Precision of weights that compute in the dtype in which they are stored."""
        return Precision(self.storage_dtype, self.storage_dtype)

    @property
    def computes_as_stored(self) -> bool:
        """Whether weights need no cast to be computed with."""
        return self.compute_dtype == self.storage_dtype


def get_precision(storage: str, compute: str) -> Precision:
    """Return the precision of `training.dtype` and `training.mixed_precision_param`.

    Weights stored in bf16 also compute in bf16.
    """
    stored = get_dtype(storage)
    return Precision(stored, get_dtype(compute) if stored == torch.float32 else stored)
