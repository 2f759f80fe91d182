"""Lines of shell blocks that need little: each runs, or tests/docs/blocks.yaml says why not."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.test_shell_blocks import FENCE, PROGRAM
from titanrun.cli.main import run
from tools.run_pages import matches

ROOT = Path(__file__).parents[2]
PAGES: dict[str, dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("blocks.yaml"))
NAMED_FILE = re.compile(r"(?:(?:tests|tools|docs)/[\w./]*\w|\.ci/run)")
# lines that no test runs; 79 when this was written
MAX_NOT_RUN = 85
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if page.get("slow") else [])
    for name, page in PAGES.items()
]


def find_lines(page: Path) -> list[tuple[str, list[str]]]:
    """Return the lines that call a program, each with the output that the page shows below it."""
    found = []
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind not in ("", "sh", "console"):
            continue
        lines = re.sub(r"\\\n *", "", text).splitlines()
        for number, line in enumerate(lines):
            if PROGRAM.match(line):
                shown = lines[number + 1 :] if line.startswith("$ ") else []
                found.append((line.removeprefix("$ "), shown))
    return found


def find_reason(line: str, reasons: dict[str, str]) -> str | None:
    """Return the start of a line that has a reason not to run; spaces do not count."""
    words = " ".join(line.split()) + " #"
    return next((start for start in reasons if words.startswith(start)), None)


def prepare(folder: Path, page: dict[str, Any]) -> None:
    """Write what the lines of a page need."""
    (folder / "recipes").symlink_to(ROOT / "recipes")
    for target, source in page.get("copy", {}).items():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target)
        else:
            shutil.copy(ROOT / source, folder / target)
    for target, text in page.get("write", {}).items():
        (folder / target).write_text(text)


def run_line(line: str) -> int:
    """Run titanrun as a shell would, but for the file that its output goes to."""
    return run(shlex.split(line.partition(" > ")[0], comments=True)[1:])


@pytest.mark.parametrize("name", CASES)
def test_lines_run_or_have_a_reason(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reasons = PAGES[name].get("not_run", {})
    prepare(tmp_path, PAGES[name])
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


def test_reasons_name_tests_that_exist() -> None:
    reasons = [reason for page in PAGES.values() for reason in page.get("not_run", {}).values()]
    named = {file for reason in reasons for file in NAMED_FILE.findall(reason)}
    assert sorted(file for file in named if not (ROOT / file).exists()) == []
    targets = (ROOT / "Makefile").read_text()
    made = {target for reason in reasons for target in re.findall(r"make ([\w-]+)", reason)}
    assert {target for target in made if f"\n{target}:" not in targets} == set()


def test_no_further_line_is_left_out() -> None:
    left_out = [
        line
        for name, page in PAGES.items()
        for line, _ in find_lines(ROOT / name)
        if find_reason(line, page.get("not_run", {}))
    ]
    assert len(left_out) <= MAX_NOT_RUN
