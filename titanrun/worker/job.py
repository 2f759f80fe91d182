"""What a worker is to do and with whom: the run, this rank's place in it, and the store at which the ranks meet."""

from dataclasses import dataclass
from pathlib import Path

from torch.distributed import Store

from titanrun.distributed.environment import Place
from titanrun.distributed.processes import from_first, meet
from titanrun.training.signals import SignalRequests

JOIN = "--join"
LEAVE = "--leave"
# the first rank may still be reading large inputs when the others arrive; a launcher ends them where it fails
MEETING_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Job:
    """One rank's work. `text` is that of `resolved`, as the first rank read it; `store` is None for one rank alone."""

    resolved: Path
    text: str
    place: Place
    store: Store | None = None


def meet_others(resolved: Path | None, place: Place, signals: SignalRequests | None = None) -> Job:
    """The job of this rank. Every rank trains what the first one read.

    Args:
        resolved: path of resolved.yaml; None where only the first rank knows it.
        place: which process of the run this is.
        signals: a request to stop ends the wait for the first rank, and this process.
    """
    if place.world_size == 1:
        assert resolved is not None
        return Job(resolved, resolved.read_text(encoding="utf-8"), place)
    store = meet(place, timeout_seconds=MEETING_SECONDS)
    requests = signals or SignalRequests()
    path = from_first(
        store,
        place,
        "resolved",
        lambda: str(Path(resolved or "").absolute()),
        until=lambda: requests.stop,
    )
    text = path and from_first(
        store,
        place,
        "text",
        lambda: Path(path).read_text(encoding="utf-8"),
        until=lambda: requests.stop,
    )
    if path is None or text is None:
        raise SystemExit(requests.exit_code)
    return Job(Path(path), text, place, store)
