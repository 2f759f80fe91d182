"""Rendezvous of the processes of a run, and their process group."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from titanrun.config.problems import problem_error
from titanrun.distributed.config import CommConfig
from titanrun.distributed.data_waits import WaitStopped
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.distributed.rank_env import RankInfo

POLL_SECONDS = 0.02
# how long the first rank waits for the others to know that it stops
STOP_SECONDS = 5.0
# value of a key for which the other ranks wait
DONE = "done"
# key under which the first rank stores its exit code if it ends before the run begins
ABORT_KEY = "left"
# maximum time that ranks wait for one that writes files; the watchdog checks its progress
FILE_IO_TIMEOUT = timedelta(days=1)
FILE_IO_GROUP_NAME = "titanrun: patient"
# back end of simulated ranks
FAKE_GROUP_BACKEND = "fake"
# imported by name when needed: once it is imported, torch warns about every real group
FAKE_GROUP_MODULE = "torch.testing._internal.distributed.fake_pg"
# only these texts distinguish gloo's errors from others
GLOO_ERROR_TEXTS = ("gloo", "Connection closed by peer")


def create_store(rank_info: RankInfo, *, timeout_seconds: int) -> dist.Store:
    """Create or join the store of the rendezvous.

    It is at the socket that our launcher opened, or at the address that torchrun set.

    Raises:
        ProblemsFound: if the ranks do not find each other.
    """
    timeout = timedelta(seconds=timeout_seconds)
    if rank_info.store_socket is None:
        try:
            store, _, _ = next(
                dist.rendezvous("env://", rank_info.rank, rank_info.world_size, timeout=timeout)
            )
        except (ValueError, dist.DistError) as error:
            message = (
                f"rank {rank_info.rank} of {rank_info.world_size} cannot reach the other "
                f"ranks: {str(error).splitlines()[0]}"
            )
            raise problem_error(
                "usage",
                message,
                hint=("start the ranks with titanrun train --nproc, torchrun or srun"),
            ) from error
        store.set_timeout(timeout)
        return cast(dist.Store, store)
    return dist.TCPStore(
        "127.0.0.1",
        rank_info.store_port,
        rank_info.world_size,
        is_master=rank_info.rank == 0,
        master_listen_fd=rank_info.store_socket,
        wait_for_workers=False,
        timeout=timeout,
    )


def broadcast_over_store(
    store: dist.Store,
    rank_info: RankInfo,
    key: str,
    work: Callable[[], str],
    *,
    should_stop: Callable[[], bool],
) -> str | None:
    """Run `work` on the first rank and return its text on every rank.

    Return None if `should_stop` ended the wait.

    Raises:
        SystemExit: with the exit code of the first rank, if that rank aborted the rendezvous.
        ProblemsFound: if the store was lost.
    """
    try:
        if rank_info.is_main_rank:
            store.set(key, work())
        # polling instead of waiting: a signal is handled only between two calls
        while not store.check([key]):
            if store.check([ABORT_KEY]):
                raise SystemExit(int(store.get(ABORT_KEY)))
            if should_stop():
                return None
            time.sleep(POLL_SECONDS)
        return store.get(key).decode()
    except dist.DistError as error:
        message = (
            f"rank {rank_info.rank} of {rank_info.world_size} lost the first rank before "
            f"the run began"
        )
        raise problem_error(
            "internal", message, hint=("read the log of the first rank for the reason")
        ) from error


def abort_rendezvous(store: dist.Store, exit_code: int) -> None:
    """Tell all waiting ranks that there will be no run. They end with this exit code.

    Only the first rank calls this.
    """
    store.set(ABORT_KEY, str(exit_code))


@contextmanager
def main_rank_first(store: dist.Store | None, rank_info: RankInfo, key: str) -> Iterator[None]:
    """Run the block on the first rank first, then on the others, which wait without a limit.

    `store` is None for a single rank.

    Raises:
        WaitStopped: On all ranks, if the block raises it on the first rank.
    """
    if store is None:
        yield
        return
    if not rank_info.is_main_rank:
        while not store.check([key]):
            # the watchdog of the first rank checks its progress
            send_heartbeat()
            time.sleep(POLL_SECONDS)
        raise_if_stopped(store, key)
        yield
        return
    try:
        yield
    except WaitStopped as stopped:
        store.set(key, str(stopped))
        await_stopped_ranks(store, key, rank_info.world_size - 1)
        raise
    store.set(key, DONE)


def raise_if_stopped(store: dist.Store, key: str) -> None:
    """Raise WaitStopped if the first rank did, and tell it that this rank knows."""
    outcome = store.get(key).decode()
    if outcome != DONE:
        store.add(f"{key}/stopped", 1)
        raise WaitStopped(outcome)


def await_stopped_ranks(store: dist.Store, key: str, count: int) -> None:
    """Wait until other ranks know that the first one has stopped: the store ends with it."""
    end = time.monotonic() + STOP_SECONDS
    while store.add(f"{key}/stopped", 0) < count and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def broadcast_bool(value: bool) -> bool:
    """Return the first rank's value on every rank. A single rank returns its own.

    All ranks must call this.
    """
    if not is_process_group_initialized():
        return value
    flag = torch.tensor([value])
    dist.broadcast(flag, src=0)
    return bool(flag)


@contextmanager
def open_process_group(
    store: dist.Store, rank_info: RankInfo, *, device: torch.device, comm: CommConfig
) -> Iterator[None]:
    """Open the default process group within the block.

    The back end is nccl (or that of the accelerator) for devices, and gloo for CPUs. If the block
    raises, the group stays open: closing it would wait for ranks that may be gone.
    """
    backend = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(
        f"{device.type}:{backend}" if device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}",
        store=dist.PrefixStore("ranks", store),
        rank=rank_info.rank,
        world_size=rank_info.world_size,
        timeout=timedelta(seconds=comm.init_timeout_seconds),
        device_id=device if is_accelerator(device) else None,
    )
    yield
    # the first rank may still write files, as an export does, and it holds the store, which nobody
    # may need when that rank ends
    set_pg_timeout(int(FILE_IO_TIMEOUT.total_seconds()))
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def open_fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """Simulate `rank` of `world_size` within the block. Collectives return their inputs."""
    store = import_module(FAKE_GROUP_MODULE).FakeStore()
    dist.init_process_group(FAKE_GROUP_BACKEND, store=store, rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def set_pg_timeout(seconds: int) -> None:
    """Set the timeout of collectives in all groups but those for file operations."""
    for group in list(distributed_c10d._world.pg_map):
        if group.group_desc != FILE_IO_GROUP_NAME and dist.get_backend(group) != FAKE_GROUP_BACKEND:
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def new_no_timeout_group() -> dist.ProcessGroup:
    """Return a CPU group of all ranks with a timeout of one day, for file operations.

    All ranks must call this.
    """
    backend = FAKE_GROUP_BACKEND if dist.get_backend() == FAKE_GROUP_BACKEND else "gloo"
    group: dist.ProcessGroup = dist.new_group(
        backend=backend, timeout=FILE_IO_TIMEOUT, group_desc=FILE_IO_GROUP_NAME
    )
    return group


def init_companion_group(rank_info: RankInfo, name: str) -> None:
    """Open a group of companion processes, one per rank.

    They find each other at the ranks' store under a separate name.
    """
    store = dist.TCPStore(
        rank_info.store_host,
        rank_info.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=FILE_IO_TIMEOUT,
    )
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(name, store),
        rank=rank_info.rank,
        world_size=rank_info.world_size,
        timeout=FILE_IO_TIMEOUT,
    )


def is_process_group_initialized() -> bool:
    """Return whether this process is in a process group, so that its end waits for others."""
    return dist.is_available() and dist.is_initialized()


def is_peer_failure(error: BaseException) -> bool:
    """Return whether an error only means that another rank is gone or does not respond."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in GLOO_ERROR_TEXTS)
