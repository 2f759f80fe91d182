"""What `titanrun ui` takes: its start, lists of many runs, long curves, and doing nothing.

The server is a process of its own, asked over its socket. What a browser adds is measured where
Chromium and playwright are found (`PYTHONPATH=.venv-browser`); the time from an edit to its
problems is printed by `pytest -s -m browser tests/ui/test_browser.py -k follow_every_edit`.
"""

import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from experiments import METRICS, RUN_FILES, SILENT

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from tests.ui.page_parts import PAGE_BUDGETS, compress_files, list_page_parts  # noqa: E402

STATIC = ROOT / "titanrun" / "ui" / "static"
TICKS = os.sysconf("SC_CLK_TCK")
IDLE_SECONDS = 20.0
PAINTS = 10
# what the page itself measures, from the start of its loading on, in milliseconds
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
IS_USABLE = """() => {
  if (document.querySelector('.cm-content[contenteditable=true] .cm-line')?.innerText)
    return performance.now();
}"""


def browser_page_report(runs: int) -> None:
    """Print the figures beside their targets."""
    print_sizes()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        starts = []
        for _ in range(runs):
            with Server(workspace) as server:
                first = server.cpu_seconds
                server.ask("/api/about")
                starts.append((first, server.cpu_seconds))
        print(f"ui: link printed {min(starts)[0]:.2f} s of CPU                  target 0.6")
        print(f"ui: first answer {min(end for _, end in starts):.2f} s of CPU")
        write_runs(workspace / "runs", 10_000)
        list_report(workspace, runs)
    with tempfile.TemporaryDirectory() as folder:
        curve_and_idle_report(Path(folder), runs)
    with tempfile.TemporaryDirectory() as folder:
        paint_report(Path(folder))


def print_sizes() -> None:
    """Print the sizes of the built page."""
    manifest = json.loads((STATIC / "manifest.json").read_text())
    for name, files in list_page_parts(STATIC).items():
        size = f"ui: {name} {compress_files(files):.0f} KB gzip"
        print(f"{size:<52} target {PAGE_BUDGETS[name]}")
    whole = sum(manifest["files"].values()) / 1024**2
    print(f"ui: all static files {whole:.2f} MB                              target 1.2")


def list_report(workspace: Path, runs: int) -> None:
    """Print how long the first page of 10,000 runs takes: without an index, and with one."""
    with Server(workspace) as server:
        before = time.perf_counter()
        server.ask("/api/runs?limit=50")
        print(f"ui: 10,000 runs, no index {time.perf_counter() - before:.2f} s")
        times = []
        for _ in range(runs):
            # what the server knows from the request before is too old then
            time.sleep(1.1)
            before = time.perf_counter()
            server.ask("/api/runs?limit=50")
            times.append(time.perf_counter() - before)
    with Server(workspace) as server:
        server.ask("/api/about")
        before = time.perf_counter()
        server.ask("/api/runs?limit=50")
        print(f"ui: 10,000 runs, new server, index {time.perf_counter() - before:.2f} s  target 1")
    print(f"ui: 10,000 runs, smallest of {runs}: {min(times):.2f} s             target 1")


def curve_and_idle_report(workspace: Path, runs: int) -> None:
    """Print how long a curve of 100,000 steps takes, and what a server takes that is left alone."""
    run, short = write_runs(workspace / "runs", 2)
    rows = (
        json.dumps({"step": step, **METRICS, **SILENT, "loss": 8.0 / step}) + "\n"
        for step in range(1, 100_001)
    )
    (run / "metrics.jsonl").write_text("".join(rows))
    path = f"/api/runs/{run.name}/series?metrics=loss&points=2000"
    with Server(workspace) as server:
        server.ask("/api/about")
        times = []
        for _ in range(runs):
            before = time.perf_counter()
            server.ask(path)
            times.append(time.perf_counter() - before)
        print(f"ui: 100,000 steps to 2,000 points {min(times):.2f} s              target 0.3")
        with server.follow_run(run):
            time.sleep(2)
            before = server.cpu_seconds
            time.sleep(IDLE_SECONDS)
            share = (server.cpu_seconds - before) / IDLE_SECONDS
            print(f"ui: idle with one followed run {100 * share:.2f}% of a core      target 0.5")
    with Server(workspace) as server:
        server.ask("/api/about")
        with server.follow_run(short):
            time.sleep(2)
            print(f"ui: idle server {server.memory_mib:.0f} MiB                  target 60")


