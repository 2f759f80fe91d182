"""Lighthouse of a run's replica groups: a process of this launcher, or one that was started."""

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from titanrun.config.problems import problem_error
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.host_address import LOOPBACK
from titanrun.launch.worker_processes import restore_signal_mask, set_parent_death_signal

LIGHTHOUSE = "titanrun.worker.lighthouse"


class AnyLighthouse(Protocol):
    """What a launcher does with the lighthouse of its groups."""

    address: str

    def start(self) -> None:
        """Start it, at its former port if it had one."""

    @property
    def has_ended(self) -> bool:
        """Whether it has to be started again."""

    def kill(self) -> None:
        """End it, and wait for its end."""


class SharedLighthouse:
    """Lighthouse of groups on several machines, which no launcher starts or ends.

    Args:
        address: its address.
    """

    has_ended = False

    def __init__(self, address: str) -> None:
        self.address = address

    def start(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""


class Lighthouse:
    """Process at which the groups find each other, replaced if it ends.

    Args:
        config: the section of the recipe.
        log: file for its messages.
    """

    def __init__(self, config: FaultToleranceConfig, log: Path) -> None:
        self._config, self._log = config, log
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it, at its former port if it had one."""
        port = int(self.address.rpartition(":")[2] or 0)
        with self._log.open("ab") as output, restore_signal_mask():
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    LIGHTHOUSE,
                    LOOPBACK.address,
                    *build_lighthouse_arguments(self._config, port),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                process_group=0,
                preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
            )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise problem_error(
                "internal",
                "the lighthouse of the replica groups did not start",
                path=("fault_tolerance",),
                hint=f"see {self._log}",
            )

    @property
    def has_ended(self) -> bool:
        """Whether it is not running."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """End it, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def build_lighthouse_arguments(config: FaultToleranceConfig, port: int | str) -> list[str]:
    """Build what follows the address in the arguments of `titanrun.worker.lighthouse`.

    Port 0 is a free one.
    """
    numbers = (
        port,
        config.min_replica_size,
        config.join_timeout_ms,
        config.heartbeat_timeout_ms,
    )
    return [str(number) for number in numbers]
