"""Runs on streams: bitwise after a stop at any step, on other ranks and with other processes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.components.data.lane_streams import write_numbered
from tests.worker.test_resume_every_step import content, train
from titanrun.components.data.lane_plan import PLAN_FILES, StreamPlan
from titanrun.components.data.stream_config import StreamFields
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
STEPS = 12
# the corpus of tokens is replaced by text
BASE = ["tokenizer=tiny", "model.vocab_size=2048"]


def settings(dataset: str, *, steps: int = STEPS, num_workers: int = 0) -> list[str]:
    return [
        *BASE,
        dataset,
        f"training.steps={steps}",
        f"training.dataloader.num_workers={num_workers}",
        "checkpoint.interval=1",
        "checkpoint.keep_latest_k=0",
    ]


def stream(folder: Path, **options: Any) -> str:
    fields = {"name": "text", "path": str(folder), "streaming": True, "window": 8, **options}
    return f"training.dataset={json.dumps(fields)}"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Few documents, so that a short run reads several epochs."""
    write_numbered(tmp_path / "texts", [9, 12, 10, 11, 9])
    return tmp_path / "texts"


def saved_state(resolved: Path, step: int) -> dict[str, Any]:
    folder = resolved.parent / "checkpoint" / f"step-{step}"
    found = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    state: dict[str, Any] = next(one["data"] for one in found if "data" in one)
    return state


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stop_after_any_step_changes_no_bit(run: Run, texts: Path, num_workers: int) -> None:
    chosen = settings(stream(texts), num_workers=num_workers)
    uncut = run("uncut", *chosen)
    rows = train(uncut, until=STEPS)
    assert [batch.shape for batch in rows] == [(4, 17)] * STEPS
    for step in (1, 2, 5, 11) if num_workers == 0 else (3,):
        resolved = run(f"from-{step}", *chosen)
        name = f"checkpoint/step-{step}"
        shutil.copytree(uncut.parent / name, resolved.parent / name)
        (batch,) = train(resolved, until=step + 1)
        assert np.array_equal(batch, rows[step]), step
        assert content(resolved, step + 1) == content(uncut, step + 1), step


