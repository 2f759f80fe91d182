"""Generators of `titanrun fleet` in working folders of their own."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rl.fleet_runs import wait_for
from tests.rl.parts import TEXT
from titanrun.config.trust import TRUST_FLAG


@dataclass
class Machine:
    """A working folder with a generator in it."""

    folder: Path
    overrides: tuple[str, ...]
    port: int = 0
    generator: "subprocess.Popen[bytes] | None" = None
    environment: Mapping[str, str] | None = None

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def start(self) -> int:
        """Start a generator, at the same port as the last one, and return its process id."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "recipe.yaml").write_text(TEXT)
        before = self.output.count("waiting for") if self.port else 0
        with (self.folder / "output.txt").open("a") as output:
            self.generator = subprocess.Popen(
                [
                    *(sys.executable, "-m", "titanrun", "fleet", "recipe.yaml", TRUST_FLAG),
                    *("--listen", f"127.0.0.1:{self.port}", *self.overrides),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
                # Ctrl-C of a terminal does not reach it by itself
                start_new_session=True,
            )
        wait_for(lambda: self.output.count("waiting for a trainer") > before)
        self.port = int(re.findall(r"at tcp://127.0.0.1:(\d+)", self.output)[-1])
        return self.generator.pid

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the generator by a signal and return its exit code."""
        assert self.generator is not None
        self.generator.send_signal(number)
        return self.generator.wait(60)


def build_overrides(*ports: int, secret: str | None = None) -> tuple[str, ...]:
    named = "" if secret is None else f", secret_file: {secret}"
    urls = [f"tcp://127.0.0.1:{port}" for port in ports or (1,)]
    return (
        f"rl.fleet={{processes: {len(urls)}, carrier: http, urls: {urls}{named}}}",
        "rl.sync.transport=connection",
    )


@contextmanager
def open_machine(
    tmp_path: Path,
    *overrides: str,
    secret: str | None = None,
    name: str = "generator",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Machine]:
    machine = Machine(tmp_path / name, (*build_overrides(secret=secret), *overrides))
    machine.environment = environment
    try:
        machine.start()
        yield machine
    finally:
        if machine.generator is not None:
            machine.generator.kill()
            machine.generator.wait()
