"""What one page may take of the server, and what the server leaves behind."""

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ui.conftest import UiProcess, write_run
from titanrun.cli.ui import warn_about_owner
from titanrun.ui.http_server import MAX_CONNECTIONS
from titanrun.ui.routes import MAX_STREAMS


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_stream(ui: UiProcess, connections: ExitStack) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", ui.port, timeout=20)
    connections.callback(connection.close)
    headers = {"Cookie": ui.cookie, "X-Titanrun": ui.secret, "Origin": ui.origin}
    connection.request("GET", "/api/events?topics=runs", headers=headers)
    return connection.getresponse()


def test_the_ninth_stream_is_refused_until_another_one_ends(
    ui: UiProcess, connections: ExitStack
) -> None:
    streams = [open_stream(ui, connections) for _ in range(MAX_STREAMS)]
    assert [one.status for one in streams] == [200] * 8
    ninth = open_stream(ui, connections)
    assert (ninth.status, json.loads(ninth.read())["error"]["code"]) == (429, "busy")
    assert ui.ask("GET", "/api/about").status == 200
    connections.close()
    end = time.monotonic() + 20
    while open_stream(ui, connections).status != 200:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_the_seventeenth_connection_is_turned_away(ui: UiProcess, connections: ExitStack) -> None:
    for _ in range(MAX_CONNECTIONS):
        connections.enter_context(socket.create_connection(("127.0.0.1", ui.port), timeout=20))
    with socket.create_connection(("127.0.0.1", ui.port), timeout=20) as one_more:
        one_more.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{ui.port}\r\n\r\n".encode())
        assert b" 503 " in one_more.recv(100)
    connections.close()
    end = time.monotonic() + 20
    while ui.ask("GET", "/api/about").status != 200:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_an_examination_that_takes_too_long_is_given_up() -> None:
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from titanrun.ui.json_routes import post_route
    from titanrun.ui.refusal import Refusal, build_refusal_response

    routes = [
        post_route("/slow", lambda _: time.sleep(0.5), seconds=0.05),
        post_route("/quick", lambda data: data, seconds=20),
    ]
    app = Starlette(routes=routes, exception_handlers={Refusal: build_refusal_response})
    with TestClient(app) as client:
        slow = client.post("/api/slow", json={})
        assert (slow.status_code, slow.json()["error"]["code"]) == (429, "busy")
        assert client.post("/api/quick", json={"a": 1}).json() == {"a": 1}


def test_an_answer_that_nobody_waits_for_is_given_up() -> None:
    from starlette.types import Message

    from titanrun.ui.json_routes import get_route

    end = threading.Event()
    route = get_route("/slow", lambda _: end.wait(60))
    sent: list[Message] = []

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/api/slow", "query_string": b""}
        await route.app({**scope, "headers": []}, leave, send)
        assert not end.is_set()
        end.set()

    asyncio.run(ask())
    assert [one.get("status") for one in sent] == [499, None]


def test_the_first_event_names_the_build_of_the_page(ui: UiProcess, connections: ExitStack) -> None:
    stream = open_stream(ui, connections)
    assert stream.readline() == b"event: hello\n"
    hello = json.loads(stream.readline().removeprefix(b"data: "))
    about = ui.ask("GET", "/api/about").data
    assert hello == {"version": about["version"], "bundle": about["bundle"]}


