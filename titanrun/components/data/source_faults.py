"""Faults of remote files: which are tried again, and the problem that each ends in."""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.data.spec.json_lines import DAMAGED_IN_STREAM_HINT
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.distributed.data_waits import check_stop, report_wait
from titanrun.distributed.heartbeat import send_heartbeat

log = logging.getLogger(__name__)

FaultKind = Literal["unreachable", "refused", "gone", "changed", "without-ranges", "damaged"]
HINTS: dict[FaultKind, str] = {
    "unreachable": "start again when it answers: the run goes on after its last checkpoint; "
    "training.dataloader.retry_timeout is how long it is tried",
    "refused": "check the credentials in the environment, such as HF_TOKEN",
    "gone": "check the address, or restore the file",
    "changed": "restore the file, or start a new run with the new data",
    "without-ranges": "download the file and set its path, or use another server",
    "damaged": DAMAGED_IN_STREAM_HINT,
}
FIRST_DELAY_SECONDS = 1.0
"""Wait after the first failure. It doubles with each one."""
MAX_DELAY_SECONDS = 60.0
MIN_DELAY_SECONDS = 0.5
"""Wait of a server that asks for none, or to come back at a time that has passed."""
POLL_SECONDS = 1.0
LAST_TRY_SECONDS = 8.0
"""Time for a request without an answer after the time in which it is repeated."""
JITTER = random.Random()
"""Random numbers of their own, so that ranks that failed together do not come back together and
those of the run stay the same."""
T = TypeVar("T")
# of the requests that this thread repeats
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class SourceFault(Exception):  # noqa: N818 - reads as what happened
    """Failed request to a remote file. Only `unreachable` may pass if it is repeated.

    `retry_after` is the number of seconds that the server asks to wait, if it does.
    """

    def __init__(self, kind: FaultKind, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.retry_after = kind, reason, retry_after


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long requests to a remote file are repeated.

    Args:
        seconds: Time after which a request is given up.
        counts: Receives the number of repeated requests.
    """

    seconds: float
    counts: ReadCounts = field(default_factory=ReadCounts, compare=False)

    def request(
        self, work: Callable[[], T], *, name: str, path: DataPath = ("path",), advice: str = ""
    ) -> T:
        """Return the result of `work`, repeated while it raises that `name` is unreachable.

        `advice` is logged with the first failure.

        Raises:
            ProblemsFound: A data problem if it fails for another reason, or for too long.
        """
        started, tries = time.monotonic(), 0
        while True:
            tries += 1
            try:
                # what is tried once may take its time
                with limit_requests(started + self.seconds if self.seconds else None):
                    result = work()
                if tries > 1:
                    report_wait(None)
                return result
            except SourceFault as fault:
                waited = time.monotonic() - started
                if fault.kind != "unreachable":
                    raise build_fault_problem(fault, name, path) from fault
                if waited >= self.seconds:
                    raise build_fault_problem(
                        fault, f"{name}{describe_tries(tries, waited)}", path
                    ) from fault
                self.counts.num_retries += 1
                delay = min(self._choose_delay(tries, fault), self.seconds - waited)
                log.warning(
                    "%s cannot be read: %s; waiting %.1f s for try %d, giving up in %.0f s "
                    "(retry_timeout)%s",
                    name,
                    fault.reason,
                    delay,
                    tries + 1,
                    self.seconds - waited,
                    f"; {advice}" if advice and tries == 1 else "",
                )
                report_wait(name)
                sleep_with_heartbeats(delay)

    def _choose_delay(self, tries: int, fault: SourceFault) -> float:
        if fault.retry_after is not None:
            # clocks differ: a time to come back may have passed at once
            return max(fault.retry_after, MIN_DELAY_SECONDS)
        delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(tries - 1, 10))
        return delay * JITTER.uniform(0.75, 1.25)


@contextmanager
def limit_requests(deadline: float | None) -> Iterator[None]:
    """Tell requests within the block until when they are repeated, in monotonic seconds."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def limit_timeout(seconds: float) -> float:
    """Return the timeout of a request, lower than `seconds` if it is soon not repeated any more."""
    deadline = _deadline.get()
    if deadline is None:
        return seconds
    return min(seconds, max(0.0, deadline - time.monotonic()) + LAST_TRY_SECONDS)


def get_last_try_end() -> float | None:
    """Return when the last request of the block has to end, in monotonic seconds; None if never."""
    deadline = _deadline.get()
    return None if deadline is None else deadline + LAST_TRY_SECONDS


def describe_tries(tries: int, seconds: float) -> str:
    """Describe how long a request was repeated, with a space in front; empty if it was not."""
    return f" after {tries} tries in {seconds:.0f} s" if tries > 1 else ""


def sleep_with_heartbeats(seconds: float) -> None:
    """Sleep, and tell the watchdog of this process that it waits on purpose.

    Raises:
        WaitStopped: If the run shall stop.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check_stop()
        send_heartbeat()
        time.sleep(min(left, POLL_SECONDS))


def build_fault_problem(
    fault: SourceFault, name: str, path: DataPath, *, hint: str | None = None
) -> ProblemsFound:
    """Build the problem that a fault ends in, with the hint for its kind unless one is given."""
    return ProblemsFound(
        [
            Problem(
                "data",
                f"{name} cannot be read: {fault.reason}",
                path=path,
                hint=hint or HINTS[fault.kind],
                rule=f"source-{fault.kind}",
            )
        ]
    )
