"""Tensors of a snapshot: dtype of an export, and values that are not finite."""

from collections.abc import Mapping

from torch import Tensor

from titanrun.distributed.dtensor import to_local
from titanrun.distributed.dtypes import get_dtype

MAX_NAMES_SHOWN = 3


def cast_tensors(tensors: Mapping[str, Tensor], dtype_name: str) -> dict[str, Tensor]:
    """Cast floating-point tensors to another dtype. Integer tensors stay."""
    dtype = get_dtype(dtype_name)
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def find_nonfinite_names(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors with NaN or infinite values in this rank's shards."""
    floating = {
        name: to_local(tensor) for name, tensor in tensors.items() if tensor.is_floating_point()
    }
    return [name for name, part in floating.items() if not part.isfinite().all()]


def format_name_list(names: list[str]) -> str:
    """Format the first names and the count of the remaining ones."""
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
