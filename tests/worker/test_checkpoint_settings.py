"""What the checkpoint section asks for is what happens."""

import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.components.checkpoints.spec.manifest import Manifest, list_step_folders, read_manifest
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.engine import Engine
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.rank_main import main
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]


def stop_after(resolved: Path, step: int) -> None:
    """Trains until a step is done, and saves."""

    def stop(done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals, on_step=stop
        ) as trainer,
    ):
        trainer.train()


def manifests(resolved: Path) -> dict[int, Manifest]:
    return {
        step: read_manifest(folder)
        for step, folder in list_step_folders(resolved.parent / "checkpoint").items()
    }


def losses(resolved: Path) -> dict[int, float]:
    return {
        int(line["step"]): line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")
    }


def test_tensors_of_another_dtype_are_converted_where_that_is_allowed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(run("run"), 4)
    half = "training.dtype=bfloat16"
    assert main([str(run("run", half))]) == 4
    assert (
        "different dtype: model.layers.0.attention.wk.weight (float32[16, 32], wanted "
        "bfloat16[16, 32])" in capsys.readouterr().err
    )
    assert main([str(run("run", half, "checkpoint.allow_cast=true"))]) == 0


def test_tensors_that_the_model_has_not_are_passed_over_where_that_is_allowed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(run("run"), 4)
    shallow = "model.n_layers=1"
    assert main([str(run("run", shallow))]) == 4
    assert "unexpected: model.layers.1.attention.wk.weight" in capsys.readouterr().err
    assert main([str(run("run", shallow, "checkpoint.allow_extra=true"))]) == 0


SAVED = ["checkpoint.interval=2", "checkpoint.keep_latest_k=0"]


def test_the_first_step_is_saved_where_that_is_asked_for(run: Run) -> None:
    resolved = run("run", "checkpoint.enable_first_step_checkpoint=true")
    assert main([str(resolved)]) == 0
    assert list(manifests(resolved)) == [1, 10]


def test_multiples_stay_beside_the_latest(run: Run) -> None:
    resolved = run(
        "run", "checkpoint.interval=1", "checkpoint.keep_latest_k=1", "checkpoint.keep_every=4"
    )
    assert main([str(resolved)]) == 0
    assert list(manifests(resolved)) == [4, 8, 10]


def test_the_best_by_validation_loss_stay(run: Run, tokens: Path) -> None:
    held_out = f"validation.dataset={{name: tokens, path: {tokens}}}"
    validates = ["validation.enable=true", "validation.freq=2", held_out, "optimizer.lr=0.3"]
    everything = run(
        "everything", *validates, "checkpoint.interval=1", "checkpoint.keep_latest_k=0"
    )
    assert main([str(everything)]) == 0
    measured = {
        step: found.validation_loss
        for step, found in manifests(everything).items()
        if found.validation_loss is not None
    }
    assert sorted(measured) == [1, 2, 4, 6, 8, 10]
    lines = {
        line["step"]: line.get("validation/loss")
        for line in read_metrics(everything.parent / "metrics.jsonl")
    }
    assert {step: lines[step] for step in measured} == measured
    best = sorted(measured, key=lambda step: measured[step])[:2]
    resolved = run(
        "run",
        *validates,
        "checkpoint.interval=1",
        "checkpoint.keep_latest_k=1",
        "checkpoint.keep_best=2",
    )
    assert main([str(resolved)]) == 0
    assert list(manifests(resolved)) == sorted({*best, 10})


def test_a_run_that_only_loads_goes_on_and_saves_nothing(run: Run) -> None:
    stop_after(run("run", *SAVED), 6)
    resolved = run("run", *SAVED, "checkpoint.load_only=true")
    assert main([str(resolved)]) == 0
    assert list(manifests(resolved)) == [2, 4, 6]
    assert sorted(losses(resolved)) == list(range(1, 11))


def test_a_run_goes_on_from_the_step_asked_for_once(run: Run) -> None:
    uncut = run("uncut", *SAVED)
    assert main([str(uncut)]) == 0
    stop_after(run("run", *SAVED), 8)
    from_4 = run("run", *SAVED, "checkpoint.load_step=4")
    stop_after(from_4, 7)
    assert list(manifests(from_4)) == [2, 4, 6, 7]
    assert len(list((from_4.parent / "checkpoint").glob("step-*.superseded-*"))) == 2
    assert main([str(from_4)]) == 0
    said = (from_4.parent / "logs" / "rank-0.log").read_text()
    assert "resuming after step 7" in said and "resuming after step 4" not in said
    assert losses(from_4) == losses(uncut)
    # what a checkpoint holds starts the run anywhere, where there is no step to go on from
    anew = from_4.parent.parent / "anew" / "resolved.yaml"
    anew.parent.mkdir()
    shutil.copy(from_4.parent / "checkpoint" / "step-10" / "resolved.yaml", anew)
    assert main([str(anew)]) == 0
    assert losses(anew) == losses(uncut)