def test_neither_link_nor_secrets_reach_a_log(workspace: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "titanrun", "ui", str(workspace), "--no-browser"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        server = UiProcess(process, process.stdout.readline().strip(), workspace, environment)
        token = server.link.partition("token=")[2]
        assert len(token) == 43
        server.follow_link()
        server.ask("GET", "/api/about")
        server.ask("GET", "/api/none")
        server.ask("POST", "/api/examine", {"path": "x"})
        process.terminate()
        out, errors = process.communicate(timeout=20)
    for secret in (token, server.secret, server.cookie.partition("=")[2]):
        assert secret not in out + errors
    left = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert not [text for text in left if token in text]


def test_a_workspace_of_another_user_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Namespace(quiet=False)
    warn_about_owner(tmp_path, options)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    warn_about_owner(tmp_path, options)
    assert f"{tmp_path} belongs to another user" in capsys.readouterr().err


def test_runs_are_archived_and_brought_back(ui: UiProcess) -> None:
    runs = ui.workspace / "runs"
    write_run(runs / "a", losses=[3.0])
    write_run(runs / "deep" / "b", losses=[3.0])
    assert ui.ask("GET", "/api/runs").data["total"] == 2
    moved = ui.ask("POST", "/api/archive", {"runs": ["a", "deep/b"]}).data["runs"]
    assert moved == [".archive/a", "deep/.archive/b"]
    # at once: a page asks again as soon as it has changed something
    assert ui.ask("GET", "/api/runs").data["total"] == 0
    assert (runs / ".archive" / "a" / "metrics.jsonl").is_file()
    back = ui.ask("POST", "/api/archive", {"runs": moved, "restore": True}).data["runs"]
    assert back == ["a", "deep/b"] and (runs / "a" / "run.json").is_file()
    assert ui.ask("GET", "/api/runs").data["total"] == 2
    ui.ask("POST", "/api/runs/a/tags", {"add": ["kept"], "remove": []})
    assert ui.ask("GET", "/api/runs").data["tags"] == ["kept"]
    for names in (["none"], ["../recipes"], ["a", "none"]):
        assert ui.ask("POST", "/api/archive", {"runs": names}).status in (400, 403, 404), names
    assert (runs / "a").is_dir()


def test_a_run_that_may_be_alive_is_not_archived(ui: UiProcess) -> None:
    write_run(ui.workspace / "runs" / "far", losses=[3.0], state="running", host="elsewhere")
    answer = ui.ask("POST", "/api/archive", {"runs": ["far"]})
    assert answer.status == 400 and "is stale" in answer.data["error"]["message"]
    assert (ui.workspace / "runs" / "far").is_dir()


def test_the_report_is_that_of_the_command(ui: UiProcess) -> None:
    run = write_run(ui.workspace / "runs" / "a", losses=[3.0, 2.0])
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "report", str(run), "-o", "a.html"],
        cwd=ui.workspace,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = ui.ask("GET", "/api/report?run=a").data["text"]
    assert text == (ui.workspace / "a.html").read_text()
    assert str(ui.workspace) not in text
    for query in ("", "run=none", "run=../recipes"):
        assert ui.ask("GET", f"/api/report?{query}").status in (400, 403, 404), query


def test_codes_and_rules_of_problems_are_explained(ui: UiProcess) -> None:
    text = ui.ask("POST", "/api/explain", {"word": "unknown-key"}).data["text"]
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "explain", "unknown-key", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert text == json.loads(done.stdout)["text"]
    assert ui.ask("POST", "/api/explain", {"word": "no such word"}).status == 400


def test_weights_are_exported_only_below_the_workspace(ui: UiProcess, tmp_path: Path) -> None:
    run = write_run(ui.workspace / "runs" / "a", losses=[3.0])
    checkpoint = run / "checkpoint" / "step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "resolved.yaml").write_text((run / "resolved.yaml").read_text())
    (ui.workspace / "out").symlink_to(tmp_path)
    request = {"command": "export", "target": "a", "step": 1, "format": "hf"}
    shown = ui.ask("POST", "/api/jobs/preview", {**request, "out": "weights"})
    assert shown.status == 200, shown.body
    assert shown.data["shell"] == (
        "titanrun checkpoint export ./runs/a/checkpoint/step-1 ./weights --format hf"
    )
    bad: list[dict[str, object]] = [
        {"out": "../weights"},
        {"out": "/tmp/weights"},
        {"out": ""},
        {"out": "out/weights"},
        {"out": 5},
        {"out": "weights", "format": "--quantize"},
        {"out": "weights", "step": None},
        {"out": "weights", "overrides": ["a=1"]},
    ]
    for changes in bad:
        answer = ui.ask("POST", "/api/jobs/preview", {**request, **changes})
        assert answer.status in (400, 403), (changes, answer.body)
    for command in ("verify", "eval"):
        asked = {"command": command, "target": "a", "step": 1}
        shell = ui.ask("POST", "/api/jobs/preview", asked).data["shell"]
        assert shell.endswith(f"{command} ./runs/a/checkpoint/step-1")


def test_enter_prints_a_new_link(workspace: Path, tmp_path: Path) -> None:
    """The links are for a person at a terminal: another input gives none."""
    master, terminal = os.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "titanrun", "ui", str(workspace), "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=terminal, text=True, env=environment
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        server = UiProcess(process, process.stdout.readline().strip(), workspace, environment)
        assert server.follow_link().status == 200
        os.write(master, b"\n")
        new = process.stdout.readline().strip()
        assert new != server.link and server.follow_link(new).status == 200
        assert server.ask("GET", "/api/about").status == 200
        process.terminate()
    os.close(master)
