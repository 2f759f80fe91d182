"""Collectives of Python objects, in which an error on one rank is raised on all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.data_waits import WaitStopped
from titanrun.distributed.process_group import init_companion_group, new_no_timeout_group
from titanrun.distributed.rank_env import RankInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankGroup:
    """This rank within a process group. A single rank needs no group."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def broadcast_from_main(self, work: Callable[[], T]) -> T:
        """Run `work` on the first rank and return its result on all ranks.

        The other ranks wait. An exception is raised on all ranks. All ranks must call this.
        """
        if self.size == 1:
            return work()
        result, error = call_and_catch(work) if self.rank == 0 else (None, None)
        box = [(result, serialize_error(error))]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        if error is not None:
            raise error
        decided: T = _get_or_raise(box[0])
        return decided

    def all_gather_results(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on every rank and return the results of all ranks in rank order.

        An exception on one rank is raised on all. All ranks must call this.
        """
        if self.size == 1:
            return [work()]
        result, error = call_and_catch(work)
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, (result, serialize_error(error)), group=self.group)
        if error is not None:
            raise error
        return [_get_or_raise(box) for box in boxes]


def get_default_rank_group() -> RankGroup:
    """Return the ranks of the default process group, or a single rank without one."""
    if not dist.is_available() or not dist.is_initialized():
        return RankGroup()
    return RankGroup(dist.get_rank(), dist.get_world_size())


def new_file_io_group() -> RankGroup:
    """Return the same ranks in a separate group for file operations.

    Its messages are never mixed with those of training, and its timeout is long. All ranks must
    call this.
    """
    if get_default_rank_group().size == 1:
        return RankGroup()
    return RankGroup(dist.get_rank(), dist.get_world_size(), new_no_timeout_group())


def join_companion_group(rank_info: RankInfo, name: str) -> RankGroup:
    """Join the companion process of this rank to those of the other ranks under `name`."""
    init_companion_group(rank_info, name)
    return get_default_rank_group()


def call_and_catch(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of `work`, or its exception."""
    try:
        return work(), None
    except Exception as error:  # of any kind: the waiting ranks must receive it
        return None, error


def serialize_error(error: Exception | None) -> Any:
    """Convert an error for another process.

    Problems and stopped waits stay as they are, OSError keeps its number, all others become text.
    """
    if isinstance(error, ProblemsFound):
        return error.problems
    if isinstance(error, WaitStopped):
        return error
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return (
        None
        if error is None
        else RuntimeError(f"in another process: {type(error).__name__}: {error}")
    )


def raise_serialized_error(error: Any) -> None:
    """Raise the error that `serialize_error` returned in another process, if there is one."""
    if error is not None:
        raise ProblemsFound(error) if isinstance(error, tuple) else error


def _get_or_raise(box: tuple[Any, Any]) -> Any:
    raise_serialized_error(box[1])
    return box[0]
