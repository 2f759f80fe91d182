"""Pictures of the documentation: each is shown with a text, and made by a command that works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.copy_pages import ROOT, find_pages

IMAGES = ROOT / "docs" / "images"
SHOWN = re.compile(r"!\[([^\]]*)\]\((?:docs/)?images/([^)]+)\)")
TERMINAL = IMAGES / "first_run.sh"


def test_every_picture_is_shown_once_with_a_text_that_says_what_it_shows() -> None:
    pages = [ROOT / name for name in find_pages() if name.endswith(".md")]
    shown = [use for page in pages for use in SHOWN.findall(page.read_text(encoding="utf-8"))]
    assert [file for text, file in shown if len(text.split()) < 2] == []
    files = {path.name for path in IMAGES.iterdir() if path.suffix != ".sh"}
    assert sorted(file for _, file in shown) == sorted(files)


def test_every_picture_has_a_maker() -> None:
    pages = re.search(
        r"^PAGES = \{(.*?)^\}", (ROOT / "tools/take_ui_shots.py").read_text(), re.M | re.S
    )
    assert pages is not None
    made = {f"ui-{name}-light.png" for name in re.findall(r'^ *"(\w+)":', pages[1], re.MULTILINE)}
    made |= {path.with_suffix(".svg").name for path in IMAGES.glob("*.sh")}
    assert {path.name for path in IMAGES.iterdir() if path.suffix != ".sh"} == made


@pytest.mark.slow
@pytest.mark.parametrize("line", [pytest.param(TERMINAL.read_text(), id="first_run")])
def test_the_commands_of_the_recorded_terminal_end_as_shown(line: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in line.splitlines():
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        # the second one shows a mistake
        assert done.returncode == (2 if "stepz" in command else 0), done.stderr
