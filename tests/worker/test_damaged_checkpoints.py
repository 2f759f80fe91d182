"""What cannot be trusted is refused by name; the run goes on from the newest checkpoint that is
good, or not at all."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.components.checkpoints.spec.test_verification import forge, forge_state
from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.rank_main import main
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
EVERY_3 = "checkpoint.interval=3"


def train(resolved: Path, on_step: Callable[[int], None] = lambda step: None) -> None:
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(resolved),
            rendezvous(resolved, RankInfo()),
            signals=signals,
            on_step=on_step,
        ) as trainer,
    ):
        trainer.train()


def assert_same_end(one: Path, other: Path) -> None:
    contents = [read_manifest(step_folder(resolved, 10)).files for resolved in (one, other)]
    for name in ("__0_0.distcp", "state.json", "rng-rank-0.safetensors"):
        assert contents[0][name] == contents[1][name], name


@pytest.fixture
def stopped(run: Run) -> Path:
    """A run with checkpoints of steps 3, 6 and 9, killed after step 9."""

    def die(step: int) -> None:
        if step == 10:
            raise KeyboardInterrupt

    resolved = run("stopped", EVERY_3)
    with pytest.raises(KeyboardInterrupt):
        train(resolved, die)
    return resolved


def step_folder(resolved: Path, step: int) -> Path:
    return resolved.parent / "checkpoint" / f"step-{step}"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def log_of(resolved: Path) -> str:
    return (resolved.parent / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize(
    "file",
    [
        "__0_0.distcp",
        ".metadata",
        "manifest.json",
        "state.json",
        "rng-rank-0.safetensors",
        "resolved.yaml",
    ],
)
def test_a_flipped_bit_costs_one_interval_and_no_bit_of_the_result(
    run: Run, stopped: Path, file: str
) -> None:
    uncut = run("uncut", EVERY_3)
    train(uncut)
    flip(step_folder(stopped, 9) / file)
    assert main([str(stopped)]) == 0
    assert_same_end(uncut, stopped)
    said = log_of(stopped)
    (line,) = [line for line in said.splitlines() if "step-9 cannot be used: " in line]
    assert file in line.partition("cannot be used")[2]
    assert "resuming after step 6" in said
    # step 9 was saved anew, and the damaged one is still there to look at
    assert len(list(step_folder(stopped, 9).parent.glob("step-9*"))) == 2


def test_two_bad_ones_cost_two_intervals(run: Run, stopped: Path) -> None:
    uncut = run("uncut", EVERY_3)
    train(uncut)
    (step_folder(stopped, 9) / "__0_0.distcp").write_bytes(b"")
    (step_folder(stopped, 6) / "manifest.json").unlink()
    assert main([str(stopped)]) == 0
    assert "resuming after step 3" in log_of(stopped)
    assert_same_end(uncut, stopped)


def test_a_run_with_bad_checkpoints_only_stops_and_never_begins_anew(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, file in ((3, "__0_0.distcp"), (6, "state.json"), (9, "manifest.json")):
        flip(step_folder(stopped, step) / file)
    before = {
        path: path.read_bytes()
        for path in step_folder(stopped, 0).parent.rglob("*")
        if path.is_file()
    }
    metrics = (stopped.parent / "metrics.jsonl").read_bytes()
    assert main([str(stopped)]) == 4
    said = capsys.readouterr().err
    for expected in (
        "step-3 cannot be used: __0_0.distcp has other bytes than were saved",
        "step-6 cannot be used: state.json has other bytes than were saved",
        "manifest.json is damaged",
        "restore one from a copy, or move",
    ):
        assert expected in said
    assert {
        path: path.read_bytes()
        for path in step_folder(stopped, 0).parent.rglob("*")
        if path.is_file()
    } == before
    assert (stopped.parent / "metrics.jsonl").read_bytes() == metrics


class Hostile:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.victim,)


@pytest.mark.parametrize("verify", ["always", "off"])
def test_a_hostile_pickle_leaves_no_trace(
    run: Run, stopped: Path, tmp_path: Path, verify: str
) -> None:
    index = step_folder(stopped, 9) / ".metadata"
    size = index.stat().st_size
    index.write_bytes(pickle.dumps(Hostile(tmp_path / "victim")).ljust(size, b"\0"))
    resolved = run("stopped", EVERY_3, f"checkpoint.verify={verify}")
    assert main([str(resolved)]) == (0 if verify == "always" else 4)
    assert not (tmp_path / "victim").exists()


def test_sizes_alone_are_looked_at_where_that_is_asked_for(run: Run, stopped: Path) -> None:
    flip(step_folder(stopped, 9) / "resolved.yaml")
    resolved = run("stopped", EVERY_3, "checkpoint.verify=off")
    assert main([str(resolved)]) == 0
    assert "resuming after step 9" in log_of(resolved)


def test_a_shard_of_another_step_is_found(stopped: Path) -> None:
    shutil.copy(step_folder(stopped, 6) / "__0_0.distcp", step_folder(stopped, 9))
    assert main([str(stopped)]) == 0
    assert "__0_0.distcp has other bytes than were saved" in log_of(stopped)


def test_other_data_is_taken_where_that_is_allowed(run: Run, stopped: Path, tokens: Path) -> None:
    np.save(tokens, np.load(tokens)[::-1])
    assert main([str(stopped)]) == 3
    resolved = run("stopped", EVERY_3, "checkpoint.allow_change=[training.dataset]")
    assert main([str(resolved)]) == 0
    assert "starting with the new data" in log_of(resolved)


def test_a_checkpoint_of_a_newer_titanrun_ends_the_run_and_nothing_is_touched(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row B8 of the defect list: it was renamed as damaged, and the run went back."""
    forge(step_folder(stopped, 9), format=99)
    before = {
        path: path.read_bytes()
        for path in step_folder(stopped, 0).parent.rglob("*")
        if path.is_file()
    }
    assert main([str(stopped)]) == 4
    assert "was written by a newer titanrun" in capsys.readouterr().err
    assert {
        path: path.read_bytes()
        for path in step_folder(stopped, 0).parent.rglob("*")
        if path.is_file()
    } == before


def test_a_state_without_data_costs_one_interval(stopped: Path) -> None:
    forge_state(step_folder(stopped, 9), lambda state: state.pop("data"))
    assert main([str(stopped)]) == 0
    assert "step-9 cannot be used: state.json has no data" in log_of(stopped)
    assert "resuming after step 6" in log_of(stopped)


def test_a_data_position_without_its_entries_is_named(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge_state(step_folder(stopped, 9), lambda state: state.update(data={}))
    assert main([str(stopped)]) == 4
    assert (
        "state.json is damaged: it is not complete enough to resume from" in capsys.readouterr().err
    )
