"""A web server on this machine that stalls, truncates, refuses and recovers as a test asks."""

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote


class FragileServer(ThreadingHTTPServer):
    """Files by name, and for each the faults of its next requests; then it works."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FragileHandler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Any]] = defaultdict(list)
        self.requests: list[tuple[str, str | None]] = []
        # status that every request to a name gets
        self.status: dict[str, int] = {}
        # called with the first byte of each request to a name and the one after its last, None for
        # the end of the file; returns the fault of the request
        self.choose_fault: dict[str, Callable[[int, int | None], Any]] = {}
        self.has_ranges, self.lists_folders = True, False
        # ends the silence of the fault of this name
        self.has_ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Quiet: clients hang up on purpose."""


class FragileHandler(BaseHTTPRequestHandler):
    """Answers ranges as RFC 9110 says, but for the fault that is next."""

    protocol_version = "HTTP/1.1"
    server: FragileServer

    def do_GET(self) -> None:
        name = unquote(self.path.lstrip("/").partition("?")[0])
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        fault = self.server.faults[name].pop(0) if self.server.faults[name] else None
        if name in self.server.choose_fault:
            fault = self.server.choose_fault[name](*self.parse_range())
        status = self.server.status.get(name) or (fault if isinstance(fault, int) else None)
        content = self.server.files.get(name)
        if content is None and name.endswith("/") and self.server.lists_folders:
            content = self.list_folder(name)
        if content is None:
            status = 404
        if status is not None:
            return self.send_empty(status)
        if isinstance(fault, tuple):
            return self.send_empty(fault[0], fault[1])
        if fault == "stall":
            time.sleep(2)
            self.close_connection = True
            return None
        if fault == "silence":
            self.server.has_ended.wait()
            self.close_connection = True
            return None
        if fault == "reset":
            self.close_connection = True
            return None
        assert content is not None
        self.send_file(content, fault)

    def list_folder(self, name: str) -> bytes:
        """Return a page with links to what is in a folder, as Apache writes them."""
        inside = {one.removeprefix(name) for one in self.server.files if one.startswith(name)}
        names = {"/".join(one.split("/")[:1]) + "/" * ("/" in one) for one in inside}
        links = ["../", "?C=N;O=D", *map(quote, sorted(names))]
        return "".join(f'<li><a href="{link}">{link}</a></li>\n' for link in links).encode()

    def parse_range(self) -> tuple[int, int | None]:
        """Return the first byte that is asked for, and the one after the last if it is named."""
        wanted = self.headers.get("Range", "bytes=0-")
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        return int(first), int(last) + 1 if last else None

    def send_empty(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": "0"}.items():
            self.send_header(key, value)
        self.end_headers()

    def send_file(self, content: bytes, fault: Any) -> None:
        wanted = self.headers.get("Range") if self.server.has_ranges else None
        start, last = self.parse_range() if wanted else (0, None)
        if wanted and start >= len(content):
            return self.send_empty(416, {"Content-Range": f"bytes */{len(content)}"})
        end = len(content) if last is None else min(len(content), last)
        body = content[start:end]
        self.send_response(206 if wanted else 200)
        if fault != "cut without length":
            self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        if fault in ("cut", "cut without length"):
            self.send_header("Connection", "close")
            body = body[: len(body) // 2]
        if fault == "flip":
            body = (
                body[: len(body) // 2]
                + bytes([body[len(body) // 2] ^ 255])
                + body[len(body) // 2 + 1 :]
            )
        if callable(fault):
            body = fault(body)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = fault in ("cut", "cut without length")
        return None

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def serve_files() -> Iterator[FragileServer]:
    """Run a server in the block."""
    server = FragileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.has_ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
