"""The order of copies to the host and of the work beside them, on streams that note it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from titanrun.distributed.host_copies import HostCopies

META = torch.device("meta")


class Stream:
    """Notes what it waits for, and gives out an event."""

    def __init__(self, name: str, done: list[str]) -> None:
        self.name, self.done = name, done

    def __enter__(self) -> None:
        self.done.append(f"{self.name} is current")

    def __exit__(self, *error: object) -> None:
        self.done.append(f"{self.name} was current")

    def wait_stream(self, other: "Stream") -> None:
        self.done.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.done.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> Any:
        self.done.append("event")
        host = lambda: self.done.append("host waits for the event")  # noqa: E731
        return SimpleNamespace(name="the event", synchronize=host)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to streams and copies."""
    found: list[str] = []
    training, side = Stream("training", found), Stream("side", found)
    accelerator = SimpleNamespace(current_accelerator=lambda: META, current_stream=lambda: training)
    monkeypatch.setattr(torch, "accelerator", accelerator)
    monkeypatch.setattr(torch, "Stream", lambda device: side)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: found.append(f"held by {stream.name}")
    )

    def copy(target: Any, source: Any, *, non_blocking: bool = False) -> None:
        found.append("queued copy" if non_blocking else "copy")

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    return found


def test_copies_follow_the_step_and_precede_the_next_update(done: list[str]) -> None:
    copies = HostCopies()
    pair = (torch.empty(2), torch.empty(2, device=META))
    copies.start({"w": pair}, is_locked=True)
    assert done == [
        "side waits for training",
        "side is current",
        "queued copy",
        "held by side",
        "event",
        "side was current",
    ]
    done.clear()
    copies.wait_on_device()
    assert done == ["training waits for the event"]
    copies.wait()
    assert done[1:] == ["host waits for the event"]


@pytest.mark.parametrize(("device", "is_locked"), [("meta", False), ("cpu", True)])
def test_copies_are_complete_where_they_cannot_be_queued(
    device: str, is_locked: bool, done: list[str]
) -> None:
    copies = HostCopies()
    copies.start({"w": (torch.empty(2), torch.empty(2, device=device))}, is_locked=is_locked)
    copies.wait_on_device()
    copies.wait()
    assert done == ["copy"]
