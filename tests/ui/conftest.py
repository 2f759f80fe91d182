"""A server of `titanrun ui` in a process of its own, asked over real sockets."""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import RunDirectory, write_recipe_files

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
# the name of another machine, whose address has become that of this one
STRANGER = "evil.example"


@dataclass
class Answer:
    """One answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass
class UiProcess:
    """A server, and the secrets of its page once the link was followed."""

    process: subprocess.Popen[str]
    link: str
    workspace: Path
    environment: dict[str, str]
    cookie: str = ""
    secret: str = ""
    seen: list[bytes] = field(default_factory=list)

    @property
    def port(self) -> int:
        found = re.search(r":(\d+)/", self.link)
        assert found is not None
        return int(found[1])

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str | None] | None = None,
        *,
        raw: bytes | None = None,
    ) -> Answer:
        """Send what the page would send, with some headers changed or, if None, left out."""
        sent: dict[str, str | None] = {
            "Host": f"127.0.0.1:{self.port}",
            "Origin": self.origin,
            "Sec-Fetch-Site": "same-origin",
            "Cookie": self.cookie,
            "X-Titanrun": self.secret,
            **(headers or {}),
        }
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if data is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()
        self.seen.append(answer.body)
        return answer

    def follow_link(self, link: str | None = None) -> Answer:
        """Open a link as a browser does that comes from elsewhere, and keep the secrets."""
        path = (link or self.link).removeprefix(self.origin)
        page = {"Origin": None, "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
        answer = self.ask("GET", path, headers={**page, "Cookie": None, "X-Titanrun": None})
        secret = re.search(r'titanrun-secret" content="([^"]+)"', answer.body.decode())
        cookie = {name.lower(): value for name, value in answer.headers.items()}.get("set-cookie")
        if secret and cookie:
            self.secret, self.cookie = secret[1], cookie.partition(";")[0]
        return answer


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with one recipe, its parts, and no run."""
    folder = tmp_path / "work"
    (folder / "recipes" / "parts").mkdir(parents=True)
    shutil.copy(RECIPES / "llama3_debug.yaml", folder / "recipes" / "mine.yaml")
    for name in ("tiny_corpus.yaml", "fp32.yaml"):
        shutil.copy(RECIPES / "parts" / name, folder / "recipes" / "parts" / name)
    return folder


@pytest.fixture
def start_ui(tmp_path: Path, workspace: Path) -> Iterator[Callable[..., UiProcess]]:
    """Starts servers of the workspace, which end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, **variables: str) -> UiProcess:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), **variables}
        process = subprocess.Popen(
            [sys.executable, "-m", "titanrun", "ui", str(workspace), "--no-browser", *options],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        started.append(process)
        assert process.stdout is not None
        server = UiProcess(process, process.stdout.readline().strip(), workspace, environment)
        assert server.link.startswith("http://127.0.0.1:"), server.link
        return server

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of this machine; no browser is ever downloaded."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "apt-get install -y --no-install-recommends chromium"
    with sync_playwright() as playwright:
        words = ["--no-sandbox", f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1"]
        started = playwright.chromium.launch(executable_path=program, args=words)
        yield started
        started.close()


@pytest.fixture
def watched(browser: Any, start_ui: Callable[..., UiProcess]) -> Iterator[Any]:
    """A page on a server of its own."""
    # imported here: that module needs what stands above
    from tests.ui.watched_page import Watched

    found = Watched(browser, start_ui())
    yield found
    found.context.close()
    assert found.faults == []


@pytest.fixture
def ui(start_ui: Callable[..., UiProcess]) -> UiProcess:
    """A server whose link was followed."""
    server = start_ui()
    assert server.follow_link().status == 200
    return server


def write_run(folder: Path, *overrides: str, losses: list[object], **status: object) -> Path:
    """Write a run directory as a run leaves it, without its checkpoints."""
    resolved = resolve_recipe(str(RECIPES / "llama3_debug.yaml"), list(overrides), environment={})
    write_recipe_files(RunDirectory(folder, "new"), resolved, ["titanrun", "train"])
    start = {
        "time": "2026-01-01T10:00:00+00:00",
        "argv": ["titanrun", "train", "recipes/mine.yaml"],
        "decided": {"steps": 80, "ranks": 1},
    }
    (folder / "run.json").write_text(json.dumps({"name": folder.name, "starts": [start]}))
    about = {"state": "finished", "step": len(losses), "heartbeat": 1767261660.0, "exit_code": 0}
    (folder / "status.json").write_text(json.dumps({**about, **status}))
    lines = [
        {"step": step, "loss": loss, "tps": 1000.0 + step, "tokens_seen": 256 * step}
        for step, loss in enumerate(losses, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "rank-0.log").write_text("2026-01-01 10:00:00,123 INFO all is well\n")
    return folder
