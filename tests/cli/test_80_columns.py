"""Output on a terminal of 80 columns: nothing wider, nothing broken inside a word, and colors.

Row C15 of the defect list.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.cli.doctor import DoctorFinding, format_conclusion
from titanrun.cli.plan import VERDICT_PATTERN
from titanrun.cli.text_table import drop_columns, format_text_table

ROOT = Path(__file__).parents[2]
DEBUG = "recipes/llama3_debug.yaml"
TORCHTITAN = ROOT / "tests" / "recipe" / "migrate" / "torchtitan" / "vlm_debug.toml"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
START = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
Show = Callable[..., str]


def read_lines(shown: str) -> list[str]:
    lines = COLOR.sub("", shown).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    return lines


def write_run(folder: Path, *, state: str) -> None:
    """A run directory as `runs ls` reads it."""
    folder.mkdir(parents=True)
    start = {"time": "2026-11-22T16:09:30+00:00", "argv": ["titanrun"]}
    (folder / "run.json").write_text(json.dumps({"format": 1, "name": "a", "starts": [start]}))
    (folder / "status.json").write_text(json.dumps({"state": state, "step": 1200}))
    (folder / "resolved.yaml").write_text(START)
    (folder / "metrics.jsonl").write_text('{"step": 1200, "loss": 1.0, "tps": 1234.0}\n')


def test_show_takes_one_line_for_each_value(on_terminal: Show) -> None:
    shown = on_terminal("show", DEBUG, "--sources", "optimizer.lr=3e-3", cwd=ROOT)
    lines = read_lines(shown)
    values = len(json.loads(on_terminal("show", DEBUG, "--json", "training.steps", cwd=ROOT)) * [1])
    assert values == 80
    assert all(re.match(r"[a-z_]+[a-z_0-9.\[\]]*  +\S", line) for line in lines)
    assert "optimizer.lr " in shown and f"<override 1>  (over {DEBUG}:17:7)" in shown


def test_the_report_of_migrate_fits(on_terminal: Show, tmp_path: Path) -> None:
    shutil.copy(TORCHTITAN, tmp_path / "run.toml")
    shown = on_terminal("migrate", "--from", "torchtitan", "run.toml", "-o", "run.yaml")
    lines = read_lines(shown)
    assert "        is an error" in lines
    assert "\x1b[1;31merror" in shown


def test_differences_are_colored_on_a_terminal_only(on_terminal: Show) -> None:
    words = ("diff-config", DEBUG, "recipes/llama3_8b.yaml")
    shown = on_terminal(*words, cwd=ROOT)
    read_lines(shown)
    assert "\x1b[1mmodel.n_layers\x1b[0m" in shown
    assert re.search(r"\x1b\[31m.*6.*\x1b\[0m -> \x1b\[32m32", shown)
    assert "\x1b" not in on_terminal(*words, cwd=ROOT, NO_COLOR="1")


def test_a_valid_recipe_is_green(on_terminal: Show) -> None:
    assert f"{DEBUG}: \x1b[32mok\x1b[0m\n" in on_terminal("validate", DEBUG, cwd=ROOT)
    assert f"{DEBUG}: ok\n" in on_terminal("validate", DEBUG, cwd=ROOT, NO_COLOR="1")


def test_runs_show_the_columns_that_fit(on_terminal: Show, tmp_path: Path) -> None:
    for name, state in (("a-long-name-20261122-160930", "finished"), ("b", "failed")):
        write_run(tmp_path / "runs" / name, state=state)
    shown = on_terminal("runs", "ls")
    lines = read_lines(shown)
    assert lines[0].split()[:5] == ["run", "state", "step", "last", "loss"]
    assert "\x1b[32mfinished\x1b[0m" in shown and "\x1b[1;31mfailed" in shown
    assert "1,200" in shown
    narrow = on_terminal("runs", "ls", columns=60)
    assert "started need a wider terminal or --format csv" in " ".join(narrow.split())
    assert "commit" in on_terminal("runs", "ls", columns=200)


def test_columns_that_do_not_fit_follow_below() -> None:
    rows = [("", "one", "two", "three"), ("loss", "1" * 9, "2" * 9, "3" * 9)]
    tables = format_text_table(rows, width=30).split("\n\n")
    assert [table.split()[-1][0] for table in tables] == ["2", "3"]
    assert all(table.splitlines()[1].startswith("loss") for table in tables)
    assert format_text_table(rows).count("loss") == 1


def test_empty_columns_are_dropped_first() -> None:
    rows = [("run", "commit", "tags", "state"), ("r" * 20, "", "t" * 20, "ok")]
    kept, hidden = drop_columns(rows, 52, droppable=(2,))
    assert (kept[0], hidden) == (["run", "tags", "state"], [])
    kept, hidden = drop_columns(rows, 40, droppable=(2,))
    assert (kept[0], hidden) == (["run", "state"], ["tags"])


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (
            [DoctorFinding("training", "works")],
            "ready: titanrun trains on this machine, on the CPU",
        ),
        (
            [DoctorFinding("accelerator", "", device="H200"), DoctorFinding("training", "works")],
            "ready: titanrun trains on this machine, on H200",
        ),
        ([DoctorFinding("disk", "full", wrong=True)], "not ready: 1 problem, marked WRONG above"),
        ([DoctorFinding("disk", "")], "no problems found; without --no-training, doctor also"),
    ],
    ids=["cpu", "gpu", "wrong", "untried"],
)
def test_doctor_ends_with_a_verdict(findings: list[DoctorFinding], verdict: str) -> None:
    assert format_conclusion(findings).startswith(verdict)


def test_the_verdict_of_a_plan_is_found() -> None:
    text = "  total  88.42 GiB   of 78.00 GiB: does not fit\nwarning: does not fit: 88.4 GiB\n"
    assert VERDICT_PATTERN.findall(text) == ["does not fit", "warning:"]
    assert VERDICT_PATTERN.findall("of 78.00 GiB: fits\n") == ["fits"]
