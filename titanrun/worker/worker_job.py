"""Job of a worker: the run, this rank's position, and the store of the rendezvous."""

from dataclasses import dataclass
from pathlib import Path

from torch.distributed import Store

from titanrun.distributed.process_group import broadcast_over_store, create_store
from titanrun.distributed.rank_env import RankInfo
from titanrun.distributed.rank_heartbeats import RankHeartbeats
from titanrun.training.signal_requests import SignalRequests, get_stop_exit_code

JOIN = "--join"
LEAVE = "--leave"
# the first rank may still be reading large inputs when the others arrive. If it fails, a launcher
# ends them
RENDEZVOUS_TIMEOUT_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """Job of one rank.

    Args:
        resolved_path: path of resolved.yaml.
        resolved_text: its text as read by the first rank.
        rank_info: this rank's position.
        store: the store of all ranks, None for a single rank.
        heartbeats: the signs of life of all ranks, None for a single rank.
    """

    resolved_path: Path
    resolved_text: str
    rank_info: RankInfo
    store: Store | None = None
    heartbeats: RankHeartbeats | None = None


def rendezvous(
    resolved_path: Path | None, rank_info: RankInfo, signals: SignalRequests | None = None
) -> WorkerJob:
    """Return the job of this rank. All ranks train what the first one read.

    A rank that was given the same file keeps its path as given, relative or not, as one process
    does: messages and the command at the end name it.

    Args:
        resolved_path: path of resolved.yaml. May be None on ranks other than the first.
        rank_info: this rank's position.
        signals: a stop request ends the wait for the first rank, and this process.
    """
    if rank_info.world_size == 1:
        assert resolved_path is not None
        return WorkerJob(resolved_path, resolved_path.read_text(encoding="utf-8"), rank_info)
    store = create_store(rank_info, timeout_seconds=RENDEZVOUS_TIMEOUT_SECONDS)
    requests = signals or SignalRequests()
    path = broadcast_over_store(
        store,
        rank_info,
        "resolved",
        lambda: str(Path(resolved_path or "").absolute()),
        should_stop=lambda: requests.should_stop,
    )
    text = path and broadcast_over_store(
        store,
        rank_info,
        "text",
        lambda: Path(path).read_text(encoding="utf-8"),
        should_stop=lambda: requests.should_stop,
    )
    if path is None or text is None:
        assert requests.stop_signal is not None
        raise SystemExit(get_stop_exit_code(requests.stop_signal))
    own = Path(path)
    if resolved_path is not None and resolved_path.absolute() == own:
        own = resolved_path
    return WorkerJob(own, text, rank_info, store, RankHeartbeats(store, rank_info))
