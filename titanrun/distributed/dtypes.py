"""Recipes name dtypes; this table turns the names into torch's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of a name in a recipe."""
    return DTYPES[name]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within the block, new floating-point tensors have this dtype where nobody says another."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
