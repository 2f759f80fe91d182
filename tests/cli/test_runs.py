"""`titanrun runs`: what the files of runs say, which runs are listed, and that nothing that is
alive is removed."""

import csv
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from titanrun.cli.runs import run as runs
from titanrun.cli.runs_compare import format_comparison_table
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_files import read_boot_id
from titanrun.recipe.rundir.run_metadata import record_decisions
from titanrun.runs.metric_series import load_metric_series
from titanrun.runs.run_comparison import ComparisonRow
from titanrun.runs.run_index import INDEX, load_run_summaries
from titanrun.runs.run_state import STALE_SECONDS, HostInfo, get_run_state
from titanrun.runs.run_summary import load_run_summary

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
STARTED = "2026-11-21T10:00:00+00:00"
STARTED_SECONDS = 1795255200.0
GIT = {"commit": "0123456789abcdef", "dirty": True, "diff": "git-1.diff"}


def make_run(
    folder: Path,
    *,
    losses: tuple[float, ...] = (3.0, 2.0),
    overrides: tuple[str, ...] = (),
    **status: object,
) -> Path:
    """A run directory as a run of `len(losses)` steps leaves it on another machine, finished unless
    `status` says otherwise."""
    folder.mkdir(parents=True)
    environment = {
        "git": GIT,
        "packages": {"torch": "2.13.0"},
        "code": "c" * 32,
        "python": "3.11.2",
        "platform": "p",
        "host": "h",
    }
    start = {
        "time": STARTED,
        "argv": ["titanrun", "train"],
        "environment": environment,
        "decided": {"steps": 2},
    }
    (folder / "run.json").write_text(
        json.dumps({"format": 1, "name": folder.name, "starts": [start]})
    )
    about = {
        "state": "finished",
        "step": len(losses),
        "pid": 1,
        "host": "elsewhere",
        "boot_id": "b",
        "heartbeat": STARTED_SECONDS + 90,
    }
    (folder / "status.json").write_text(json.dumps({**about, **status}))
    lines = [
        {"step": step, "loss": loss, "tps": 100.0, "validation/loss": loss + 1}
        for step, loss in enumerate(losses, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "resolved.yaml").write_text(
        resolve_recipe(DEBUG, list(overrides), environment={}).text
    )
    return folder


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    """What `runs ls` answers, as data."""
    assert runs(["ls", "--format", "json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_entry_says_what_the_files_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "sweep" / "a", losses=(3.0, 1.5, 2.0))
    (found,) = listed(capsys, str(tmp_path))
    assert found["run"] == str(tmp_path / "sweep" / "a")
    assert {
        key: found[key]
        for key in (
            "name",
            "state",
            "step",
            "steps",
            "loss",
            "validation",
            "tps",
            "seconds",
            "started",
            "dirty",
        )
    } == {
        "name": "a",
        "state": "finished",
        "step": 3,
        "steps": 2,
        "loss": 2.0,
        "validation": 2.5,
        "tps": 100.0,
        "seconds": 90.0,
        "started": STARTED,
        "dirty": True,
    }


def test_the_duration_is_the_time_of_all_starts_without_the_pauses(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", heartbeat=STARTED_SECONDS + 5000)
    record = json.loads((run / "run.json").read_text())

    def add_start(place: str, seconds: int, **about: object) -> float | None:
        time = datetime.fromtimestamp(STARTED_SECONDS + seconds, tz=UTC).isoformat()
        record[place] = [*record.get(place, []), {"time": time, **about}]
        (run / "run.json").write_text(json.dumps(record))
        return load_run_summary(run).seconds

    # alive for 60 s, then from 4000 s to the heartbeat at 5000 s
    assert add_start("starts", 4000, previous_heartbeat=STARTED_SECONDS + 60) == 1060
    # a start that was undone has only a heartbeat of its own
    last = STARTED_SECONDS + 4100
    assert add_start("refused_starts", 4900, previous_heartbeat=last) == 160
    # of an earlier version, which recorded no end
    del record["starts"][1]["previous_heartbeat"]
    assert add_start("starts", 4990, previous_heartbeat=STARTED_SECONDS + 4910) == 4110


def test_the_table_says_which_losses_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", losses=(3.0, 1.5, 2.0))
    assert runs(["ls", str(tmp_path)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    ends = [head.index(title) + len(title) for title in ("last loss", "best val")]
    assert [line[:end].split()[-1] for end in ends] == ["2.00000", "2.50000"]


def test_metrics_cut_short_by_a_crash_are_read_up_to_the_cut(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", losses=(3.0, 2.5))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss": 2.25}\n{"step": 3, "loss": 1.2')
    assert (load_run_summary(run).loss, load_run_summary(run).validation) == (2.25, 3.5)
    found = load_metric_series(run / "metrics.jsonl", "loss", "step")
    assert (found.x, found.y) == ([1.0, 2.0], [3.0, 2.25])


def test_runs_without_metrics_or_with_torn_files_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").unlink()
    (run / "status.json").write_text('{"state": "fin')
    (found,) = listed(capsys, str(tmp_path))
    assert (found["state"], found["loss"], found["step"]) == ("unknown", None, 0)
    assert runs(["ls", str(tmp_path)]) == 0
    assert "unknown" in capsys.readouterr().out


def test_a_number_that_is_none_is_text_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": "nan", "validation/loss": "inf"}\n')
    (found,) = listed(capsys, str(tmp_path), "--sort", "loss")
    assert (found["loss"], found["validation"]) == ("nan", None)


def test_the_index_is_a_cache_that_sees_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    before = load_run_summaries(tmp_path)
    assert [entry.run for entry in before] == [str(a), str(b)]
    index = json.loads((tmp_path / INDEX).read_text())
    # what stands in the index is believed while the files are as they were
    index["runs"]["a"][1][index["fields"].index("loss") - 2] = 77.0
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert [entry.loss for entry in load_run_summaries(tmp_path)] == [77.0, 2.0]
    monkeypatch.chdir(tmp_path)
    assert [entry.loss for entry in load_run_summaries(Path())] == [77.0, 2.0]
    with (a / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1.0}\n')
    make_run(tmp_path / "c")
    for file in b.iterdir():
        file.unlink()
    assert [(Path(entry.run).name, entry.loss) for entry in load_run_summaries(tmp_path)] == [
        ("a", 1.0),
        ("c", 2.0),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"fields": [0], "runs": {"a": 1}}', '{"runs": {"a": [1, 2]}}']
)
def test_an_index_that_is_damaged_or_of_before_is_made_anew(text: str, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    first = load_run_summaries(tmp_path)
    whole = (tmp_path / INDEX).read_text()
    (tmp_path / INDEX).write_text(text)
    assert load_run_summaries(tmp_path) == first
    assert (tmp_path / INDEX).read_text() == whole


def test_who_is_alive_holds_the_lock_or_is_starting(tmp_path: Path) -> None:
    here = HostInfo(socket.gethostname(), read_boot_id(), 1000.0)
    run = make_run(
        tmp_path / "a",
        state="running",
        host=here.host,
        boot_id=here.boot_id,
        pid=os.getpid(),
        heartbeat=1.0,
    )
    assert get_run_state(load_run_summary(run), here) == "crashed"
    with (run / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert get_run_state(load_run_summary(run), here) == "running"
        assert (
            get_run_state(load_run_summary(run), HostInfo(here.host, "another boot", 0.0))
            == "crashed"
        )
    starting = make_run(
        tmp_path / "b", state="starting", host=here.host, boot_id=here.boot_id, pid=os.getpid()
    )
    assert get_run_state(load_run_summary(starting), here) == "starting"


def test_a_run_on_another_machine_is_stale_when_it_is_silent(tmp_path: Path) -> None:
    entry = load_run_summary(make_run(tmp_path / "a", state="running", heartbeat=1000.0))
    assert get_run_state(entry, HostInfo("here", None, 1000.0 + STALE_SECONDS)) == "running"
    assert get_run_state(entry, HostInfo("here", None, 1001.0 + STALE_SECONDS)) == "stale"


def test_runs_are_filtered_and_sorted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, loss in (("a", 2.0), ("b", 3.0), ("c", 1.0)):
        make_run(tmp_path / name, losses=(loss,), state="failed" if name == "b" else "finished")
    assert runs(["tag", str(tmp_path / "a"), "paper", "x1"]) == 0
    (tmp_path / "c" / "metrics.jsonl").unlink()
    capsys.readouterr()

    def names(*words: str) -> str:
        return "".join(
            Path(str(found["run"])).name for found in listed(capsys, str(tmp_path), *words)
        )

    assert names("--sort", "loss") == "abc"
    assert names("--sort", "loss", "--reverse") == "bac"
    assert names("--sort", "loss", "--reverse", "--limit", "1") == "b"
    assert names("--state", "failed", "--state", "crashed") == "b"
    assert names("--tag", "paper", "--tag", "x1") == "a"
    assert names("--tag", "paper", "--tag", "x2") == ""
    assert names("--where", "loss<=2", "--where", "step==1") == "a"
    assert runs(["ls", str(tmp_path), "--format", "csv"]) == 0
    assert [row["tags"] for row in csv.DictReader(capsys.readouterr().out.splitlines())] == [
        "paper x1",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "nowhere"], "folder not found: 'nowhere'"),
        (["ls", "--where", "los<3", "."], "runs have no numeric field 'los'"),
        (["ls", "--where", "loss", "."], "'loss' is not a condition"),
        (["ls", "--where", "loss<a", "."], "'a' in 'loss<a' is not a number"),
        (["ls", "--limit", "0", "."], "--limit 0 is below 1"),
        (["lst"], "unknown subcommand of titanrun runs: 'lst'"),
        (["show", "nowhere"], "no run in runs/ has the name 'nowhere'"),
        (["show", "a/logs"], "'a/logs' is not a run directory"),
        (["show", "."], "'.' is a folder of 1 run, not one of them"),
        (["show", "a", "--plot"], "titanrun runs show plots nothing"),
        (["compare", "a"], "at least two runs are required"),
        (["tag", "a", "two words"], "'two words' is not a valid tag"),
        (["tag", "a", "x", "--remove"], "'a' has no tag 'x'"),
    ],
    ids=str,
)
def test_a_mistake_is_a_problem(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a")
    (tmp_path / "a" / "logs").mkdir(exist_ok=True)
    with pytest.raises(ProblemsFound) as caught:
        runs(words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"total": 598343680, "trainable": 2293760}, "598,343,680, of which 2,293,760 are trained"),
        ({"total": 1210, "trainable": 1210}, "1,210, all trained"),
        (None, None),
    ],
)
def test_a_run_says_how_many_parameters_it_trains(
    counts: dict[str, int] | None,
    text: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make_run(tmp_path / "a")
    record_decisions(run, {"steps": 2}, {}, counts)
    assert runs(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert text in " ".join(shown.split()) if text else "parameters" not in shown
    assert runs(["show", str(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == counts


def test_tags_are_added_once_and_taken_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(make_run(tmp_path / "a"))
    for words in (["x", "y"], ["y", "z"], ["x", "--remove"], []):
        capsys.readouterr()
        assert runs(["tag", run, *words]) == 0
    assert capsys.readouterr().out.split() == ["y", "z"]


def test_compare_names_the_numbers_and_what_differs_numerics_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = make_run(tmp_path / "a", losses=(3.0, 2.0))
    b = make_run(
        tmp_path / "b",
        losses=(2.5,),
        overrides=("metrics.log_freq=7", "optimizer.lr=0.5", "compile.enable=true"),
    )
    assert runs(["compare", str(a), str(b), "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = {row["name"]: (row["group"], list(row["values"].values())) for row in found}
    assert rows["loss"] == ("outcome", [2.0, 2.5])
    assert rows["loss at step 1"] == ("outcome", [3.0, 2.5])
    assert rows["optimizer.lr"] == ("numerics", [0.002, 0.5])
    assert rows["metrics.log_freq"][0] == "bookkeeping"
    groups = list(dict.fromkeys(row["group"] for row in found))
    assert groups == ["outcome", "numerics", "performance", "bookkeeping"]
    assert runs(["compare", str(a), str(b)]) == 0
    assert "  optimizer.lr" in capsys.readouterr().out


def test_diff_tells_recipe_and_surroundings_by_its_exit_code_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = (
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b"),
        make_run(tmp_path / "c", overrides=("optimizer.lr=0.5",)),
    )
    assert runs(["diff", str(a), str(b)]) == 0
    record = json.loads((b / "run.json").read_text())
    record["starts"][0]["environment"]["packages"]["torch"] = "2.12.0"
    (b / "run.json").write_text(json.dumps(record))
    assert runs(["diff", str(a), str(b)]) == 1
    assert capsys.readouterr().out == "package torch: 2.13.0 -> 2.12.0\n"
    assert runs(["diff", str(a), str(c)]) == 1
    assert "optimizer.lr" in capsys.readouterr().out


def test_a_run_that_ctrl_c_stopped_is_interrupted_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", state="preempted", signal="SIGINT")
    make_run(tmp_path / "b", state="preempted", signal="SIGTERM")
    assert runs(["ls", str(tmp_path)]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows] == ["interrupted", "preempted"]
    # the state is the same for programs
    assert {entry["state"] for entry in listed(capsys, str(tmp_path))} == {"preempted"}
    assert len(listed(capsys, str(tmp_path), "--state", "preempted")) == 2


def test_rm_removes_on_yes_only_and_nothing_that_may_be_alive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", state="running", heartbeat=time.time()),
    )
    assert runs(["rm", str(a)]) == 0
    assert "nothing was removed" in capsys.readouterr().err
    with pytest.raises(ProblemsFound, match="is running") as found:
        runs(["rm", str(a), str(b), "--yes"])
    assert found.value.problems[0].hint == f"stop it first: titanrun stop {b} --wait"
    assert a.is_dir()
    assert runs(["rm", str(a), "--yes"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_an_archived_run_is_out_of_sight_until_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "sweep" / "a")
    make_run(tmp_path / "b")
    alive = make_run(tmp_path / "c", state="running", heartbeat=time.time())
    with pytest.raises(ProblemsFound, match="is running"):
        runs(["archive", str(tmp_path / "b"), str(alive)])
    assert runs(["archive", str(tmp_path / "sweep" / "a"), str(tmp_path / "b")]) == 0
    archived = [tmp_path / "sweep" / ".archive" / "a", tmp_path / ".archive" / "b"]
    assert capsys.readouterr().out == "".join(f"{path}\n" for path in archived)
    assert [entry["name"] for entry in listed(capsys, str(tmp_path))] == ["c"]
    assert {entry["run"] for entry in listed(capsys, str(tmp_path), "--archived")} == set(
        map(str, archived)
    )
    make_run(tmp_path / "b")
    for words, said in (
        ([str(archived[1]), "--restore"], "exists and is never overwritten"),
        ([str(archived[0])], "is in the archive"),
    ):
        with pytest.raises(ProblemsFound, match=said):
            runs(["archive", *words])
    with pytest.raises(ProblemsFound, match="is not in the archive"):
        runs(["archive", str(tmp_path / "b"), "--restore"])
    assert runs(["archive", str(archived[0]), "--restore"]) == 0
    assert (tmp_path / "sweep" / "a" / "run.json").is_file() and not archived[0].exists()


def test_listing_imports_no_recipe(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    code = (
        "import sys; from titanrun.runs.run_index import load_run_summaries; from pathlib "
        "import Path\n"
        "load_run_summaries(Path('.')); print([name for name in ('torch', 'pydantic', 'ruamel') if "
        "name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "[]\n"


def test_a_compared_setting_is_shown_with_all_its_digits() -> None:
    found = [
        ComparisonRow("outcome", "loss", (2.123456789, None)),
        ComparisonRow("numerics", "optimizer.beta2", (0.99999999, 1e-10)),
    ]
    lines = format_comparison_table(["a", "b"], found, head="by step").splitlines()
    assert [line.split()[1:] for line in (lines[2], lines[4])] == [
        ["2.12346", "-"],
        ["0.99999999", "1e-10"],
    ]
