"""Who may ask the server: only the page of a link, on this machine, from this server."""

import json
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ui.conftest import UiProcess

SECURE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SECRET_META = b"titanrun-secret"


def test_a_link_works_once_and_every_answer_is_sealed_off(
    start_ui: Callable[..., UiProcess],
) -> None:
    server = start_ui()
    page = server.follow_link()
    headers = {name.lower(): value for name, value in page.headers.items()}
    assert page.status == 200 and SECRET_META in page.body
    assert SECURE.items() <= headers.items()
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "access-control-allow-origin" not in headers
    cookie = headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "Domain" not in cookie and "server" not in headers
    again = server.ask("GET", server.link.removeprefix(server.origin), headers={"Cookie": None})
    assert again.status == 403 and SECRET_META not in again.body
    assert server.ask("GET", "/api/about").status == 200


def test_neither_secret_opens_anything_alone(ui: UiProcess) -> None:
    for headers in (
        {"Cookie": None},
        {"X-Titanrun": None},
        {"X-Titanrun": ui.secret[:-1]},
        {"Cookie": ui.cookie + "x"},
        {"Cookie": None, "X-Titanrun": None},
    ):
        for path in ("/api/about", "/api/events?topics=runs", "/api/file?path=recipes/mine.yaml"):
            assert ui.ask("GET", path, headers=dict(headers)).status == 403, (headers, path)
    with_cookie = ui.ask("GET", "/runs", headers={"X-Titanrun": None, "Origin": None})
    assert with_cookie.status == 200 and SECRET_META not in with_cookie.body
    without = ui.ask("GET", "/", headers={"Cookie": None, "Origin": None})
    assert without.status == 403 and SECRET_META not in without.body


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "", "[::1]:{port}"]
)
def test_another_host_is_refused(ui: UiProcess, host: str) -> None:
    answer = ui.ask("GET", "/api/about", headers={"Host": host.format(port=ui.port)})
    assert answer.status == 421


def test_other_sites_are_refused(ui: UiProcess) -> None:
    foreign = [
        {"Origin": "http://evil.example"},
        {"Origin": f"http://localhost:{ui.port}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ]
    for headers in foreign:
        for method, path in (
            ("POST", "/api/examine"),
            ("PUT", "/api/file?path=recipes/mine.yaml"),
            ("DELETE", "/api/file?path=recipes/mine.yaml"),
            ("GET", "/api/events?topics=runs"),
            ("GET", "/static/tokens.css"),
        ):
            assert ui.ask(method, path, {}, headers=dict(headers)).status == 403, (headers, path)
    assert ui.ask("POST", "/api/examine", {}, headers={"Origin": None}).status == 403
    framed = {"Sec-Fetch-Dest": "iframe", "Sec-Fetch-Mode": "navigate", "Origin": None}
    assert ui.ask("GET", "/", headers=dict(framed)).status == 403


def test_the_first_page_may_be_reached_from_another_site(
    start_ui: Callable[..., UiProcess],
) -> None:
    server = start_ui()
    path = server.link.removeprefix(server.origin)
    headers = {"Origin": None, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert server.ask("GET", path, headers=dict(headers)).status == 200


def test_large_requests_are_refused(ui: UiProcess) -> None:
    large = b"[" + b" " * (2 * 1024**2) + b"]"
    assert ui.ask("POST", "/api/examine", raw=large).status == 413
    with socket.create_connection(("127.0.0.1", ui.port), timeout=20) as connection:
        # without a length: only reading tells
        head = (
            f"POST /api/examine HTTP/1.1\r\nHost: 127.0.0.1:{ui.port}\r\nOrigin: {ui.origin}\r\n"
            f"Cookie: {ui.cookie}\r\nX-Titanrun: {ui.secret}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(40):
                connection.sendall(piece)
        except OSError:
            pass  # the server has answered and closed
        assert b" 413 " in connection.recv(100)
    for text in (b"", b"[1]", b"{", b"\xff", b"[" * 5000):
        assert ui.ask("POST", "/api/examine", raw=text).status == 400


def test_the_server_listens_on_this_machine_only(ui: UiProcess) -> None:
    listening = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/net/tcp').read())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    addresses = re.findall(rf"^\s*\d+: ([0-9A-F]+):{ui.port:04X} \S+ 0A", listening, re.MULTILINE)
    assert addresses == ["0100007F"]


def test_a_second_command_gets_a_new_link_from_the_first_server(
    ui: UiProcess, start_ui: Callable[..., UiProcess], tmp_path: Path
) -> None:
    [file] = (tmp_path / "state" / "titanrun" / "ui").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = start_ui()
    assert (second.process.wait(10), second.port) == (0, ui.port)
    assert ui.follow_link(second.link).status == 200
    for secret in ("", "x", json.loads(file.read_text())["secret"][:-1]):
        headers = {"X-Titanrun-Launcher": secret}
        assert ui.ask("POST", "/link", headers=dict(headers)).status == 403


def test_a_read_only_server_writes_and_starts_nothing(start_ui: Callable[..., UiProcess]) -> None:
    server = start_ui("--read-only")
    server.follow_link()
    assert server.ask("GET", "/api/about").data["read_only"] is True
    assert server.ask("GET", "/api/file?path=recipes/mine.yaml").data["writable"] is False
    of_run = ("runs/none/stop", "runs/none/save", "runs/none/tags", "chat/none")
    for path in (*of_run, "archive", "jobs", "jobs/preview", "plugins"):
        answer = server.ask("POST", f"/api/{path}", {})
        assert answer.status in (404, 405), path
        # not the answer of a route that looked for the run
        assert answer.body in (b"Not Found", b"Method Not Allowed"), path
    before = (server.workspace / "recipes/mine.yaml").read_bytes()
    answer = server.ask(
        "PUT", "/api/file?path=recipes/mine.yaml", {"text": ""}, headers={"If-Match": '"x"'}
    )
    assert answer.status in (404, 405)
    assert (server.workspace / "recipes/mine.yaml").read_bytes() == before


def test_no_source_of_the_page_writes_html() -> None:
    sources = Path(__file__).parents[2] / "ui" / "src"
    text = "".join(path.read_text() for path in sources.rglob("*.ts*"))
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text
