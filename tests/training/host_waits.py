"""Operators for which the host waits until the device has computed their input."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# size or value of the result depends on values of the device
WAITING = {
    "aten::_local_scalar_dense": "item(), tolist(), int(), float() and if",
    "aten::is_nonzero": "if",
    "aten::equal": "torch.equal",
    "aten::nonzero": "as many rows as values that are not 0",
    "aten::masked_select": "as many values as are selected",
    "aten::_unique": "as many values as differ",
    "aten::_unique2": "as many values as differ",
    "aten::unique_dim": "as many values as differ",
    "aten::unique_consecutive": "as many values as differ",
    "aten::unique_dim_consecutive": "as many values as differ",
    "aten::bincount": "as many bins as the largest value",
    "aten::repeat_interleave": "as many rows as the sum of the repeats",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
COPIES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from"}
# where the host waits by design: what it is, the operator, and why it may
ALLOWED = {
    "documents numbered on the device": (
        "aten::nonzero",
        "varlen attention needs the documents' ends; the data loader numbers them on the host",
    ),
    "classes of transformers": (
        "aten::_local_scalar_dense",
        "the library looks at positions for several documents, once a pass",
    ),
    "policies skip and rollback": (
        "aten::_to_copy",
        "they decide about a step before its update",
    ),
    "a logged step": (
        "aten::_to_copy",
        "it prints the loss, once in log_freq steps",
    ),
}


class HostWaitError(AssertionError):
    """The host would wait for the device."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"{operator} waits for the device")
        self.operator = operator


class RaiseOnHostWait(TorchDispatchMode):
    """Raises `HostWaitError` at operators that would wait for an accelerator, not for the CPU."""

    def __init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        name = operation.name().partition(".")[0]
        if waits(name, arguments, options):
            raise HostWaitError(name)
        return operation(*arguments, **options)


def waits(name: str, arguments: Any, options: dict[str, Any]) -> bool:
    """Whether an operator waits for the device of one of its tensors."""
    leaves = tree_leaves((arguments, options))
    if not any(isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in leaves):
        return False
    if name in INDEXING:
        # a mask is turned into numbers first
        return any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1]
        )
    if name in COPIES:
        return leads_to_cpu(name, arguments, options)
    return name in WAITING


def leads_to_cpu(name: str, arguments: Any, options: dict[str, Any]) -> bool:
    """Whether a copy ends in memory of the host."""
    if name == "aten::_to_copy":
        device = options.get("device")
        return device is not None and torch.device(device).type == "cpu"
    return bool(arguments[0].device.type == "cpu")
