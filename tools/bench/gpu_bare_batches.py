"""Batches of the bare loop, on the device before a step asks for them. It imports torch only."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Staged = TypeVar("Staged")


def iter_rows(rows_NS: Any, batch: int) -> Iterator[Tensor]:
    """Yield batches in order, from the beginning again at the end."""
    start = 0
    while True:
        yield torch.from_numpy(rows_NS[start : start + batch].astype("int64"))
        start = (start + batch) % (len(rows_NS) // batch * batch)


def iter_staged(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield batches on the device. Each is copied while the step before it runs.

    Copies are made from pinned memory on a stream of their own: the device waits for none of them
    and the host for nothing.
    """
    if device.type == "cpu":
        yield from batches
        return
    copies = torch.cuda.Stream(device)

    def stage(batch: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        pinned = batch.pin_memory()
        with torch.cuda.stream(copies):
            return pinned.to(device, non_blocking=True), copies.record_event()

    for staged, copied in look_ahead(map(stage, batches)):
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        # its memory is the copies' stream's own: not to be reused before the step read it
        staged.record_stream(current)
        yield staged


def look_ahead(items: Iterable[Staged]) -> Iterator[Staged]:
    """Yield items, each after the next one was made."""
    iterator = iter(items)
    item = next(iterator)
    for following in iterator:
        yield item
        item = following
    yield item