def test_a_step_that_is_not_there_is_named_with_those_that_are(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(run("run", *SAVED), 6)
    assert main([str(run("run", *SAVED, "checkpoint.load_step=3"))]) == 4
    said = capsys.readouterr().err
    assert "no checkpoint of step 3" in said and "existing steps: 2, 4, 6" in said


@pytest.mark.parametrize(
    ("excluded", "changed"),
    [
        ("[lr_scheduler]", {"lr"}),
        ("[dataloader]", {"loss"}),
        ("[optimizer,lr_scheduler]", {"lr"}),
        ("[train_state]", {"step"}),
    ],
)
def test_what_is_excluded_begins_anew(run: Run, excluded: str, changed: set[str]) -> None:
    uncut = run("uncut", *SAVED)
    assert main([str(uncut)]) == 0
    stop_after(run("run", *SAVED), 5)
    resolved = run("run", *SAVED, f"checkpoint.exclude_from_loading={excluded}")
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    expected = {line["step"]: line for line in read_metrics(uncut.parent / "metrics.jsonl")}
    if "step" in changed:
        assert sorted({line["step"] for line in lines}) == list(range(1, 11))
        assert list(manifests(resolved)) == [2, 4, 6, 8, 10]
        return
    after = next(line for line in lines if line["step"] == 6)
    assert {
        name for name in ("loss", "lr", "tokens_seen") if after[name] != expected[6][name]
    } == changed


def test_what_is_excluded_is_excluded_once(run: Run) -> None:
    stop_after(run("run", *SAVED), 5)
    anew = [*SAVED, "checkpoint.exclude_from_loading=[lr_scheduler]"]
    stop_after(run("run", *anew), 7)
    assert main([str(run("run", *anew))]) == 0
    lines = {
        line["step"]: line["lr"]
        for line in read_metrics(run("run", *anew).parent / "metrics.jsonl")
    }
    # the schedule's first five steps, the second start not beginning a third time
    assert [lines[step] for step in (6, 7, 8, 9, 10)] == [lines[step] for step in (1, 2, 3, 4, 5)]


def test_a_new_run_takes_over_another_runs_whole_state(run: Run) -> None:
    uncut = run("uncut", *SAVED)
    assert main([str(uncut)]) == 0
    takes = f"checkpoint.initial_load_path={uncut.parent / 'checkpoint' / 'step-6'}"
    resolved = run("run", *SAVED, takes, "checkpoint.initial_load_model_only=false")
    assert main([str(resolved)]) == 0
    assert losses(resolved) == {step: loss for step, loss in losses(uncut).items() if step > 6}
    assert list(manifests(resolved)) == [8, 10]


def test_an_empty_folder_does_not_keep_a_run_from_its_initial_weights(run: Run) -> None:
    first = run("first")
    assert main([str(first)]) == 0
    second = run("second", f"checkpoint.initial_load_path={first.parent}")
    (second.parent / "checkpoint").mkdir()
    assert main([str(second)]) == 0
    assert "loaded initial weights" in (second.parent / "logs" / "rank-0.log").read_text()


def test_a_seed_checkpoint_holds_the_first_weights(run: Run) -> None:
    uncut = run("uncut")
    assert main([str(uncut)]) == 0
    seed = run("seed", "checkpoint.create_seed_checkpoint=true")
    assert main([str(seed)]) == 0
    assert {step: found.holds for step, found in manifests(seed).items()} == {0: "model"}
    # another seed would draw other weights, and deal the rows in another order
    resolved = run("seed", "training.dataset.shuffle=false")
    plain = run("plain", "training.dataset.shuffle=false")
    assert main([str(resolved)]) == main([str(plain)]) == 0
    assert losses(resolved) == losses(plain)
    assert (
        "from " + str(seed.parent / "checkpoint" / "step-0")
        in (seed.parent / "logs" / "rank-0.log").read_text()
    )


def test_the_last_weights_have_the_dtype_asked_for(run: Run) -> None:
    resolved = run(
        "run", "checkpoint.last_save_model_only=true", "checkpoint.export_dtype=bfloat16"
    )
    assert main([str(resolved)]) == 0
    assert {text.partition("[")[0] for text in manifests(resolved)[10].tensors.values()} == {
        "bfloat16"
    }
    # nothing to do, and loading them is no mistake
    assert main([str(resolved)]) == 0


@pytest.mark.parametrize("mode", ["async", "async_with_pinned_mem"])
def test_saves_beside_training_hold_the_same_bits(run: Run, mode: str) -> None:
    waiting, beside = run("waiting", *SAVED), run("beside", *SAVED, f"checkpoint.async_mode={mode}")
    assert main([str(waiting)]) == main([str(beside)]) == 0
    expected, found = manifests(waiting), manifests(beside)
    assert list(found) == [2, 4, 6, 8, 10]
    for step, manifest in found.items():
        for name in ("__0_0.distcp", "rng-rank-0.safetensors"):
            assert manifest.files[name] == expected[step].files[name], (step, name)
    assert losses(beside) == losses(waiting)


def test_a_stop_waits_for_the_save_beside_it(run: Run) -> None:
    resolved = run("run", *SAVED, "checkpoint.async_mode=async")
    stop_after(resolved, 5)
    assert list(manifests(resolved)) == [2, 4, 5]


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_save_that_fails_fails_the_run_beside_training_as_well(
    mode: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates, update = [], Engine.optim_step
    monkeypatch.setattr(
        Engine, "optim_step", lambda *given, **named: updates.append(1) or update(*given, **named)
    )
    resolved = run("run", "checkpoint.interval=2", f"checkpoint.async_mode={mode}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # the shards are larger, all other files smaller
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert main([str(resolved)]) == 7
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in (resolved.parent / "logs" / "rank-0.log").read_text()
    # beside training, at least the next step is trained before anybody hears of it
    assert (2 < len(updates) < 10) == (mode == "async") and max(losses(resolved)) < 10
