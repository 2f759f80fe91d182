"""`titanrun report`: one page about a run, from its files, that a browser shows."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from titanrun.cli.report import build_run_report, format_recorded_source
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import RunDirectory, write_recipe_files
from titanrun.runs.log_problems import collect_log_problems

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
LOG = """2026-01-01 10:00:00,123 INFO all is well
2026-01-01 10:00:05,123 WARNING loss 9.1 at step 7 is a spike
2026-01-01 10:00:09,123 WARNING loss 9.4 at step 9 is a spike
2026-01-01 10:00:10,123 ERROR <script>alert("no")</script>
"""
# an element that has no end
VOID = {"meta"}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory as a run leaves it, without its checkpoints."""
    folder = tmp_path / "run"
    resolved = resolve_recipe(DEBUG, ["optimizer.lr=0.003"], environment={})
    write_recipe_files(RunDirectory(folder, "new"), resolved, ["titanrun", "train"])
    start = {
        "time": "2026-01-01T10:00:00+00:00",
        "argv": ["titanrun", "train", "<b>"],
        "environment": {"packages": {"torch": "2.13.0"}},
    }
    (folder / "run.json").write_text(
        json.dumps({"name": "a <name>", "starts": [{**start, "machine": {"device": "cpu"}}]})
    )
    (folder / "status.json").write_text(json.dumps({"state": "finished", "step": 3}))
    lines = [
        {"step": step, "loss": 9.0 - step, "lr": 1e-3, "tokens_seen": step} for step in (1, 2, 3)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo'
    )
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text(LOG)
    return folder


class Balanced(HTMLParser):
    """Keeps which elements are open, and all that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            str(value)
            for name, value in attrs
            if name in ("src", "href") and not str(value).startswith("#")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """`<rect/>` opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_shows_what_the_files_say(run: Path) -> None:
    text = build_run_report(run)
    page = Balanced()
    page.feed(text)
    assert (page.open, page.loads) == ([], [])
    assert "<script" not in text and "&lt;script&gt;alert" in text and "a &lt;name&gt;" in text
    assert text.count("<svg") == 2
    written = re.search(
        r"<td class=\"code\">optimizer.lr</td><td class=\"code\">0.003</td><td "
        r"class=\"code\">([^<]*)</td>",
        text,
    )
    assert written is not None and written[1].endswith("(override)")
    assert "lr_scheduler.decay_type" in text.split("default settings")[1]


def test_a_problem_is_named_once_with_how_often_it_came(run: Path) -> None:
    found = collect_log_problems(run)
    assert [(met.time, met.level, met.count) for met in found] == [
        ("2026-01-01 10:00:05", "warning", 2),
        ("2026-01-01 10:00:10", "error", 1),
    ]
    assert found[0].log == "rank-0" and found[0].text == "loss 9.1 at step 7 is a spike"


def test_origins_are_places_or_who_decided() -> None:
    place = {"file": "a.yaml", "line": 3, "column": 5}
    assert format_recorded_source({"source": "file", **place}) == "a.yaml:3:5"
    assert format_recorded_source({"source": "decided"}) == "decided"


def test_half_a_run_has_a_page_too_and_what_is_no_run_is_a_problem(
    run: Path, titanrun: Run, tmp_path: Path
) -> None:
    for name in ("metrics.jsonl", "resolved.yaml", "resolved.sources.json", "status.json"):
        (run / name).unlink()
    text = build_run_report(run)
    assert "no step was logged" in text and "it cannot be read" in text
    done = titanrun("report", str(tmp_path))
    assert (done.returncode, "is not a run directory" in done.stderr) == (2, True), done.stderr
    done = titanrun("report", str(run), "-o", "nowhere/report.html")
    assert (done.returncode, "cannot write" in done.stderr) == (2, True), done.stderr


@pytest.mark.browser
def test_a_browser_shows_the_page_of_a_real_run(titanrun: Run, tmp_path: Path) -> None:
    small = (
        "model.n_layers=1",
        "model.dim=64",
        "model.n_heads=4",
        "training.seq_len=32",
        "training.steps=12",
        "metrics.log_freq=1",
    )
    done = titanrun("train", DEBUG, *small, "dump_folder=run")
    assert done.returncode == 0, done.stderr
    assert titanrun("report", "run", "-o", "run.html").returncode == 0
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, (
        "this test needs a browser: apt-get install -y --no-install-recommends chromium"
    )
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/browser",
        "--window-size=1200,1400",
    ]
    seen = subprocess.run(
        [*command, "--dump-dom", f"file://{tmp_path}/run.html"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Problems met" in seen.stdout and "step-12" in seen.stdout
    subprocess.run(
        [*command, f"--screenshot={tmp_path}/run.png", f"file://{tmp_path}/run.html"],
        capture_output=True,
        check=True,
    )
    with Image.open(tmp_path / "run.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(maxcolors=1 << 20)}
    # the first two curves are drawn
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours
