"""Rows 17 to 25, 27, 44, 46, 47 and 54 as far as they need two ranks, of which one meets what the
other does not."""

import json
import math
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults import seams
from tests.faults.conftest import EVERY_3, Note, Run, said
from tests.faults.processes import work, work_together
from tests.worker.conftest import write_run
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.metrics.spec.metrics_file import read_metrics

SHARDS = "parallelism.data_parallel_shard_degree=2"


def evidence(resolved: Path, step: int, rank: int) -> dict[str, object]:
    """What a rank wrote down about a bad step."""
    found: dict[str, object] = json.loads(
        (resolved.parent / "logs" / f"non-finite-step-{step}-rank-{rank}.json").read_text()
    )
    return found


def log_of(resolved: Path, rank: int) -> str:
    return (resolved.parent / "logs" / f"rank-{rank}.log").read_text()


def losses(resolved: Path) -> list[float]:
    """The loss of each step, of the last try where there were several."""
    return [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory, shared_tokens: Path) -> Path:
    """A run of two ranks, of which the second one alone was asked to save in step 2, and to stop in
    step 5."""
    resolved = write_run(tmp_path_factory.mktemp("stopped"), shared_tokens, "run", *EVERY_3, SHARDS)
    asked = (
        seams.several,
        (seams.signals_amid_step, 2, signal.SIGUSR2),
        (seams.signals_amid_step, 5, signal.SIGUSR1),
    )
    assert work_together(resolved, {1: asked}) == [75, 75]
    return resolved


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """The same in a folder that may be harmed."""
    shutil.copytree(stopped_once.parent, tmp_path / "run")
    return tmp_path / "run" / "resolved.yaml"


@pytest.mark.slow
def test_row_17_a_run_goes_on_with_more_or_fewer_ranks(
    run: Run, stopped: Path, uncut: Path, note: Note
) -> None:
    fewer, more = run("run"), run("more")
    assert fewer == stopped
    assert work(fewer) == 0
    assert (
        "checkpoint was saved by 2 ranks, this run has 1: RNG states are reset from "
        "debug.seed, the data order is unchanged" in said(fewer)
    )
    assert work(more, seams.signals_amid_step, 5, signal.SIGTERM) == 75
    assert work_together(run("more", SHARDS), {}) == [0, 0]
    for resolved in (fewer, more):
        assert "resuming after step 5" in said(resolved)
        assert losses(resolved) == pytest.approx(losses(uncut), rel=1e-5)
    outcome = (
        "resharded; the log says that RNG states are reset; the same batches: losses of each "
        "step equal within 1e-5"
    )
    note(
        17,
        injected="stopped in step 5, then from 2 ranks to 1 and from 1 to 2",
        outcome=outcome,
        lost="nothing",
    )


@pytest.mark.slow
def test_row_19_random_states_of_another_rank_are_never_taken(
    run: Run, stopped: Path, note: Note
) -> None:
    first, second = (
        stopped.parent / "checkpoint" / "step-5" / f"rng-rank-{rank}.safetensors" for rank in (0, 1)
    )
    whole = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(whole)
    # what lies in the files tells it even where nobody looks at digests
    assert work_together(run("run", SHARDS, "checkpoint.verify=off"), {}) == [4, 4]
    assert "it holds the RNG states of rank 1" in said(stopped)
    assert work_together(run("run", SHARDS), {}) == [0, 0]
    assert "step-5 cannot be used: rng-rank-0.safetensors" in said(stopped)
    assert "resuming after step 3" in said(stopped)
    outcome = (
        "the file is named, the run resumes after step 3; with checkpoint.verify: off exit 4, by "
        "the rank written in it"
    )
    note(
        19,
        injected="the random states of two ranks exchanged in the newest checkpoint",
        outcome=outcome,
        lost="two intervals",
    )


@pytest.mark.slow
def test_row_21_a_signal_to_one_rank_is_a_signal_to_all(stopped_once: Path, note: Note) -> None:
    assert (stopped_once.parent / "checkpoint" / "step-2" / "manifest.json").exists()
    assert (stopped_once.parent / "checkpoint" / "step-5" / "manifest.json").exists()
    assert all(
        "stopped by SIGUSR1 after step 5 of 10, saved" in log_of(stopped_once, rank)
        for rank in (0, 1)
    )
    outcome = "both ranks save after step 2 and continue, save after step 5 and end with exit 75"
    note(
        21,
        injected="SIGUSR2 in step 2 and SIGUSR1 in step 5, to rank 1 of 2 alone",
        outcome=outcome,
        lost="nothing",
    )


def test_row_25_a_nan_on_one_rank_is_skipped_by_all(run: Run, note: Note) -> None:
    resolved = run(
        "run", "guard.non_finite=skip", SHARDS, "training.steps=6", "checkpoint.enable=false"
    )
    assert work_together(resolved, {1: (seams.loss_is_nan, 5, 5)}) == [0, 0]
    # the other rank skipped it too: its log says so
    assert all(log_of(resolved, rank).count("optimizer step skipped") == 1 for rank in (0, 1))
    rows = [set(evidence(resolved, 5, rank)["rows"]) for rank in (0, 1)]  # type: ignore[call-overload]
    assert len(rows[0]) == len(rows[1]) == 2
    assert not rows[0] & rows[1]
    assert [math.isfinite(loss) for loss in losses(resolved)] == [True] * 4 + [False, True]
    outcome = (
        "both ranks skip the update; each records its own sequences, modules and gradients; no hang"
    )
    note(25, injected="loss NaN in step 5 on rank 1 of 2", outcome=outcome, lost="1 step")


