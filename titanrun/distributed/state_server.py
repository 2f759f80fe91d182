"""Transfer of a replica group's state to a group that returns.

A server per rank, on one interface. The address holds a random token, and what is received is read
as tensors and plain data, never as code.
"""

import io
import secrets
import socket
import threading
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

TOKEN_BYTES = 16


class StateServer:
    """Transport of state between equal ranks of two groups, as torchft's manager calls it.

    Args:
        host: address to listen on, at which other groups reach this one.
        timeout: how long a request waits for the state, and the end of a step for a request.
    """

    def __init__(self, host: str, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._changed = threading.Condition()
        self._state: tuple[int, dict[str, Any]] | None = None
        self._num_readers = 0
        self._server = _Server((host, 0), _build_handler(self))
        threading.Thread(
            target=self._server.serve_forever, name="state-server", daemon=True
        ).start()

    def metadata(self) -> str:
        """Return the address at which the state is, without the step."""
        return f"http://{self._server.server_name}:{self._server.server_port}/{self._token}/"

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta
    ) -> None:
        """Serve the state from now on, without a copy. It must not change meanwhile."""
        with self._changed:
            self._state = (step, state_dict)
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """Stop serving, when running requests are answered. The state may change after that."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_readers == 0, self._timeout)
            self._state = None

    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: timedelta
    ) -> dict[str, Any]:
        """Return the state of a step from the server at `metadata`.

        Raises:
            OSError: if it cannot be reached, or does not have that state in time.
        """
        # no proxy of the environment lies between two groups
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{metadata}{step}", timeout=timeout.total_seconds()) as answer:
            data = answer.read()
        found: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return found

    def shutdown(self, wait: bool = True) -> None:
        """Close the server."""
        self._server.shutdown()
        self._server.server_close()

    def write_state(self, path: str, answer: BaseHTTPRequestHandler) -> None:
        """Answer a request for `/TOKEN/STEP`, as soon as that state is served."""
        token, _, step = path.strip("/").partition("/")
        if not secrets.compare_digest(token.encode(), self._token.encode()) or not step.isdigit():
            answer.send_error(404)
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_state(int(step)), self._timeout):
                answer.send_error(503)
                return
            assert self._state is not None
            served = self._state
            self._num_readers += 1
        try:
            answer.send_response(200)
            answer.end_headers()
            stream: Any = _WhileServed(answer.wfile, lambda: self._state is served)
            torch.save(served[1], stream)
        finally:
            with self._changed:
                self._num_readers -= 1
                self._changed.notify_all()

    def _has_state(self, step: int) -> bool:
        return self._state is not None and self._state[0] == step


class _WhileServed:
    """Stream that fails once the state may change, so that its reader gets no mixture of two."""

    def __init__(self, stream: Any, is_served: Callable[[], bool]) -> None:
        self._stream, self._is_served = stream, is_served

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        if not self._is_served():
            raise ConnectionAbortedError("the state is no longer served")
        self._stream.write(data)
        return len(data)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without looking up the name of the host, which can take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.server_address = (self.server_name, self.server_port)


def _build_handler(server: StateServer) -> type[BaseHTTPRequestHandler]:
    """Build the class of request handlers of one server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.write_state(self.path, self)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            """Write nothing: the address holds the token."""

    return Handler
