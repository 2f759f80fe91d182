"""A command's process as one of several that split a model, and how it tells of its failure."""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from titanrun.distributed.config import CommConfig
from titanrun.distributed.degrees import Degrees
from titanrun.distributed.device import find_device
from titanrun.distributed.environment import Place, read_place
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.processes import is_open, meet, process_group
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.run_files import write_json
from titanrun.worker.__main__ import leave_at_once
from titanrun.worker.failures import failure_of


@contextmanager
def tensor_ranks(recipe: Recipe) -> Iterator[Meshes]:
    """Within the block the processes that the launcher started are the tensor-parallel ranks of one model."""
    place, comm = read_place(), CommConfig()
    device = find_device(recipe.device, local_rank=place.local_rank)
    store = meet(place, timeout_seconds=comm.init_timeout_seconds)
    with process_group(store, place, device=device, comm=comm):
        yield Meshes(Degrees(tensor=place.world_size), device)


def as_rank(work: Callable[[bool], None]) -> int:
    """Does the work, told whether this process speaks for all. Returns the exit code; why it failed the launcher says, once for all."""
    place = read_place()
    try:
        work(place.is_first)
    except Exception as error:
        code = told(error, place)
        if is_open():
            leave_at_once(code)
        return code
    return 0


def told(error: BaseException, place: Place) -> int:
    """Writes down for the launcher why this process failed. Returns the exit code."""
    failure = failure_of(error)
    text = (
        "".join(traceback.format_exception(error)) + failure.text
        if failure.is_internal
        else failure.text
    )
    assert place.failure_file is not None
    record = {
        "time": time.time(),
        "is_of_another": failure.is_of_another,
        "text": text,
        "exit_code": failure.exit_code,
    }
    write_json(place.failure_file, record)
    return failure.exit_code