def test_a_checkpoint_that_is_copied_alone_knows_its_files(
    run: Run, texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The list of files was in the run directory only."""
    chosen = settings(stream(texts), steps=6)
    uncut = run("uncut", *chosen)
    assert main([str(uncut)]) == 0
    copied = texts.parent / "elsewhere" / "step-3"
    shutil.copytree(uncut.parent / "checkpoint" / "step-3", copied)
    start = [f"checkpoint.initial_load_path={copied}", "checkpoint.initial_load_model_only=false"]
    resumed = run("resumed", *chosen, *start)
    (plan,) = copied.glob(PLAN_FILES)
    names = [file.name for file in StreamPlan.from_bytes(plan.read_bytes()).files]
    assert names == [f"part-00{number}.jsonl.gz" for number in range(5)]
    last, moved = texts / names[-1], texts / "other.jsonl.gz"
    last.rename(moved)
    assert main([str(resumed)]) == 3
    assert f"added {moved.name}, removed {last.name}" in caplog.text
    moved.rename(last)
    assert main([str(resumed)]) == 0
    assert saved_state(resumed, 6) == saved_state(uncut, 6)
    # their recipes differ in where the weights come from
    found, expected = content(resumed, 6), content(uncut, 6)
    differing = {name for name in expected if found[name] != expected[name]}
    assert differing <= {"resolved.yaml", "state.json"} and plan.name in found


def test_a_stream_without_repeat_ends_the_run_with_a_checkpoint(run: Run, texts: Path) -> None:
    resolved = run("run", *settings(stream(texts, repeat=False), steps=1000))
    assert main([str(resolved)]) == 0
    steps = [line["step"] for line in read_metrics(resolved.parent / "metrics.jsonl")]
    assert 10 < len(steps) < 1000
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    assert f"finished: the data ran out after step {steps[-1]} of 1000" in log
    assert (resolved.parent / "checkpoint" / f"step-{steps[-1]}").is_dir()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_record_that_cannot_be_read_ends_the_run_after_a_save(
    run: Run, tmp_path: Path, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The run lost every step since its last checkpoint."""
    lines = [json.dumps({"text": f"{number} " + "word " * 20}) for number in range(400)]
    lines[300] = "{"
    (tmp_path / "lines.jsonl").write_text("\n".join(lines) + "\n")
    chosen = settings(stream(tmp_path / "lines.jsonl"), steps=1000, num_workers=num_workers)
    chosen[chosen.index("checkpoint.interval=1")] = "checkpoint.interval=1000"
    resolved = run("run", *chosen)
    assert main([str(resolved)]) == 3
    assert "record 301" in caplog.text
    steps = [line["step"] for line in read_metrics(resolved.parent / "metrics.jsonl")]
    assert 1 < len(steps) < 1000
    assert (resolved.parent / "checkpoint" / f"step-{steps[-1]}" / "manifest.json").is_file()


def test_lanes_are_those_of_the_recipe_and_nothing_is_indexed(run: Run, texts: Path) -> None:
    resolved = run("run", *settings(stream(texts), steps=2), "training.lanes=2")
    assert main([str(resolved)]) == 0
    state = saved_state(resolved, 2)
    assert (state["kind"], state["lanes"], state["rows_read"]) == ("stream", 2, 8)
    assert [file.suffix for file in (resolved.parent / "data").iterdir()] == [".gz"]
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    assert "of a stream in 2 lanes" in log


def test_what_follows_from_a_stream_is_resolved_and_written_down(run: Run, texts: Path) -> None:
    run("run")
    recipe = texts.parent / "recipe.yaml"
    overrides = [*BASE, stream(texts, window="auto", packing=None)]
    attention = "model.attention.mask=block_causal"
    for batch, lanes in ((96, 48), (64, 64), (8, 8), (134, 2), (122, 61), (130, 26)):
        found = resolve_recipe(
            str(recipe),
            [*overrides, attention, f"training.global_batch_size={batch}"],
            environment={},
        ).run
        assert found is not None
        assert found.training.lanes == lanes
        assert found.training.dataloader.num_workers == 2
        assert getattr(found.training.dataset, "window", None) == 1024
    for name in ("c4", "c4_validation"):
        for written, streams, window in (
            ("max_documents: null", True, 256),
            ("max_documents: 1000", False, None),
            ("streaming: false", False, None),
        ):
            dataset = f"training.dataset={{name: {name}, {written}}}"
            found = resolve_recipe(str(recipe), [*BASE, dataset], environment={}).run
            assert found is not None and isinstance(found.training.dataset, StreamFields)
            assert (found.training.dataset.streaming, found.training.dataset.window) == (
                streams,
                window,
            )
    plain = resolve_recipe(str(recipe), [], environment={}).run
    assert plain is not None
    assert (plain.training.lanes, plain.training.dataloader.num_workers) == (None, 0)


def test_an_index_does_not_go_on_from_a_stream_nor_a_stream_from_an_index(
    run: Run, texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = [stream(texts), stream(texts, streaming=False, window=None)]
    said = [
        "the checkpoint was trained on a stream, not on data in an index",
        "the checkpoint was trained on data in an index, not on a stream",
    ]
    for number, message in enumerate(said):
        first, second, folder = kinds[number], kinds[1 - number], f"run-{number}"
        before = run(folder, *settings(first, steps=2))
        assert main([str(before)]) == 0
        allowed = "checkpoint.allow_change=[training.dataset, training.lanes]"
        after = run(f"{folder}-after", *settings(second, steps=3), allowed)
        shutil.copytree(before.parent / "checkpoint", after.parent / "checkpoint")
        assert main([str(after)]) == 0
        assert message in (after.parent / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize("name", ["c4_test", "text"])
def test_one_lane_without_shuffling_has_the_losses_of_the_index(
    run: Run, tmp_path: Path, name: str
) -> None:
    write_numbered(tmp_path / "texts", [40, 60, 50], suffix=".jsonl")
    losses = []
    for is_streamed in (True, False):
        dataset = {
            "name": name,
            "path": str(tmp_path / "texts"),
            "streaming": is_streamed,
            "shuffle": False,
        }
        resolved = run(
            f"streamed-{is_streamed}",
            *settings(f"training.dataset={json.dumps(dataset)}"),
            *(["training.lanes=1"] if is_streamed else []),
        )
        assert main([str(resolved)]) == 0
        lines = read_metrics(resolved.parent / "metrics.jsonl")
        losses.append([line["loss"] for line in lines])
    assert len(losses[0]) == STEPS and losses[0] == losses[1]


def test_simulated_ranks_read_their_own_lanes(run: Run, texts: Path) -> None:
    resolved = run(
        "run",
        *BASE,
        stream(texts, repeat=False),
        "training.steps=2",
        "training.dataloader.num_workers=0",
        "comm.mode=fake_backend",
        "launch.nproc_per_node=2",
        "checkpoint.enable=false",
    )
    assert main([str(resolved)]) == 0
    assert len(read_metrics(resolved.parent / "metrics.jsonl")) == 2


def test_metrics_tell_how_far_a_stream_is(run: Run, texts: Path) -> None:
    resolved = run("run", *settings(stream(texts), steps=24), "metrics.log_freq=1")
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    names = [name for name in lines[0] if str(name).startswith("data/")]
    assert names == [
        f"data/{name}"
        for name in ("wait_seconds", "retries", "bytes", "documents", "epoch_min", "epoch_max")
    ]
    cursors = [saved_state(resolved, step)["cursors"][0] for step in range(1, 25)]
    assert [line["data/documents"] for line in lines] == [
        sum(lane[9] for lane in lanes) for lanes in cursors
    ]
    assert [line["data/epoch_max"] for line in lines] == [
        max(lane[1] for lane in lanes) for lanes in cursors
    ]
    assert lines[-1]["data/epoch_max"] >= 1 and lines[0]["data/bytes"] > 0
