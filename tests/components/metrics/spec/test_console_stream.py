"""Row B7 of the defect list: the console never costs a step or a save."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.seams import fill_pipe
from titanrun.components.metrics.spec.console_stream import (
    MAX_PENDING_BYTES,
    ConsoleWriter,
    wrap_stream,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe: what reads, and what writes."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_until(descriptor: int, last: bytes) -> bytes:
    """All that is read up to these bytes."""
    found = b""
    while not found.endswith(last):
        found += os.read(descriptor, 65536)
    return found


def test_text_arrives_in_order_and_at_once(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = wrap_stream(sys.__stderr__, writing)
    for line in ("first\n", "secönd\n", "third"):
        stream.write(line)
    stream.flush()
    assert os.read(reading, 100).decode() == "first\nsecönd\nthird"


def test_a_console_that_nobody_reads_takes_no_more_than_a_moment() -> None:
    writer = ConsoleWriter(fill_pipe())
    for _ in range(3 * MAX_PENDING_BYTES // 1000):
        assert writer.write(b"x" * 999 + b"\n") == 1000
        writer.flush()
    writer.drain()


def test_a_console_that_is_read_again_says_how_much_is_missing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = ConsoleWriter(writing)
    count = 2 * MAX_PENDING_BYTES // 1000
    for _ in range(count):
        writer.write(b"x" * 999 + b"\n")
    found = read_until(reading, b"was not read)\n").splitlines()
    assert found[-1] == (
        f"({count - (len(found) - 1):,} lines are not shown: the console was not read)".encode()
    )
    assert set(found[:-1]) == {b"x" * 999}
    writer.write(b"again\n")
    assert os.read(reading, 100) == b"again\n"


def test_what_cannot_be_written_is_dropped_and_later_text_is_not(tmp_path: Path) -> None:
    gone, broken = os.pipe()
    os.close(gone)
    for target in (broken, os.open("/dev/full", os.O_WRONLY)):
        stream = wrap_stream(None, target)
        print("nobody reads this", file=stream, flush=True)
        file = os.open(tmp_path / "console.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, target)
        print("there is room again", file=stream, flush=True)
        assert (tmp_path / "console.txt").read_text() == "there is room again\n"


def test_a_character_that_the_console_cannot_show_is_escaped(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = wrap_stream(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), writing)
    print("5 µs", file=stream, flush=True)
    assert os.read(reading, 100) == b"5 \\xb5s\n"


def test_a_forked_process_writes_for_itself(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    code = f"""
import os
from titanrun.components.metrics.spec.console_stream import wrap_stream
stream = wrap_stream(None, {writing})
print("parent", file=stream)
child = os.fork()
if child == 0:
    print("child", file=stream, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, pass_fds=[writing])
    assert os.read(reading, 100) == b"parent\nchild\n"


def test_signals_are_left_to_those_who_wait_for_them(pipe: tuple[int, int]) -> None:
    """A launcher blocks them and waits: no thread may take them away."""
    code = f"""
import os, signal
from titanrun.components.metrics.spec.console_stream import wrap_stream
print("line", file=wrap_stream(None, {pipe[1]}), flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigwait([signal.SIGTERM]).name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        pass_fds=[pipe[1]],
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{signal.SIGTERM.name}\n")


def test_closed_descriptors_are_never_taken_by_files(tmp_path: Path) -> None:
    """A file that took number 2 would get all that libraries write to stderr."""
    code = (
        "import os, sys; from titanrun.components.metrics.spec.console_stream import *; "
        "protect_stdout(); protect_stderr(); print('out'); print('err', file=sys.stderr); "
        "file = open(sys.argv[1], 'w'); "
        "file.write(str([file.fileno() > 2, *map(os.get_inheritable, (0, 1, 2))]))"
    )
    target = tmp_path / "file.txt"
    shell = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", shell, sys.executable, code, str(target)], check=True)
    assert target.read_text() == "[True, True, True, True]"
