"""Forks beside the runs that they began from."""

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from titanrun.cli.plot import run as plot
from titanrun.cli.runs import run as runs
from titanrun.components.metrics.spec.metrics_file import MetricsFile
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.runs.metric_series import load_x_position

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")


def make_run(
    folder: Path, losses: list[float], *, parent: tuple[Path, int] | None = None, tokens: int = 10
) -> Path:
    """Write a run directory with a loss for each step, of some tokens and 0.5 s."""
    folder.mkdir()
    file = MetricsFile(folder / "metrics.jsonl")
    for step, loss in enumerate(losses, start=1):
        file.write(step, {"loss": loss, "tokens_seen": tokens * step, "time/step_seconds": 0.5})
    file.close()
    checkpoint = None if parent is None else parent[0] / "checkpoint" / f"step-{parent[1]}"
    overrides = [] if checkpoint is None else [f"checkpoint.initial_load_path={checkpoint}"]
    text = resolve_recipe(DEBUG, overrides, environment={}).text
    (folder / "resolved.yaml").write_text(text)
    record = None if parent is None else {"checkpoint": str(checkpoint), "step": parent[1]}
    start = {"at": "2026-11-22T10:00:00+00:00"}
    (folder / "run.json").write_text(json.dumps({"parent": record, "starts": [start]}))
    (folder / "status.json").write_text(json.dumps({"state": "finished", "step": len(losses)}))
    return folder


@pytest.fixture
def family(tmp_path: Path) -> dict[str, Path]:
    """A run of 6 steps, a fork of 4 steps from its step 4, a fork of that from its step 3, and a
    stranger."""
    first = make_run(tmp_path / "first", [9, 8, 7, 6, 5, 4])
    fork = make_run(tmp_path / "fork", [5.5, 4.5, 3.5, 2.5], parent=(first, 4), tokens=100)
    second = make_run(tmp_path / "second", [3, 2, 1], parent=(fork, 3))
    return {
        "first": first,
        "fork": fork,
        "second": second,
        "other": make_run(tmp_path / "other", [9, 9]),
    }


def compared(capsys: pytest.CaptureFixture[str], *folders: Path) -> dict[str, list[object]]:
    capsys.readouterr()
    assert runs(["compare", *map(str, folders), "--format", "json"]) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    return {row["name"]: list(row["values"].values()) for row in rows}


def test_compare_holds_a_fork_against_the_same_step_of_its_parent(
    family: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Row A19: step 4 of a fork that began at 4 was compared with step 4 of its parent."""
    found = compared(capsys, family["first"], family["fork"])
    assert found["step"] == [6, 8]
    assert found["loss at step 6"] == [4, 4.5]
    assert found["began at"] == [None, f"step 4 of {family['first']}"]
    found = compared(capsys, family["second"], family["first"], family["fork"])
    assert found["step"] == [10, 6, 8]
    assert found["began at"][0] == f"step 7 of {family['fork']}"
    assert "loss at step 6" not in found


def test_runs_are_aligned_as_asked(
    family: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, fork = family["first"], family["fork"]

    def align(*words: str) -> tuple[str, dict[str, list[object]]]:
        assert runs(["compare", str(first), str(fork), *words]) == 0
        head = capsys.readouterr().out.splitlines()[0]
        assert runs(["compare", str(first), str(fork), *words, "--format", "json"]) == 0
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return head, {row["name"]: list(row["values"].values()) for row in rows}

    head, found = align()
    assert head.startswith("aligned by lineage") and found["loss at step 6"] == [4, 4.5]
    head, found = align("--align", "step")
    assert head.startswith("aligned by step") and found["loss at step 4"] == [6, 2.5]
    assert "began at" not in found
    # a step of the fork has 100 tokens, of its parent 10
    head, found = align("--align", "tokens")
    assert head.startswith("aligned by tokens")
    assert found["loss in common"] == ["no common tokens", None]


def test_no_steps_are_paired_that_are_not_the_same(
    family: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    late = make_run(tmp_path / "late", [3.0, 2.0], parent=(family["first"], 6))
    assert compared(capsys, family["first"], late)["loss in common"] == ["no common steps", None]


@pytest.mark.parametrize(("words", "ends"), [([], [6.0, 8.0]), (["--align", "step"], [6.0, 4.0])])
def test_a_plot_is_aligned_as_asked(
    words: list[str],
    ends: list[float],
    family: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plot([str(family["first"]), str(family["fork"]), *words]) == 0
    out = capsys.readouterr().out
    assert ("aligned by lineage" in out.splitlines()[0]) == (not words)
    said = [float(line.rpartition("at step ")[2]) for line in out.splitlines()[-2:]]
    assert said == ends


def test_siblings_of_a_run_that_is_not_compared_go_on_too(
    family: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sibling = make_run(tmp_path / "sibling", [5.2, 4.2], parent=(family["first"], 2))
    found = compared(capsys, family["fork"], sibling)
    assert found["step"] == [8, 4] and "loss at step 4" not in found


def test_a_fork_without_relatives_keeps_its_own_steps(
    family: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, family["fork"], family["other"])
    assert found["step"] == [4, 2] and "began at" not in found
    assert found["loss at step 2"] == [4.5, 9]


def plotted(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the legend of a plot, below its axis."""
    capsys.readouterr()
    assert plot(list(words)) == 0
    return capsys.readouterr().out.splitlines()[-(len(words) - 2 * ("--x" in words)) :]


def test_a_plot_draws_a_fork_from_where_it_began_with_a_mark(
    family: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Row A19: the picture drew it from 0."""
    first, fork = str(family["first"]), str(family["fork"])
    legend = plotted(tmp_path, capsys, first, fork)
    assert legend == [
        f"a  {first}: 4 at step 6",
        f"b  {fork} (from step 4 of {first}): 2.5 at step 8",
    ]
    for x, end in (("tokens", "2.5 at tokens 440"), ("time", "2.5 at seconds of training 4")):
        assert plotted(tmp_path, capsys, first, fork, "--x", x)[1].endswith(f": {end}")
    file = tmp_path / "losses.svg"
    assert plot([first, fork, "--out", str(file)]) == 0
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(file).getroot()
    (mark,) = root.iter(f"{svg}circle")
    lines = [line.attrib["points"].split() for line in root.iter(f"{svg}polyline")]
    # the fork's first step is the fifth of its parent
    x = lines[1][0].partition(",")[0]
    assert mark.attrib["cx"] == x == lines[0][4].partition(",")[0]
    assert plot([first, fork, "--out", str(tmp_path / "losses.png")]) == 0
    capsys.readouterr()
    assert plot([first, fork]) == 0
    assert capsys.readouterr().out.count("○") == 1
    assert plot([fork]) == 0
    assert "○" not in capsys.readouterr().out


def test_a_step_that_is_not_logged_has_a_position_too(family: dict[str, Path]) -> None:
    metrics = family["first"] / "metrics.jsonl"
    assert load_x_position(metrics, 9, "tokens") == 90
    assert math.isclose(load_x_position(metrics, 9, "time"), 4.5)
