"""Replica groups of torchft: the quorum of each step, sums over the groups, and healing.

Only this module and `semi_sync` call torchft. The quorum is synchronous, so that the sequences of a
step are dealt to the groups that take part in it.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchft
import torchft.manager
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.quorum_client import QuorumClient
from titanrun.distributed.rank_env import RankInfo, set_variable_default
from titanrun.distributed.state_server import StateServer
from titanrun.distributed.step_attempt import StepAttempt

BUCKET_BYTES = 64 << 20
QUORUM_RETRIES = 30
TORCHFT_LOGGERS = ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors")
HELP_LIGHTHOUSE = "read the log of the launcher; the same command resumes the run"
HELP_SHARED_LIGHTHOUSE = "start it again at its address; the same command resumes the run"


class ReplicaGroups:
    """This rank's part in the replica groups of a run.

    Args:
        config: the section of the recipe.
        rank_info: place of this rank in its group, and the lighthouse.
        store: store of the ranks of this group. None for a single rank.
    """

    def __init__(
        self, config: FaultToleranceConfig, rank_info: RankInfo, store: dist.Store | None
    ) -> None:
        assert rank_info.group is not None and rank_info.lighthouse is not None
        self._config, self._rank_info, self._group_store = config, rank_info, store
        self._states: list[tuple[str, Callable[[Any], None], Callable[[], Any]]] = []
        self._manager: torchft.Manager | None = None
        self._has_healed = False
        self.group = rank_info.group

    def register_state(
        self, name: str, load: Callable[[Any], None], save: Callable[[], Any]
    ) -> None:
        """Add a part of the state that a returning group takes over.

        `save` runs on another thread while this one waits, and must not communicate.
        """
        self._states.append((name, load, save))

    def open(self, step: int) -> None:
        """Join the other groups with a state of `step`. The process must be ready to train.

        Raises:
            ProblemsFound: the lighthouse does not answer.
        """
        timeout = timedelta(milliseconds=self._config.process_group_timeout_ms)
        quorum_timeout = timedelta(milliseconds=self._config.quorum_timeout_ms)
        # the launcher names the one interface on which this group listens
        host = self._rank_info.store_host
        silence_torchft()
        if self._group_store is None:
            self._group_store = self._serve_store(timeout)
        # torchft reports to no collector of measurements
        set_variable_default("TORCHFT_USE_OTEL", "false")
        with bind_manager_server(host), self._name_lighthouse("no lighthouse"):
            self._manager = torchft.Manager(
                pg=torchft.ProcessGroupGloo(timeout=timeout),
                load_state_dict=None,
                state_dict=None,
                min_replica_size=self._config.min_replica_size,
                use_async_quorum=False,
                timeout=timeout,
                quorum_timeout=quorum_timeout,
                # of the lighthouse too, which may start later than this group
                connect_timeout=quorum_timeout,
                rank=self._rank_info.rank,
                world_size=self._rank_info.world_size,
                store_addr=host,
                store_port=self._rank_info.store_port,
                lighthouse_addr=self._rank_info.lighthouse,
                replica_id=f"titanrun_{self.group}",
                hostname=host,
                checkpoint_transport=StateServer(host, timeout),
                # without one, a quorum that a lighthouse was lost in ends with its time limit
                quorum_retries=QUORUM_RETRIES,
                # weights follow from the seed or a checkpoint
                init_sync=False,
            )
        self._manager._client = QuorumClient(self._manager._client)
        for name, load, save in self._states:
            self._manager.register_state_dict_fn(name, load, save)
        self._manager.register_state_dict_fn("healed", self._mark_healed, lambda: True)
        self._manager.load_state_dict({"step": step, "batches_committed": 0})

    def start_attempt(self) -> StepAttempt:
        """Wait for the groups of the next step. A group that is behind takes over their state.

        Collective over the ranks of the group.

        Raises:
            ProblemsFound: the lighthouse does not answer, or too few groups came in time.
        """
        assert self._manager is not None, "the groups are not open"
        self._has_healed = False
        with self._name_lighthouse("no quorum"):
            self._manager.start_quorum()
        index = self._manager.participating_rank()
        assert index is not None, "with a synchronous quorum every group takes part"
        return StepAttempt(
            self._manager.current_step(),
            index,
            self._manager.num_participants(),
            self._has_healed,
            self._manager._client.members,
        )

    def all_reduce_sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the groups, in place.

        After a failure of another group the values mean nothing, and `should_commit` returns False.
        """
        assert self._manager is not None
        self._manager.allreduce(tensor, reduce_op=dist.ReduceOp.SUM).wait()
        return tensor

    def start_average(self, tensor: Tensor) -> Any:
        """Start to average a tensor over the groups, in place, and return the work to wait for."""
        assert self._manager is not None
        return self._manager.allreduce(tensor)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the local parts of the gradients over the groups, in place, in large buckets."""
        parts = [to_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        for bucket in iter_buckets(parts):
            flat = self.all_reduce_sum_(torch.cat([part.reshape(-1) for part in bucket]))
            pieces = flat.split([part.numel() for part in bucket])
            for part, piece in zip(bucket, pieces, strict=True):
                part.copy_(piece.view_as(part))

    def should_commit(self) -> bool:
        """Return whether the attempt counts: no rank of this group saw a failure.

        Collective over the ranks of the group. Other groups may decide otherwise, and then take
        over the state of one that has the step.
        """
        assert self._manager is not None
        return bool(self._manager.should_commit())

    def set_version(self, version: int) -> None:
        """Set the version of this group's state: groups with a lower one take over a higher one."""
        assert self._manager is not None
        self._manager.load_state_dict({"step": version, "batches_committed": 0})

    @property
    def has_failed(self) -> bool:
        """Whether a sum or the transfer of state has failed since the last quorum."""
        return self._manager is not None and self._manager.errored() is not None

    def describe_failure(self) -> str:
        """Return why this rank thinks that the attempt failed."""
        error = None if self._manager is None else self._manager.errored()
        if error is None:
            return "too few groups, or a failure on another rank"
        text = str(getattr(error, "original_exception", error)).strip()
        # gloo puts its source line in front, and advice behind
        found = re.search(r"[^\[\]\s].*?(?=\. |\n|$)", re.sub(r"^\[[^\]]*\]", "", text))
        return found[0] if found else type(error).__name__

    def close(self) -> None:
        """Leave the other groups."""
        if self._manager is not None:
            self._manager.shutdown(wait=False)
            self._manager = None

    @contextmanager
    def _name_lighthouse(self, missing: str) -> Iterator[None]:
        """Raise a failure of the block as a problem that names the lighthouse."""
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            reason = str(error).splitlines()[0]
            raise problem_error(
                "quorum",
                f"{missing} of replica groups at {self._rank_info.lighthouse}: {reason}",
                path=("fault_tolerance",),
                hint=HELP_LIGHTHOUSE if self._config.lighthouse is None else HELP_SHARED_LIGHTHOUSE,
            ) from error

    def _mark_healed(self, told: object) -> None:
        self._has_healed = True

    def _serve_store(self, timeout: timedelta) -> dist.Store:
        """Open the store of a group of one rank at the socket that the launcher opened."""
        return dist.TCPStore(
            self._rank_info.store_host,
            self._rank_info.store_port,
            is_master=True,
            master_listen_fd=self._rank_info.store_socket,
            wait_for_workers=False,
            timeout=timeout,
        )


def silence_torchft() -> None:
    """Drop the messages of torchft: failures of other groups are logged once, in our words."""
    for name in TORCHFT_LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())


@contextmanager
def bind_manager_server(host: str) -> Iterator[None]:
    """Make managers created in the block listen on one interface; torchft binds to all."""
    original = torchft.manager.ManagerServer

    def create(**options: Any) -> Any:
        return original(**{**options, "bind": f"{host}:0"})

    torchft.manager.ManagerServer = create
    try:
        yield
    finally:
        torchft.manager.ManagerServer = original


def iter_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in lists of one dtype and at most `BUCKET_BYTES`, in their order."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