@pytest.mark.slow
def test_row_27_two_ranks_go_back_together_and_leave_the_same_data_out(run: Run) -> None:
    back = ("guard.non_finite=rollback",)
    alone, both = run("alone", *back), run("both", *back, SHARDS)
    assert work(alone, seams.data_is_nan, 5, 6) == 0
    assert work_together(both, {1: (seams.data_is_nan, 5, 6)}) == [0, 0]
    assert all(log_of(both, rank).count("rolling back to step 3") == 2 for rank in (0, 1))
    assert len(losses(both)) == 10
    assert losses(both) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.slow
def test_row_27_the_rank_with_the_bad_row_names_row_and_module(run: Run) -> None:
    resolved = run("run", SHARDS, "training.local_batch_size=1")
    assert work_together(resolved, {1: (seams.row_is_nan, 5, "layers.0.feed_forward", 0)}) == [5, 5]
    good, bad = (evidence(resolved, 5, rank) for rank in (0, 1))
    assert (good["bad_rows"], good["first_bad_module"]) == ([], None)
    assert (bad["bad_rows"], bad["first_bad_module"]) == (bad["rows"], "layers.0.feed_forward")
    assert [entry.name for entry in (resolved.parent / "checkpoint").iterdir()] == ["step-3"]


@pytest.mark.slow
def test_row_44_data_ends_for_all_ranks_at_once(run: Run) -> None:
    resolved = run("run", SHARDS, "training.dataset.repeat=false")
    assert work_together(resolved, {}) == [0, 0]
    assert all("the data ran out after step 7 of 10" in log_of(resolved, rank) for rank in (0, 1))
    assert (resolved.parent / "checkpoint" / "step-7" / "manifest.json").exists()


@pytest.mark.slow
def test_row_46_a_slow_rank_is_named_within_20_steps(run: Run, note: Note) -> None:
    resolved = run(
        "run", SHARDS, "training.steps=20", "lr_scheduler.total_steps=20", "checkpoint.enable=false"
    )
    # the work of a step takes rank 1 half as long again as the other
    assert work_together(
        resolved, {0: (seams.layers_take, 0.08), 1: (seams.layers_take, 0.12)}
    ) == [0, 0]
    assert said(resolved).count("is slow") == said(resolved).count("rank 1 is slow") == 1
    found = {
        line["step"]: line["guard/slow_rank"]
        for line in read_metrics(resolved.parent / "metrics.jsonl")
        if "guard/slow_rank" in line
    }
    assert set(found.values()) == {1}
    outcome = f"named in the log and in metrics.jsonl at step {min(found)}"
    note(
        46,
        injected="the forward pass of rank 1 of 2 takes 120 ms, that of the other 80 ms",
        outcome=outcome,
        lost="nothing",
    )


TWICE = ("debug.deterministic=true", "guard.replay_interval=4")
COPIES = "parallelism.data_parallel_replicate_degree=2"


@pytest.mark.slow
def test_row_47_one_wrong_bit_is_found_and_its_rank_is_named(
    run: Run, uncut: Path, note: Note
) -> None:
    # four passes make four steps; the fifth would be the fourth step once more
    split, copies = run("split", SHARDS, *TWICE), run("copies", COPIES, *TWICE)
    assert work_together(split, {1: (seams.bit_flips, "norm.weight", 4)}) == [70, 70]
    assert "error[corruption]: at step 4 model.norm.weight changed on rank 1 (" in said(split)
    assert work_together(copies, {1: (seams.bit_flips, "norm.weight", 2)}) == [70, 70]
    assert "error[corruption]: at step 3 copies of model.norm.weight" in said(copies)
    assert not list((copies.parent / "checkpoint").glob("step-*"))
    for resolved in (split, copies):
        assert work_together(resolved, {}) == [0, 0]
        assert losses(resolved) == pytest.approx(losses(uncut), rel=1e-5)
    outcome = (
        "exit 70 before anything is saved, tensor and rank (of copies: ranks) are "
        "named; resumes from the previous checkpoint"
    )
    injected = (
        "one bit of a weight of rank 1 of 2 flipped, with guard.replay_interval: 4: between two "
        "passes; between two steps, in a copy"
    )
    note(47, injected=injected, outcome=outcome, lost="one interval")


@pytest.mark.slow
def test_row_54_an_export_that_is_killed_is_not_there(run: Run, note: Note) -> None:
    for ranks, fault in (
        (1, {0: (seams.kill_amid_export,)}),
        (2, {1: (seams.kill_amid_gathering,)}),
    ):
        resolved = run(
            f"run-{ranks}", "checkpoint.last_save_in_hf=true", *([SHARDS] if ranks == 2 else [])
        )
        assert -signal.SIGKILL in work_together(resolved, fault, ranks)
        assert not (resolved.parent / "hf").exists()
        store = CheckpointStore(folder=resolved.parent / "checkpoint")
        assert store.find_damage(10, "always") == []
        assert work_together(resolved, {}, ranks) == [0] * ranks
        assert (resolved.parent / "hf" / "model.safetensors").exists()
        assert [entry.name for entry in resolved.parent.glob("hf*")] == ["hf"]
    outcome = (
        "no folder hf, the checkpoint verifies; the next start writes it completely, "
        "and no partial files remain"
    )
    note(
        54,
        injected="SIGKILL during an export; of rank 1 of 2 while weights are gathered",
        outcome=outcome,
        lost="the export",
    )