def paint_report(workspace: Path) -> None:
    """Print when the editor is first painted, and when it takes keys, in Chromium."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or find_spec("playwright") is None:
        print("ui: first paint: not measured, Chromium or playwright is missing")
        return
    from playwright.sync_api import sync_playwright

    recipes = workspace / "recipes"
    shutil.copytree(ROOT / "recipes" / "parts", recipes / "parts")
    shutil.copy(ROOT / "recipes" / "llama3_debug.yaml", recipes)
    with Server(workspace) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.link)
        times = [open_editor(page, server) for _ in range(PAINTS)]
        browser.close()
    for name, found, target in zip(
        ("first paint", "editor usable"), zip(*times, strict=True), (0.3, 1.0), strict=True
    ):
        middle, worst = statistics.median(found) / 1000, max(found) / 1000
        print(f"ui: {name} {middle:.2f} s, the worst of {PAINTS} {worst:.2f} s  target {target}")


def open_editor(page: Any, server: "Server") -> tuple[float, float]:
    """Load the editor anew; return the milliseconds to its first paint and until it takes keys."""
    page.goto(f"http://127.0.0.1:{server.port}/edit?file=recipes/llama3_debug.yaml")
    usable = page.wait_for_function(IS_USABLE).json_value()
    return page.wait_for_function(FIRST_PAINT).json_value(), usable


def write_runs(folder: Path, count: int) -> list[Path]:
    """Write finished runs of a few steps."""
    found = []
    for number in range(count):
        run = folder / f"run-{number:05}"
        run.mkdir(parents=True)
        for name, data in RUN_FILES.items():
            (run / name).write_text(json.dumps(data))
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 8.0}\n{"step": 2, "loss": 7.0}\n')
        found.append(run)
    return found


class Server:
    """A server of a workspace, and the secrets of its page."""

    def __init__(self, workspace: Path) -> None:
        """Start it, and wait for its link."""
        state = tempfile.mkdtemp(dir=workspace)
        command = [sys.executable, "-m", "titanrun", "ui", str(workspace), "--no-browser"]
        environment = {**os.environ, "XDG_STATE_HOME": state}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        self.port = int(self.link.split(":")[2].partition("/")[0])
        self.headers: dict[str, str] = {}

    def __enter__(self) -> "Server":
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / TICKS

    @property
    def memory_mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    def connect(self, path: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request of the page."""
        if not self.headers:
            self.headers = self.open_page()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path, headers=self.headers)
        return connection, connection.getresponse()

    def open_page(self) -> dict[str, str]:
        """Follow the link; return the headers with both secrets."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", self.link.partition(str(self.port))[2])
        page = connection.getresponse()
        secret = re.search(r'titanrun-secret" content="([^"]+)"', page.read().decode())
        cookie = page.headers["set-cookie"]
        assert secret is not None and cookie is not None
        return {"Cookie": cookie.partition(";")[0], "X-Titanrun": secret[1]}

    def ask(self, path: str) -> bytes:
        """Return an answer.

        Raises:
            RuntimeError: It is not one.
        """
        connection, answer = self.connect(path)
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return body

    @contextmanager
    def follow_run(self, run: Path) -> Iterator[None]:
        """Keep a stream of events open, as the page of a run does that has its curves."""
        curves = json.loads(self.ask(f"/api/runs/{run.name}/series?metrics=loss&points=100"))
        since = quote(json.dumps({f"run:{run.name}": curves["cursor"]}))
        topics = f"runs,jobs,run:{run.name}"
        connection, _ = self.connect(f"/api/events?topics={topics}&since={since}")
        yield
        connection.close()
