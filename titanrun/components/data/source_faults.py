"""Faults of remote files: which are tried again, and the problem that each ends in."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from titanrun.components.data.read_counts import ReadCounts
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.distributed.data_waits import report_wait
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
    "damaged": "fetch or write it again",
}
FIRST_DELAY_SECONDS = 1.0
"""Wait after the first failure. It doubles with each one."""
MAX_DELAY_SECONDS = 60.0
POLL_SECONDS = 1.0
JITTER = random.Random()
"""Random numbers of their own, so that ranks that failed together do not come back together and
those of the run stay the same."""
T = TypeVar("T")


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

    def request(self, work: Callable[[], T], *, name: str, path: DataPath = ("path",)) -> T:
        """Return the result of `work`, repeated while it raises that `name` is unreachable.

        Raises:
            ProblemsFound: A data problem if it fails for another reason, or for too long.
        """
        started, tries = time.monotonic(), 0
        while True:
            tries += 1
            try:
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
                    "%s cannot be read: %s; waiting %.1f s for try %d",
                    name,
                    fault.reason,
                    delay,
                    tries + 1,
                )
                report_wait(name)
                sleep_with_heartbeats(delay)

    def _choose_delay(self, tries: int, fault: SourceFault) -> float:
        if fault.retry_after is not None:
            return fault.retry_after
        delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(tries - 1, 10))
        return delay * JITTER.uniform(0.75, 1.25)


def describe_tries(tries: int, seconds: float) -> str:
    """Describe how long a request was repeated, with a space in front; empty if it was not."""
    return f" after {tries} tries in {seconds:.0f} s" if tries > 1 else ""


def sleep_with_heartbeats(seconds: float) -> None:
    """Sleep, and tell the watchdog of this process that it waits on purpose."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
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
