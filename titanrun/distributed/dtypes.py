"""Torch dtypes by their name in recipes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def get_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name in a recipe."""
    return DTYPES[name]


@contextmanager
def set_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make this the default dtype of new floating-point tensors within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
