"""Shapes and dtypes of named tensors, and differences between two sets of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# maximum number of names of one kind in a message
NAMES_SHOWN = 4
DIFFERENT_DTYPE = "different dtype"


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Shape and dtype of one tensor, of a sharded one the global shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def get_tensor_metadata(tensors: Mapping[str, Tensor]) -> dict[str, TensorMetadata]:
    """Return the metadata of each tensor by name."""
    return {
        name: TensorMetadata(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()
    }


def find_tensor_mismatches(
    saved: Mapping[str, TensorMetadata], wanted: Mapping[str, TensorMetadata]
) -> list[str]:
    """Return the differences between `saved` and `wanted`, one text per kind.

    Empty if they are equal.
    """
    both = saved.keys() & wanted.keys()
    kinds = {
        "missing": sorted(wanted.keys() - saved.keys()),
        "unexpected": sorted(saved.keys() - wanted.keys()),
        "different shape": [
            f"{name} ({saved[name]}, wanted {wanted[name]})"
            for name in sorted(both)
            if saved[name].shape != wanted[name].shape
        ],
        DIFFERENT_DTYPE: [
            f"{name} ({saved[name]}, wanted {wanted[name]})"
            for name in sorted(both)
            if saved[name].shape == wanted[name].shape and saved[name].dtype != wanted[name].dtype
        ],
    }
    return [f"{kind}: {_shorten_names(names)}" for kind, names in kinds.items() if names]


def _shorten_names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:NAMES_SHOWN])
    rest = len(listed) - NAMES_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
