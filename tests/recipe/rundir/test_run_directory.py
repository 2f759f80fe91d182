import fcntl
import json
import os
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest

from titanrun.cli.train import format_progress
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.comparing.resume_policy import format_resume_change
from titanrun.recipe.dump_folder import find_dump_folder_problems
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_directory import (
    check_last_checkpoint,
    select_run_directory,
    write_run_directory,
)
from titanrun.recipe.rundir.run_files import read_json_or_empty, write_indented_json
from titanrun.recipe.rundir.run_metadata import record_decisions
from titanrun.recipe.schemas.output_schemas import build_status_schema

NOW = datetime(2026, 11, 21, 3, 0, 0)
RECIPE = """
version: 1
name: my run
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64, steps: 20}
checkpoint: {enable: true}
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")


def resolved(*overrides: str) -> Resolved:
    return resolve_recipe("recipe.yaml", overrides, environment={})


def begin(*overrides: str, state: str = "preempted", step: int = 5, saved: int | None = 5) -> Path:
    run = resolved(*overrides)
    directory = select_run_directory(run, NOW)
    write_run_directory(directory, run, ["titanrun", "train"], NOW, environment={})
    if saved is not None:
        checkpoint = directory.path / "checkpoint" / f"step-{saved}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}", encoding="utf-8")
    write_indented_json(directory.path / "status.json", {"state": state, "step": step})
    return directory.path


def test_a_run_without_a_folder_gets_one_of_its_own() -> None:
    assert [begin(), begin()] == [
        Path("runs/my-run-20261121-030000"),
        Path("runs/my-run-20261121-030000-2"),
    ]


def test_the_resolved_recipe_does_not_know_its_folder() -> None:
    path = begin("dump_folder=out")
    assert "dump_folder: null" in (path / "resolved.yaml").read_text(encoding="utf-8")
    assert select_run_directory(
        resolve_recipe(str(path / "resolved.yaml"), environment={}), NOW
    ).path.parent == Path("runs")


def test_every_value_has_its_source() -> None:
    path = begin("dump_folder=out", "training.steps=30")
    report = json.loads((path / "resolved.sources.json").read_text(encoding="utf-8"))
    assert report["values"]["training.steps"] == {
        "source": "override",
        "file": "<override 2>",
        "line": 1,
        "column": 16,
        "shadowed": ["recipe.yaml:5:47"],
    }
    assert report["values"]["training.seq_len"] == {
        "source": "file",
        "file": "recipe.yaml",
        "line": 5,
        "column": 36,
    }
    assert report["values"]["model.dim"] == {"source": "decided"}
    assert report["values"]["optimizer.lr"] == {"source": "default"}
    assert list(report["files"]) == ["recipe.yaml"]


def test_an_unfinished_run_goes_on() -> None:
    begin("dump_folder=out")
    directory = select_run_directory(resolved("dump_folder=out"), NOW)
    assert (directory.state, directory.resume_changes.all_changes) == ("unfinished", ())


def test_a_finished_run_has_nothing_to_do_until_it_gets_more_steps() -> None:
    begin("dump_folder=out", state="finished", step=20)
    done = select_run_directory(resolved("dump_folder=out"), NOW)
    assert (done.state, done.completed_step) == ("finished", 20)
    longer = select_run_directory(resolved("dump_folder=out", "training.steps=40"), NOW)
    assert longer.state == "unfinished"
    assert [format_resume_change(change) for change in longer.resume_changes.all_changes] == [
        "lr_scheduler.warmup_steps 2 -> 4",
        "lr_scheduler.total_steps 20 -> 40",
        "training.steps 20 -> 40",
    ]


def test_a_run_that_finished_early_is_said_to_have_had_no_more_data() -> None:
    begin("dump_folder=out", state="finished", step=7)
    asked = resolved("dump_folder=out")
    short = format_progress(select_run_directory(asked, NOW), asked.run)
    assert short == "step 7 of 20, where its data ran out,"
    begin("dump_folder=whole", state="finished", step=20)
    asked = resolved("dump_folder=whole")
    assert format_progress(select_run_directory(asked, NOW), asked.run) == "step 20 of 20"


def test_a_finished_run_goes_on_from_an_earlier_step_when_that_is_asked_for() -> None:
    begin("dump_folder=out", state="finished", step=20, saved=20)
    back = select_run_directory(resolved("dump_folder=out", "checkpoint.load_step=5"), NOW)
    assert (
        back.state,
        [format_resume_change(change) for change in back.resume_changes.all_changes],
    ) == (
        "unfinished",
        ["checkpoint.load_step null -> 5"],
    )
    assert (
        select_run_directory(resolved("dump_folder=out", "checkpoint.load_step=20"), NOW).state
        == "finished"
    )


def test_the_same_command_does_not_go_back_a_second_time() -> None:
    begin("dump_folder=out", "checkpoint.load_step=5", state="finished", step=20, saved=20)
    assert (
        select_run_directory(resolved("dump_folder=out", "checkpoint.load_step=5"), NOW).state
        == "finished"
    )


def test_a_finished_run_of_epochs_has_nothing_to_do_until_it_gets_more() -> None:
    begin("dump_folder=out", "training.epochs=3", state="finished", step=20)
    assert (
        select_run_directory(resolved("dump_folder=out", "training.epochs=3"), NOW).state
        == "finished"
    )
    assert (
        select_run_directory(resolved("dump_folder=out", "training.epochs=2"), NOW).state
        == "finished"
    )
    longer = select_run_directory(resolved("dump_folder=out", "training.epochs=4"), NOW)
    assert (
        longer.state,
        [format_resume_change(change) for change in longer.resume_changes.all_changes],
    ) == (
        "unfinished",
        ["training.epochs 3 -> 4"],
    )
    # how many steps 3 epochs were is the worker's to say
    assert (
        select_run_directory(resolved("dump_folder=out", "training.steps=40"), NOW).state
        == "unfinished"
    )


def test_fewer_tokens_than_trained_are_refused_at_their_place() -> None:
    begin("dump_folder=out", "training.tokens=10240")
    with pytest.raises(ProblemsFound) as caught:
        select_run_directory(resolved("dump_folder=out", "training.tokens=1K"), NOW)
    (problem,) = caught.value.problems
    assert problem.label == "conflict/steps-already-done"
    assert [(str(item.origin), item.message) for item in problem.related] == [
        ("<override 2>", "training.tokens is '1K'")
    ]


@pytest.mark.parametrize(
    "allowed", ["metrics.log_freq=1", "checkpoint.interval=7", "metrics.trackers=[tensorboard]"]
)
def test_a_resume_allows_bookkeeping(allowed: str) -> None:
    begin("dump_folder=out")
    assert select_run_directory(resolved("dump_folder=out", allowed), NOW).state == "unfinished"


def test_another_recipe_in_the_same_folder_is_refused_with_every_difference() -> None:
    path = begin("dump_folder=out")
    before = (path / "resolved.yaml").read_bytes()
    with pytest.raises(ProblemsFound) as caught:
        select_run_directory(
            resolved("dump_folder=out", "optimizer.lr=0.5", "debug.seed=3", "training.steps=40"),
            NOW,
        )
    (problem,) = caught.value.problems
    assert problem.label == "conflict/another-run"
    assert {related.message for related in problem.related} == {
        "optimizer.lr 0.0008 -> 0.5",
        "debug.seed 0 -> 3",
    }
    assert str(problem.origin) == "<override 1>"
    assert (path / "resolved.yaml").read_bytes() == before


def test_a_run_that_failed_before_its_first_step_leaves_its_folder_to_another_recipe() -> None:
    path = begin("dump_folder=out", "name=first", state="failed", step=0, saved=None)
    # opened before the first step
    (path / "metrics.jsonl").touch()
    again = resolved("dump_folder=out", "optimizer.lr=0.5", "name=second")
    directory = select_run_directory(again, NOW)
    assert directory.state == "new" and directory.path == path
    write_run_directory(directory, again, ["titanrun", "train"], NOW, environment={})
    record = json.loads((path / "run.json").read_text())
    assert record["name"] == "second"
    assert (len(record["starts"]), len(record["refused_starts"])) == (1, 1)


def test_a_moved_folder_of_stages_holds_the_same_runs() -> None:
    start = "checkpoint.initial_load_path={}/first"
    begin("dump_folder=whole/second", start.format("before"))
    elsewhere = resolved("dump_folder=whole/second", start.format("whole"))
    with pytest.raises(ProblemsFound, match="another recipe: 1 value differs"):
        select_run_directory(elsewhere, NOW)
    Path("whole/stages.yaml").write_text(
        "version: 1\nstages:\n  - id: first\n  - id: second\n", encoding="utf-8"
    )
    assert select_run_directory(elsewhere, NOW).state == "unfinished"
    # another start than the stage of this name
    other = resolved("dump_folder=whole/second", start.format("other"))
    with pytest.raises(ProblemsFound, match="another recipe: 1 value differs"):
        select_run_directory(other, NOW)


@pytest.mark.parametrize("trace", ["a logged step", "a step", "a checkpoint", "an end"])
def test_a_run_that_has_begun_keeps_its_folder(trace: str) -> None:
    path = begin(
        "dump_folder=out",
        state="finished" if trace == "an end" else "failed",
        step=3 if trace == "a step" else 0,
        saved=0 if trace == "a checkpoint" else None,
    )
    if trace == "a logged step":
        (path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(ProblemsFound, match="another recipe: 1 value differs"):
        select_run_directory(resolved("dump_folder=out", "optimizer.lr=0.5"), NOW)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ("lr_scheduler.decay_type=cosine", True),
        ("activation_checkpoint=full", True),
        ("checkpoint.keep_latest_k=1", False),
        ("validation.freq=3", False),
    ],
)
def test_schedule_and_speed_are_reported_and_bookkeeping_goes_on(
    change: str, reported: bool
) -> None:
    begin("dump_folder=out")
    directory = select_run_directory(resolved("dump_folder=out", change), NOW)
    assert directory.state == "unfinished"
    assert bool(directory.resume_changes.reported_changes) == reported
    assert len(directory.resume_changes.all_changes) == 1


@pytest.mark.parametrize(
    "change",
    [
        "model.n_layers=2",
        "debug.seed=1",
        "optimizer.lr=1.0",
        "training.global_batch_size=16",
        "optimizer.weight_decay=0",
    ],
)
def test_what_moves_the_loss_goes_on_only_when_it_is_named(change: str) -> None:
    begin("dump_folder=out")
    path, _, _ = change.partition("=")
    with pytest.raises(ProblemsFound, match="another recipe: 1 value differs"):
        select_run_directory(resolved("dump_folder=out", change), NOW)
    other = "checkpoint.allow_change=[training.seq_len]"
    with pytest.raises(ProblemsFound, match="another recipe: 1 value differs"):
        select_run_directory(resolved("dump_folder=out", change, other), NOW)
    for named in (path, path.partition(".")[0]):
        directory = select_run_directory(
            resolved("dump_folder=out", change, f"checkpoint.allow_change=[{named}]"), NOW
        )
        assert [
            format_resume_change(found).partition(" ")[0]
            for found in directory.resume_changes.reported_changes
        ] == [path]


@pytest.mark.parametrize("change", ["checkpoint.enable=false", "checkpoint.folder=elsewhere"])
def test_a_run_cannot_be_led_away_from_its_checkpoints(change: str) -> None:
    begin("dump_folder=out")
    with pytest.raises(ProblemsFound, match="another recipe: 1 value differs"):
        select_run_directory(
            resolved("dump_folder=out", change, "checkpoint.allow_change=[checkpoint]"), NOW
        )


@pytest.mark.parametrize("occupied", ["file", "folder"])
def test_what_is_not_a_run_is_left_alone(occupied: str) -> None:
    if occupied == "file":
        Path("out").write_text("mine", encoding="utf-8")
    else:
        Path("out").mkdir()
        Path("out/notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        select_run_directory(resolved("dump_folder=out"), NOW)
    assert caught.value.problems[0].code == "file"


def test_what_the_machine_decided_goes_to_run_json() -> None:
    path = begin("dump_folder=out")
    record_decisions(path, {"device": "cpu", "world_size": 1}, {"threads": 2})
    record = read_json_or_empty(path / "run.json")
    assert record["starts"][-1]["decided"] == {"device": "cpu", "world_size": 1}
    assert record["starts"][-1]["machine"] == {"threads": 2}


def test_a_run_cannot_be_shortened_below_what_is_saved() -> None:
    path = begin("dump_folder=out", saved=12)
    before = (path / "resolved.yaml").read_bytes()
    with pytest.raises(ProblemsFound) as caught:
        select_run_directory(resolved("dump_folder=out", "training.steps=10"), NOW)
    assert caught.value.problems[0].label == "conflict/steps-already-done"
    assert (path / "resolved.yaml").read_bytes() == before


def test_a_run_cannot_be_shortened_to_what_is_saved() -> None:
    begin("dump_folder=out", "training.steps=12", saved=12)
    # killed between its last checkpoint and its end: the same command finishes it
    same = resolved("dump_folder=out", "training.steps=12")
    assert select_run_directory(same, NOW).state == "unfinished"
    begin("dump_folder=cut", saved=12)
    for last_step in (11, 12):
        with pytest.raises(ProblemsFound) as caught:
            select_run_directory(resolved("dump_folder=cut", f"training.steps={last_step}"), NOW)
    (problem,) = caught.value.problems
    assert problem.label == "conflict/steps-already-done"
    assert problem.message == "'cut' is at step 12 already: nothing is left to train"
    assert problem.hint == "request 13 or more, or name another folder"
    earlier = resolved("dump_folder=cut", "training.steps=12", "checkpoint.load_step=5")
    assert select_run_directory(earlier, NOW).state == "unfinished"
    longer = resolved("dump_folder=cut", "training.steps=13")
    assert select_run_directory(longer, NOW).state == "unfinished"


def test_a_start_that_trained_nothing_does_not_hold_its_folder() -> None:
    begin("dump_folder=out", state="failed", step=0, saved=None)
    assert (
        select_run_directory(resolved("dump_folder=out", "training.seq_len=32"), NOW).state == "new"
    )


def test_a_start_that_dies_before_its_worker_stands_does_not_look_finished() -> None:
    path = begin("dump_folder=out", state="finished", step=20)
    longer = resolved("dump_folder=out", "training.steps=40")
    write_run_directory(
        select_run_directory(longer, NOW), longer, ["titanrun", "train"], NOW, environment={}
    )
    assert read_json_or_empty(path / "status.json")["state"] == "starting"
    assert select_run_directory(longer, NOW).state == "unfinished"


def test_a_run_that_was_only_just_started_says_so() -> None:
    run = resolved("dump_folder=out")
    write_run_directory(
        select_run_directory(run, NOW), run, ["titanrun", "train"], NOW, environment={}
    )
    status = read_json_or_empty(Path("out/status.json"))
    assert (status["state"], status["step"], status["pid"]) == ("starting", 0, os.getpid())
    jsonschema.validate(status, build_status_schema())


def test_a_start_records_when_the_run_was_last_alive() -> None:
    path = begin("dump_folder=out")
    write_indented_json(path / "status.json", {"state": "preempted", "step": 5, "heartbeat": 7.5})
    begin("dump_folder=out", saved=None)
    starts = read_json_or_empty(path / "run.json")["starts"]
    assert [start.get("previous_heartbeat") for start in starts] == [None, 7.5]


def test_what_starts_a_run_is_recorded_without_a_secret() -> None:
    run = resolved("dump_folder=out")
    argv = ["titanrun", "train", "recipe.yaml", "name=a-canary-7"]
    write_run_directory(
        select_run_directory(run, NOW), run, argv, NOW, environment={"DOOR_KEY": "a-canary-7"}
    )
    (start,) = read_json_or_empty(Path("out/run.json"))["starts"]
    assert (start["argv"][-1], start["seed"], start["cwd"]) == ("name=***", 0, str(Path.cwd()))
    assert start["environment"]["packages"]["pydantic"] == version("pydantic")
    assert "a-canary-7" not in Path("out/resolved.sources.json").read_text()


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        find_dump_folder_problems("out/deep/er")
        == find_dump_folder_problems(None)
        == find_dump_folder_problems(".")
        == []
    )
    assert [problem.message for problem in find_dump_folder_problems("recipe.yaml")] == [
        "cannot create the run directory 'recipe.yaml': it is a file"
    ]
    (problem,) = find_dump_folder_problems("recipe.yaml/a/b")
    assert (
        problem.message
        == "cannot create the run directory 'recipe.yaml/a/b': 'recipe.yaml' is a file"
    )
    # whoever runs the tests may be allowed to write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "'.' is not writable" in find_dump_folder_problems("out")[0].message


def test_a_run_in_use_is_refused_by_name() -> None:
    path = begin("dump_folder=out")
    write_indented_json(path / "status.json", {"state": "running", "pid": 4242, "host": "node7"})
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ProblemsFound, match="in use by process 4242 on node7"):
            select_run_directory(resolved("dump_folder=out"), NOW)
    assert select_run_directory(resolved("dump_folder=out"), NOW).state == "unfinished"


@pytest.mark.parametrize(
    "folder", ["/x", "../x", ".", "a/../../b", "logs", "resolved.yaml", ".lock", "''"]
)
def test_checkpoints_stay_inside_the_run_directory(folder: str) -> None:
    with pytest.raises(ProblemsFound) as caught:
        resolved(f"checkpoint.folder={folder}")
    assert caught.value.problems[0].path == ("checkpoint", "folder")


def test_a_link_that_leads_out_of_the_run_directory_is_refused(tmp_path: Path) -> None:
    begin("dump_folder=out", saved=None)
    (tmp_path / "elsewhere").mkdir()
    Path("out/checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProblemsFound, match="links to a folder outside of the run directory"):
        select_run_directory(resolved("dump_folder=out"), NOW)


def test_a_folder_that_cannot_be_made_is_a_problem_at_its_place() -> None:
    with pytest.raises(ProblemsFound) as caught:
        begin("dump_folder=recipe.yaml/run")
    (problem,) = caught.value.problems
    assert problem.message == "cannot create the run directory 'recipe.yaml/run': not a directory"
    assert str(problem.origin) == "<override 1>"


@pytest.mark.parametrize(
    "now", ["", "{name: float8_linear, recipe_name: rowwise}", "fp32_lm_head, float8_linear"]
)
def test_a_run_goes_on_with_its_converters_unless_the_change_is_named(now: str) -> None:
    begin("dump_folder=out", "converters=[float8_linear]")
    changed = ["dump_folder=out", f"converters=[{now}]"]
    with pytest.raises(ProblemsFound, match="a run of another recipe"):
        select_run_directory(resolved(*changed), NOW)
    allowed = select_run_directory(resolved(*changed, "checkpoint.allow_change=[converters]"), NOW)
    assert allowed.state == "unfinished"


def test_a_finished_run_without_its_last_checkpoint_is_not_done() -> None:
    """Row B15 of the defect list: it said "nothing to do" and exited with 0."""
    path = begin("dump_folder=out", state="finished", step=20, saved=20)
    run = resolved("dump_folder=out")
    check_last_checkpoint(select_run_directory(run, NOW), run.run)
    (path / "checkpoint" / "step-20").rename(path / "checkpoint" / "step-10")
    with pytest.raises(ProblemsFound) as error:
        check_last_checkpoint(select_run_directory(run, NOW), run.run)
    (problem,) = error.value.problems
    assert problem.exit_code == 4
    assert problem.message == (
        "'out' finished at step 20, but its last checkpoint is gone: the newest is that of step 10"
    )
    assert problem.hint == (
        "restore it from a copy, or remove out/status.json to train from step 10"
    )
    # as the help says
    (path / "status.json").unlink()
    assert select_run_directory(run, NOW).completed_step == 10


def test_a_run_that_saves_nothing_has_no_last_checkpoint_to_lose() -> None:
    begin("dump_folder=out", "checkpoint.enable=false", state="finished", step=20, saved=None)
    run = resolved("dump_folder=out", "checkpoint.enable=false")
    check_last_checkpoint(select_run_directory(run, NOW), run.run)


@pytest.mark.parametrize("content", ['{"format": 1}', '{"format": 1, "starts": 3}', "[" * 100_000])
def test_a_run_json_without_starts_gets_them(content: str) -> None:
    """Row B13 of the defect list."""
    path = begin("dump_folder=out")
    (path / "run.json").write_text(content)
    run = resolved("dump_folder=out")
    write_run_directory(select_run_directory(run, NOW), run, ["titanrun"], NOW, environment={})
    assert len(read_json_or_empty(path / "run.json")["starts"]) == 1
    (path / "run.json").write_text(content)
    record_decisions(path, {"device": "cpu"}, {"threads": 2})
    assert read_json_or_empty(path / "run.json")["starts"][-1]["machine"] == {"threads": 2}
