"""Where the processes of a run meet, and the process group in which they work together."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from titanrun.config.problems import fail
from titanrun.distributed.config import CommConfig
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.environment import Place
from titanrun.distributed.liveness import sign_of_life

LOOK_SECONDS = 0.02
# under which the first rank leaves its exit code where it ends before the run begins
LEFT = "left"
# how long ranks wait for one that writes files; whether it still gets anywhere, others watch
PATIENCE = timedelta(days=1)
PATIENT = "titanrun: patient"
# the back end of ranks that are not there
FAKE = "fake"
# imported by name, where it is wanted: once it is there, torch warns about every real group
FAKE_GROUPS = "torch.testing._internal.distributed.fake_pg"
# gloo says nothing else by which its errors could be told from others
GLOO = ("gloo", "Connection closed by peer")


def meet(place: Place, *, timeout_seconds: int) -> dist.Store:
    """The store in which the ranks find each other: at the socket that our launcher opened, or at the address that torchrun set.

    Raises ProblemsFound where they do not.
    """
    timeout = timedelta(seconds=timeout_seconds)
    if place.store_socket is None:
        try:
            store, _, _ = next(
                dist.rendezvous("env://", place.rank, place.world_size, timeout=timeout)
            )
        except (ValueError, dist.DistError) as error:
            message = f"rank {place.rank} of {place.world_size} cannot meet the others: {str(error).splitlines()[0]}"
            raise fail(
                "usage", message, help="start the ranks by titanrun train --nproc, torchrun or srun"
            ) from error
        store.set_timeout(timeout)
        return cast(dist.Store, store)
    return dist.TCPStore(
        "127.0.0.1",
        place.store_port,
        place.world_size,
        is_master=place.rank == 0,
        master_listen_fd=place.store_socket,
        wait_for_workers=False,
        timeout=timeout,
    )


def from_first(
    store: dist.Store, place: Place, key: str, tell: Callable[[], str], *, until: Callable[[], bool]
) -> str | None:
    """What `tell` gives on the first rank, on every rank; None where `until` ended the wait for it."""
    try:
        if place.is_first:
            store.set(key, tell())
        # looking again and again instead of waiting: a signal is heard only between two calls
        while not store.check([key]):
            if store.check([LEFT]):
                raise SystemExit(int(store.get(LEFT)))
            if until():
                return None
            time.sleep(LOOK_SECONDS)
        return store.get(key).decode()
    except dist.DistError as error:
        message = (
            f"rank {place.rank} of {place.world_size} lost the first rank before the run began"
        )
        raise fail("internal", message, help="what that one says is the reason") from error


def leave(store: dist.Store, exit_code: int) -> None:
    """On the first rank: tells all that wait for it that there will be no run; they end with its exit code."""
    store.set(LEFT, str(exit_code))


@contextmanager
def first_alone(store: dist.Store | None, place: Place, key: str) -> Iterator[None]:
    """The first rank runs the block while the others wait, however long it takes; then they run it. `store` is None for one alone."""
    if store is not None and not place.is_first:
        while not store.check([key]):
            # the first rank is watched where it works
            sign_of_life()
            time.sleep(LOOK_SECONDS)
    yield
    if store is not None and place.is_first:
        store.set(key, "done")


def first_decides(claim: bool) -> bool:
    """What the first rank claims, on every rank; a rank alone decides for itself."""
    if not is_open():
        return claim
    told = torch.tensor([claim])
    dist.broadcast(told, src=0)
    return bool(told)


@contextmanager
def process_group(
    store: dist.Store, place: Place, *, device: torch.device, comm: CommConfig
) -> Iterator[None]:
    """Within the block the ranks communicate: nccl (or what fits the accelerator) on devices, gloo on CPUs.

    Where the block fails the group stays open: closing it would wait for ranks that may be gone.
    """
    backend = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(
        f"{device.type}:{backend}" if device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}",
        store=dist.PrefixStore("ranks", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=comm.init_timeout_seconds),
        device_id=device if is_accelerator(device) else None,
    )
    yield
    # the first rank may still write files, as an export does, and it holds the store: nobody may need that when it leaves
    set_timeout(int(PATIENCE.total_seconds()))
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """Within the block this process is `rank` of so many, whose collectives give back what they were given."""
    store = import_module(FAKE_GROUPS).FakeStore()
    dist.init_process_group(FAKE, store=store, rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def set_timeout(seconds: int) -> None:
    """How long a collective of any group but the patient ones may take from now on."""
    for group in list(distributed_c10d._world.pg_map):
        if group.group_desc != PATIENT and dist.get_backend(group) != FAKE:
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def patient_group() -> dist.ProcessGroup:
    """A group of all ranks on their hosts, in which one may take as long over files as it needs."""
    backend = FAKE if dist.get_backend() == FAKE else "gloo"
    group: dist.ProcessGroup = dist.new_group(backend=backend, timeout=PATIENCE, group_desc=PATIENT)
    return group


def meet_again(place: Place, name: str) -> None:
    """Opens a group of processes beside the ranks, one of each rank, which meet at the ranks' store under a name of their own."""
    store = dist.TCPStore(
        place.store_host,
        place.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=PATIENCE,
    )
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(name, store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=PATIENCE,
    )


def is_open() -> bool:
    """Whether this process is in a process group, so that its end would wait for others."""
    return dist.is_available() and dist.is_initialized()


def is_of_another_rank(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone or silent."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in GLOO)
