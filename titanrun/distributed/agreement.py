"""What the ranks of a run agree on: the first decides and the others follow, and an error on one of them is an error on all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.environment import Place
from titanrun.distributed.processes import meet_again, patient_group

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank among those of a process group; one alone needs no group."""

    rank: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None

    def from_first(self, work: Callable[[], T]) -> T:
        """What `work` gives on the first rank, on all ranks; the others wait for it. What it raises there is raised everywhere."""
        if self.count == 1:
            return work()
        result, error = attempt(work) if self.rank == 0 else (None, None)
        box = [(result, portable(error))]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        if error is not None:
            raise error
        return _unwrapped(box[0])

    def together(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives on every rank, in the order of ranks, on all ranks. What it raises on one of them is raised on all."""
        if self.count == 1:
            return [work()]
        result, error = attempt(work)
        boxes: list[Any] = [None] * self.count
        dist.all_gather_object(boxes, (result, portable(error)), group=self.group)
        if error is not None:
            raise error
        return [_unwrapped(box) for box in boxes]


def current_ranks() -> Ranks:
    """The ranks of the default process group; one alone where there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size())


def ranks_beside() -> Ranks:
    """The same ranks in a group of their own for work with files: its messages never meet those of training, and its waits are long."""
    if current_ranks().count == 1:
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size(), patient_group())


def ranks_met_again(place: Place, name: str) -> Ranks:
    """A process beside this rank among those beside the others; they meet under that name."""
    meet_again(place, name)
    return current_ranks()


def attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What `work` gives, or what it raises."""
    try:
        return work(), None
    except Exception as error:  # whatever it is, those that wait must hear of it
        return None, error


def portable(error: Exception | None) -> Any:
    """An error as what another process can read: problems as they are, the system's errors with their number, the rest as text."""
    if isinstance(error, ProblemsFound):
        return error.problems
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return (
        None
        if error is None
        else RuntimeError(f"in another process: {type(error).__name__}: {error}")
    )


def raise_portable(error: Any) -> None:
    """Raises what `portable` gave in another process, if it was an error."""
    if error is not None:
        raise ProblemsFound(error) if isinstance(error, tuple) else error


def _unwrapped(box: tuple[Any, Any]) -> Any:
    raise_portable(box[1])
    return box[0]
