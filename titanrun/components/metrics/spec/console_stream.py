"""Console output that never blocks or fails: stdout and stderr are written by threads.

A terminal may be closed or stopped, a disk full, the reader of a pipe busy or gone. Training does
not depend on any of them.
"""

import atexit
import io
import os
import select
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

# text that waits for a console that does not read; what follows is dropped
MAX_PENDING_BYTES = 2**20
# a pipe takes so much at once, so that lines of several processes are not mixed
PIECE_BYTES = select.PIPE_BUF
# how long a line waits to be shown, so that the order of stdout, stderr and other processes is
# kept. Once a line is late, none waits until all are shown.
FLUSH_SECONDS = 0.2
# at the end of a process: how long to wait for a console that reads nothing
DRAIN_SECONDS = 2.0

_writers: list["ConsoleWriter"] = []


class ConsoleWriter(io.RawIOBase):
    """Raw stream whose bytes are written to a descriptor by a thread.

    Bytes that cannot be written are dropped. A forked process has a thread of its own.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._num_written = 0
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._num_pending_bytes = 0
        self._num_dropped_lines = 0
        self._is_late = False
        self._thread: threading.Thread | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor, for child processes that share the console."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the console is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Queue the bytes, or drop them if too many wait already. Return their number."""
        text = bytes(data)
        with self._changed:
            if self._num_pending_bytes + len(text) > MAX_PENDING_BYTES:
                self._num_dropped_lines += max(1, text.count(b"\n"))
            else:
                self._queue(text)
        return len(text)

    def flush(self) -> None:
        """Wait a moment until everything is written, unless the console is late already."""
        if self._is_late or sys.is_finalizing():
            return
        with self._changed:
            written = self._changed.wait_for(lambda: not self._pending, FLUSH_SECONDS)
            self._is_late = not written

    def drain(self) -> None:
        """Wait until everything is written, or nothing more is read."""
        with self._changed:
            while self._pending:
                before = self._num_written
                self._changed.wait_for(lambda: not self._pending, DRAIN_SECONDS)
                if self._num_written == before:
                    return

    def _queue(self, text: bytes) -> None:
        self._pending.append(text)
        self._num_pending_bytes += len(text)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="console", daemon=True)
            start_without_signals(self._thread)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                text = self._pending[0]
            self._write_now(text)
            with self._changed:
                self._pending.popleft()
                self._num_pending_bytes -= len(text)
                self._num_written += 1
                if not self._pending:
                    self._catch_up()
                self._changed.notify_all()

    def _catch_up(self) -> None:
        """Say how many lines are missing, once the console reads again."""
        self._is_late = False
        if self._num_dropped_lines:
            note = f"({self._num_dropped_lines:,} lines are not shown: the console was not read)\n"
            self._num_dropped_lines = 0
            self._queue(note.encode())

    def _write_now(self, text: bytes) -> None:
        rest = memoryview(text)
        with suppress(OSError):
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest[:PIECE_BYTES]) :]
                    self._num_written += 1
                except BlockingIOError:
                    select.select([], [self._descriptor], [])


def start_without_signals(thread: threading.Thread) -> None:
    """Start a thread that no signal reaches: they are for the main thread, which may block them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def protect_stdout() -> None:
    """Let a thread write what goes to sys.stdout."""
    sys.stdout = wrap_stream(sys.stdout, 1)


def protect_stderr() -> None:
    """Let a thread write what goes to sys.stderr."""
    sys.stderr = wrap_stream(sys.stderr, 2)


def wrap_stream(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """Return a text stream to `descriptor` that is written by a thread, with the same encoding.

    `stream` is None if the descriptor was closed when Python started. It leads nowhere then.
    """
    open_standard_descriptors()
    writer = ConsoleWriter(descriptor)
    _writers.append(writer)
    atexit.register(writer.drain)
    # an unwritable character must not raise
    errors = getattr(stream, "errors", None) or "strict"
    return io.TextIOWrapper(
        writer,  # type: ignore[arg-type]  # bytes are not buffered twice
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace" if errors == "strict" else errors,
        line_buffering=True,
        write_through=True,
    )


def open_standard_descriptors() -> None:
    """Open the null device for each of stdin, stdout and stderr that is closed.

    Otherwise the next file that is opened takes its number, and gets what is written to it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # the lowest free number, and for child processes too
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def drain_console() -> None:
    """Wait for the console before this process ends or is replaced, but not for one that is stuck.

    Streams that no thread writes are flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for writer in _writers:
        writer.drain()
