"""What a set of named tensors looks like without their values, and how two such sets differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# names of one kind that a message lists before it counts the rest
NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and type of one tensor; of a sharded one, of the whole."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def layouts(tensors: Mapping[str, Tensor]) -> dict[str, Layout]:
    """The layout of each tensor by name."""
    return {name: Layout(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def differences(saved: Mapping[str, Layout], wanted: Mapping[str, Layout]) -> list[str]:
    """Every way in which `saved` is not exactly `wanted`, one text a kind; empty where they agree."""
    both = saved.keys() & wanted.keys()
    kinds = {
        "missing": sorted(wanted.keys() - saved.keys()),
        "unexpected": sorted(saved.keys() - wanted.keys()),
        "another shape": [
            f"{name} ({saved[name]}, wanted {wanted[name]})"
            for name in sorted(both)
            if saved[name].shape != wanted[name].shape
        ],
        "another type": [
            f"{name} ({saved[name]}, wanted {wanted[name]})"
            for name in sorted(both)
            if saved[name].shape == wanted[name].shape and saved[name].dtype != wanted[name].dtype
        ],
    }
    return [f"{kind}: {_shortened(names)}" for kind, names in kinds.items() if names]


def _shortened(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:NAMES_SHOWN])
    rest = len(listed) - NAMES_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
