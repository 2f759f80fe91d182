"""Copies of a model with one set of weights, so that several threads generate at once."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from queue import SimpleQueue
from typing import Any

from torch import nn


class ModelCopies:
    """Copies of a model that share its weights, each lent to one thread at a time.

    Generation puts a KV cache into the modules, and adapters are disabled in them, so that two
    threads must not share modules. Parameters and buffers are only read.

    Args:
        model: the model, which is the first copy.
        count: number of copies, 1 or more.
    """

    def __init__(self, model: nn.Module, count: int = 1) -> None:
        assert count >= 1, "somebody must be able to generate"
        self._free: SimpleQueue[Any] = SimpleQueue()
        self._free.put(model)
        for _ in range(count - 1):
            self._free.put(copy_modules(model))

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Yield a copy that nobody else uses within the block; wait until there is one."""
        model = self._free.get()
        try:
            yield model
        finally:
            self._free.put(model)


def copy_modules(model: nn.Module) -> nn.Module:
    """Return a copy of a model's modules, with the same parameters and buffers."""
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)
