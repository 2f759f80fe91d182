"""Commands, started as their users start them or in a fork that does the same."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.command_server import SCRIPT, CommandServer

UNSET = ("COLUMNS", "LINES", "NO_COLOR")


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """The process whose forks run commands; it starts with the first of them."""
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture
def titanrun(
    tmp_path: Path, command_server: CommandServer
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `titanrun WORD ...` in an empty folder, in a process of its own."""
    return partial(command_server.run, cwd=tmp_path)


@pytest.fixture
def installed_titanrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the installed script in an empty folder."""

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )

    return start


@pytest.fixture
def on_terminal(tmp_path: Path) -> Callable[..., str]:
    """Runs `titanrun WORD ...` on a terminal of 80 columns; what it shows, with colors."""

    def show(*words: str, columns: int = 80, cwd: Path = tmp_path, **variables: str) -> str:
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        kept = {name: text for name, text in os.environ.items() if name not in UNSET}
        environment = {**kept, "TERM": "xterm", **variables}
        process = subprocess.Popen(
            [SCRIPT, *words], cwd=cwd, stdin=child, stdout=child, stderr=child, env=environment
        )
        os.close(child)
        pieces = []
        try:
            while piece := os.read(parent, 65536):
                pieces.append(piece)
        except OSError:
            pass  # Linux reports the end of a terminal as an error
        process.wait()
        os.close(parent)
        return b"".join(pieces).decode().replace("\r\n", "\n")

    return show
