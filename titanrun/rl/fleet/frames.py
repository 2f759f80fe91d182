"""Frames of a TCP connection: a length, a JSON header, and the bytes of an array.

The length has 4 bytes, little-endian, and is that of the header. Its `size` is the number of bytes
that follow it.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from titanrun.config.json_text import parse_json

LENGTH = struct.Struct("<I")
# of a header, which holds whole conversations, and of the bytes behind it
MAX_HEADER_BYTES = 1024**3
MAX_ARRAY_BYTES = 16 * 1024**2
# of a header from somebody who has not proved yet that he has the secret
MAX_GREETING_BYTES = 16 * 1024
RECEIVE_BYTES = 1024**2
# of a machine that went away without a word, the connection ends after some 30 seconds
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}

Frame = tuple[dict[str, Any], bytes]


class FrameError(ConnectionError):
    """The other side sends something that is no frame."""


class FrameConnection:
    """Connection that sends and receives frames. Several threads may send."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._lock = threading.Lock()
        self._max_header_bytes, self._deadline = MAX_GREETING_BYTES, float("inf")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # not all systems have them
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def limit_greeting(self, seconds: float) -> None:
        """Take short headers only, and none after so many seconds."""
        self._max_header_bytes, self._deadline = MAX_GREETING_BYTES, time.monotonic() + seconds

    def trust(self) -> None:
        """Take long headers, and wait for them without end."""
        self._max_header_bytes, self._deadline = MAX_HEADER_BYTES, float("inf")
        self.socket.settimeout(None)

    def send(self, header: Mapping[str, Any], array: memoryview | bytes = b"") -> None:
        """Send a frame.

        Raises:
            OSError: the connection has ended.
        """
        sized = {**header, "size": len(array)} if len(array) else header
        data = json.dumps(sized, separators=(",", ":")).encode()
        with self._lock:
            self.socket.sendall(LENGTH.pack(len(data)) + data)
            if len(array):
                self.socket.sendall(array)

    def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            FrameError: it is none.
            OSError: the connection has ended.
        """
        [length] = LENGTH.unpack(self._receive_exactly(LENGTH.size))
        if length > self._max_header_bytes:
            raise FrameError(f"a header of {length} bytes is too long")
        try:
            header = parse_json(self._receive_exactly(length).decode())
        except ValueError:
            raise FrameError("a header is not JSON") from None
        size = header.pop("size", 0) if isinstance(header, dict) else None
        if type(size) is not int or not 0 <= size <= MAX_ARRAY_BYTES:
            raise FrameError("a header is not an object with a size")
        if size and self._deadline != float("inf"):
            raise FrameError("a greeting has no arrays")
        return header, self._receive_exactly(size)

    def close(self) -> None:
        """End the connection. Whoever waits for a frame gets an error."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _receive_exactly(self, size: int) -> bytes:
        # memory is taken as data comes: a length alone takes none
        data = bytearray()
        while len(data) < size:
            if self._deadline != float("inf"):
                self.socket.settimeout(max(0.01, self._deadline - time.monotonic()))
            part = self.socket.recv(min(size - len(data), RECEIVE_BYTES))
            if not part:
                raise ConnectionResetError("the other side has ended the connection")
            data += part
        return bytes(data)
