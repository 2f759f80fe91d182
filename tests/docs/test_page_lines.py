"""Lines of shell blocks: each runs as tests/docs/blocks.yaml says, or it says why not."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.push_hub import UploadHub
from tests.docs.test_shell_blocks import FENCE, PROGRAM
from tests.docs.test_site import PAGES_THAT_RUN, TUTORIALS
from titanrun.cli.main import run
from tools.run_pages import find_blocks, matches

ROOT = Path(__file__).parents[2]
PAGES: dict[str, dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("blocks.yaml"))
NAMED_FILE = re.compile(r"(?:(?:tests|tools|docs)/[\w./]*\w|\.ci/run)")
# of all lines, those that no test runs
MAX_SHARE_NOT_RUN = 0.15
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if page.get("slow") else [])
    for name, page in PAGES.items()
]
TIMEOUT_SECONDS = 600


def find_lines(page: Path) -> list[tuple[str, list[str]]]:
    """Return the lines that call a program, each with the output that the page shows below it."""
    found = []
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind not in ("", "sh", "console"):
            continue
        lines = re.sub(r"\\\n *", "", text).splitlines()
        for number, line in enumerate(lines):
            if PROGRAM.match(line):
                shown = []
                for below in lines[number + 1 :] if line.startswith("$ ") else []:
                    if below.startswith(("$ ", "# ")):
                        break
                    shown.append(below)
                found.append((line.removeprefix("$ "), shown))
    return found


def find_reason(line: str, reasons: dict[str, str]) -> str | None:
    """Return the start of a line that has a reason not to run; spaces do not count."""
    words = " ".join(line.split()) + " #"
    return next((start for start in reasons if words.startswith(start)), None)


def prepare(folder: Path, name: str) -> None:
    """Write what the lines of a page need."""
    page = PAGES[name]
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    for target, source in page.get("copy", {}).items():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target)
        else:
            shutil.copy(ROOT / source, folder / target)
    for target, text in page.get("write", {}).items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(text)
    blocks = FENCE.findall((ROOT / name).read_text(encoding="utf-8"))
    for target, words in page.get("shown", {}).items():
        [text] = [text for kind, text in blocks if kind == "yaml" and words in text]
        (folder / target).write_text(text)


def run_line(line: str) -> int:
    """Run titanrun as a shell would, but for the file that its output goes to."""
    return run(shlex.split(line.partition(" > ")[0], comments=True)[1:])


@pytest.mark.parametrize("name", [case for case in CASES if not case.marks])
def test_lines_run_or_have_a_reason(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reasons = PAGES[name].get("not_run", {})
    prepare(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    used = set()
    for line, shown in find_lines(ROOT / name):
        start = find_reason(line, reasons)
        if start is not None:
            used.add(start)
            continue
        capfd.readouterr()
        code = run_line(line)
        printed = capfd.readouterr()
        expected = (0, 1) if "runs diff" in line else (0,)
        assert code in expected, f"{line}\n{printed.err}"
        if shown:
            assert matches(shown, (printed.out + printed.err).splitlines()), printed.out
    assert used == set(reasons)


def start_shell(command: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a line in a shell and in a session of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    fixed = {"PATH": path, "HOME": str(folder / ".home"), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | fixed | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def serve_until_interrupted(command: str, folder: Path, **variables: str) -> str:
    """Start a server, wait for its address, and return what it printed before Ctrl-C ended it."""
    # a shell that runs tests in the background ignores Ctrl-C, and what it starts does so too
    listening = f"exec env --default-signal=INT {command}"
    with start_shell(listening, folder, **variables) as process:
        limit = threading.Timer(TIMEOUT_SECONDS, process.kill)
        limit.start()
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "http://127.0.0.1:" in line:
                # as a terminal does: to all processes in the foreground
                os.killpg(process.pid, signal.SIGINT)
        limit.cancel()
    assert process.returncode in (0, 130, -signal.SIGINT), printed
    assert "http://127.0.0.1:" in printed
    return printed


@contextmanager
def serve_hub() -> Iterator[dict[str, str]]:
    """Serve a hub that takes uploads, and yield the variables that lead to it."""
    UploadHub.reset()
    with ThreadingHTTPServer(("127.0.0.1", 0), UploadHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_TOKEN": f"hf_{'a1B2' * 9}",
            "HF_HUB_DISABLE_XET": "1",
        }
        server.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [case for case in CASES if case.marks])
def test_slow_lines_run_or_have_a_reason(name: str, tmp_path: Path) -> None:
    """Each in a shell. What trains for minutes does so for some steps: `shorter` says how."""
    page = PAGES[name]
    kinds: dict[str, dict[str, Any]] = {
        kind: page.get(kind, {}) for kind in ("not_run", "shorter", "exit_code", "served")
    }
    prepare(tmp_path, name)
    used: dict[str, set[str]] = {kind: set() for kind in kinds}
    with serve_hub() as variables:
        variables |= {"CLONE": str(ROOT), "PYTHONUNBUFFERED": "1"}
        variables["PYTHONPATH"] = f"{ROOT}:{ROOT / page.get('packages', '.')}"
        lines = [(line, []) for line in page.get("before", [])] + find_lines(ROOT / name)
        for line, shown in lines:
            found = {kind: find_reason(line, starts) for kind, starts in kinds.items()}
            for kind, start in found.items():
                used[kind] |= {start} - {None}
            if found["not_run"] is not None:
                continue
            command = line
            if found["shorter"] is not None:
                words, hash_mark, rest = line.partition(" #")
                command = f"{words} {kinds['shorter'][found['shorter']]}{hash_mark}{rest}"
            if found["served"] is not None:
                options = kinds["served"][found["served"]]
                command = f"{line.partition(' #')[0]} {options}"
                serve_until_interrupted(command, tmp_path, **variables)
                continue
            process = start_shell(command, tmp_path, **variables)
            try:
                printed, _ = process.communicate("", timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            code = kinds["exit_code"].get(found["exit_code"], 0)
            assert process.returncode == code, f"{command}\n{printed}"
            if shown:
                assert matches(shown, printed.splitlines()), printed
    assert used == {kind: set(starts) for kind, starts in kinds.items()}


def test_reasons_name_tests_that_exist() -> None:
    reasons = [reason for page in PAGES.values() for reason in page.get("not_run", {}).values()]
    named = {file for reason in reasons for file in NAMED_FILE.findall(reason)}
    assert sorted(file for file in named if not (ROOT / file).exists()) == []
    targets = (ROOT / "Makefile").read_text()
    made = {target for reason in reasons for target in re.findall(r"make ([\w-]+)", reason)}
    assert {target for target in made if f"\n{target}:" not in targets} == set()


def count_lines() -> tuple[int, list[tuple[str, str, str]]]:
    """Count the lines of all pages, and list those that are not run: page, line, reason."""
    total, left_out = 0, []
    for name, page in PAGES.items():
        reasons = page.get("not_run", {})
        for line, _ in find_lines(ROOT / name):
            total += 1
            if start := find_reason(line, reasons):
                left_out.append((name, line, reasons[start]))
    for path in (ROOT / "README.md", *TUTORIALS, *PAGES_THAT_RUN):
        total += len(find_lines(path))
        for block in find_blocks(path.read_text(encoding="utf-8")):
            if not block.is_run:
                name = path.relative_to(ROOT).as_posix()
                left_out += [(name, line, "") for line in block.text.splitlines()]
    return total, left_out


def test_few_lines_are_not_run() -> None:
    total, left_out = count_lines()
    assert total > 150
    assert len(left_out) < MAX_SHARE_NOT_RUN * total, left_out
