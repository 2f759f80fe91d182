import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.engine import Engine
from titanrun.worker.problem_origins import find_end_column, find_source_entry
from titanrun.worker.rank_main import main

Run = Callable[..., Path]


def status(resolved: Path) -> dict[str, object]:
    return json.loads((resolved.parent / "status.json").read_text())


def losses(resolved: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]


def checkpoints(resolved: Path) -> list[str]:
    return sorted(entry.name for entry in (resolved.parent / "checkpoint").iterdir())


def test_a_run_learns_and_leaves_its_files(run: Run) -> None:
    resolved = run()
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert lines[-1]["tokens_seen"] == 10 * 4 * 16
    assert {"grad_norm", "lr", "tps", "memory_gib"} <= lines[0].keys()
    assert checkpoints(resolved) == ["step-10"]
    assert (
        resolved.parent / "checkpoint" / "step-10" / "resolved.yaml"
    ).read_bytes() == resolved.read_bytes()
    written = status(resolved)
    assert (written["state"], written["step"], written["exit_code"], written["pid"]) == (
        "finished",
        10,
        0,
        os.getpid(),
    )
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    assert "step 10  loss" in log
    assert "finished: 10 steps" in log


def test_steps_that_are_logged_are_the_first_every_nth_and_the_last(run: Run) -> None:
    resolved = run("run", "metrics.log_freq=4", "checkpoint.enable=false")
    assert main([str(resolved)]) == 0
    assert [line["step"] for line in read_metrics(resolved.parent / "metrics.jsonl")] == [
        1,
        4,
        8,
        10,
    ]
    assert not (resolved.parent / "checkpoint").exists()


def test_a_run_without_checkpoints_says_so_at_both_ends(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "nothing is saved (checkpoint.enable: false)"
    assert main([str(run("one"))]) == 0
    assert said not in capsys.readouterr().err
    assert main([str(run("other", "checkpoint.enable=false"))]) == 0
    assert capsys.readouterr().err.count(said) == 2


def test_the_same_recipe_gives_the_same_losses_bit_for_bit(run: Run) -> None:
    assert main([str(run("one"))]) == main([str(run("other"))]) == 0
    assert losses(run("one")) == losses(run("other"))


def test_another_seed_gives_other_losses(run: Run) -> None:
    assert main([str(run("one"))]) == main([str(run("other", "debug.seed=1"))]) == 0
    assert losses(run("one"))[0] != losses(run("other", "debug.seed=1"))[0]


def test_a_finished_run_has_nothing_to_do(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    resolved = run()
    main([str(resolved)])
    before = (resolved.parent / "metrics.jsonl").read_bytes()
    assert main([str(resolved)]) == 0
    assert "nothing to do: step 10 of 10" in capsys.readouterr().err
    assert (resolved.parent / "metrics.jsonl").read_bytes() == before
    assert checkpoints(resolved) == ["step-10"]


def test_more_steps_go_on_from_the_end(run: Run) -> None:
    main([str(run())])
    # the horizon of the schedule stays, as it does not where total_steps follows training.steps
    assert main([str(run("run", "training.steps=12", "lr_scheduler.total_steps=12"))]) == 0
    assert [line["step"] for line in read_metrics(run().parent / "metrics.jsonl")] == list(
        range(1, 13)
    )
    assert checkpoints(run()) == ["step-10", "step-12"]


def test_nothing_of_a_run_that_is_no_number_is_saved(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "optimizer.lr=1e38", "checkpoint.interval=1")
    assert main([str(resolved)]) == 5
    error = capsys.readouterr().err
    assert "error[non-finite]: " in error
    assert "is not finite at step 1, and the checkpoint was saved for inspection as" in error
    assert "Traceback" not in error
    assert checkpoints(resolved) == ["non-finite"]
    assert all(np.isfinite(losses(resolved)))
    assert (status(resolved)["state"], status(resolved)["exit_code"]) == ("failed", 5)


def test_data_that_runs_out_ends_the_run_with_a_checkpoint(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "training.dataset.repeat=false", "metrics.log_freq=5")
    assert main([str(resolved)]) == 0
    assert "the data ran out after step 7 of 10" in capsys.readouterr().err
    assert [line["step"] for line in read_metrics(resolved.parent / "metrics.jsonl")] == [1, 5, 7]
    assert checkpoints(resolved) == ["step-7"]
    assert status(resolved)["state"] == "finished"
    assert main([str(resolved)]) == 0
    assert checkpoints(resolved) == ["step-7"]


def test_weights_alone_are_no_place_to_go_on_from(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    short = run("run", "checkpoint.last_save_model_only=true")
    assert main([str(short)]) == 0
    assert main([str(short)]) == 0
    longer = run("run", "checkpoint.last_save_model_only=true", "training.steps=12")
    assert main([str(longer)]) == 4
    assert "has weights only and cannot be resumed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (["model.vocab_size=63"], 3, "token id 63"),
        (["training.seq_len=15"], 3, "seq_len 15 needs 16"),
        (
            ["training.dataset.repeat=false", "training.global_batch_size=32"],
            3,
            "one global batch needs 32",
        ),
        (["tokenizer=tiny"], 2, "the tokenizer has 2,048 entries, but model.vocab_size is 64"),
        (
            ["checkpoint.initial_load_path=nowhere"],
            4,
            "nowhere is neither a checkpoint nor a run directory",
        ),
        (
            ["checkpoint.initial_load_path=nowhere", "checkpoint.initial_load_in_hf=true"],
            4,
            "folder not found: nowhere",
        ),
    ],
)
def test_what_cannot_train_is_one_problem(
    run: Run, capsys: pytest.CaptureFixture[str], overrides: list[str], code: int, words: str
) -> None:
    resolved = run("run", *overrides)
    assert main([str(resolved)]) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("error[") == 1
    assert "Traceback" not in error


def test_an_internal_fault_is_one_line_and_its_traceback_a_file(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = run()

    def fault(*_: object, **__: object) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(Engine, "forward_backward", fault)
    assert main([str(resolved)]) == 70
    error = capsys.readouterr().err
    assert "error[internal]: LookupError" in error
    assert "Traceback" not in error
    assert "Traceback" in (resolved.parent / "logs" / "internal-error.txt").read_text()
    assert status(resolved)["state"] == "failed"


def test_a_broken_resolved_recipe_is_a_problem(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run()
    resolved.write_text(resolved.read_text().replace("steps: 10", "stepps: 10", 1))
    assert main([str(resolved)]) == 2
    assert "stepps" in capsys.readouterr().err


def test_a_worker_needs_one_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([]) == main([str(tmp_path / "no.yaml")]) == main(["a", "b"]) == 2
    assert "usage: " in capsys.readouterr().err


def test_deterministic_mode_changes_no_bit_on_a_cpu(run: Run) -> None:
    assert main([str(run("plain"))]) == 0
    try:
        assert main([str(run("deterministic", "debug.deterministic=true"))]) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses(run("deterministic")) == losses(run("plain"))


def test_the_run_record_says_what_the_machine_decided(run: Run) -> None:
    resolved = run()
    assert main([str(resolved)]) == 0
    decided = json.loads((resolved.parent / "run.json").read_text())["starts"][-1]["decided"]
    assert decided == {
        "device": "cpu",
        "device_name": "cpu",
        "ranks": 1,
        "data_parallel_shard_degree": 1,
        "steps": 10,
    }


def test_a_rank_that_nobody_can_meet_is_a_problem(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([str(run())]) == 2
    assert "rank 1 of 2 cannot reach the other ranks" in capsys.readouterr().err


def test_degrees_that_do_not_fill_the_ranks_are_a_problem(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = run().parent.parent / "recipe.yaml"
    resolved = run()
    resolved.write_text(
        resolve_recipe(
            str(recipe), ["parallelism.data_parallel_shard_degree=2"], environment={}, ranks=2
        ).text
    )
    assert main([str(resolved)]) == 2
    assert (
        "1 process was started, but the degrees of parallelism need another number"
        in capsys.readouterr().err
    )


def test_signals_are_given_back_after_a_run(run: Run) -> None:
    before = signal.getsignal(signal.SIGTERM)
    main([str(run())])
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_end_of_the_data_is_validated_and_logged_as_a_last_step(run: Run, tokens: Path) -> None:
    held_out = f"validation.dataset={{name: tokens, path: {tokens}}}"
    ends = [
        "validation.enable=true",
        "validation.freq=5",
        held_out,
        "training.dataset.repeat=false",
    ]
    resolved = run("run", *ends, "checkpoint.interval=1", "checkpoint.last_save_model_only=true")
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert "validation/loss" in lines[-1]
    assert (
        json.loads((resolved.parent / "checkpoint" / "step-7" / "manifest.json").read_text())[
            "holds"
        ]
        == "model"
    )


def test_a_start_that_fails_keeps_the_step_of_the_one_before(run: Run, tokens: Path) -> None:
    main([str(run())])
    np.save(tokens, np.load(tokens)[::-1])
    assert main([str(run("run", "training.steps=12"))]) == 3
    assert (status(run())["state"], status(run())["step"]) == ("failed", 10)


def test_a_problem_of_a_worker_stands_at_its_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "model.vocab_size=63")
    sources = {
        "training.dataset.path": {
            "source": "file",
            "file": str(tmp_path / "recipe.yaml"),
            "line": 13,
            "column": 33,
        }
    }
    (resolved.parent / "resolved.sources.json").write_text(json.dumps({"values": sources}))
    assert main([str(resolved)]) == 3
    error = capsys.readouterr().err
    assert f"--> {tmp_path / 'recipe.yaml'}:13:33  (training.dataset" in error
    assert "13 |   dataset: {name: tokens, path: " in error
    value = (
        (tmp_path / "recipe.yaml").read_text().splitlines()[12][32:].partition(",")[0].rstrip("}")
    )
    assert f" {'^' * len(value)} help: set model.vocab_size" in error
    assert "\n\n" not in error


def test_a_problem_whose_recipe_has_changed_marks_a_character(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("version: 1\nseed: 42\n")
    assert find_end_column(recipe, 2, 7) == 9
    assert find_end_column(recipe, 2, 8) == 9
    recipe.write_text("version: [")
    assert find_end_column(recipe, 2, 7) == 8
    assert find_end_column(tmp_path / "gone.yaml", 2, 7) == 8


def test_a_problem_of_a_default_stands_at_its_section() -> None:
    entry = {"source": "file", "file": "nowhere.yaml", "line": 3, "column": 7}
    values = {
        "training.dataset.too_long": {"source": "default"},
        "training.dataset.path": entry,
        "training.steps": {**entry, "line": 2},
    }
    paths = (
        ("training", "dataset", "too_long"),
        ("training", "dataset"),
        ("training", "dataset", "path", 0),
        ("model", "dim"),
        ("name",),
    )
    assert [find_source_entry(path, values) for path in paths] == [entry, entry, entry, None, None]


def test_the_log_begins_with_the_recipe_where_that_is_wanted(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run("plain", "training.steps=2"))]) == 0
    assert "version: 1" not in capsys.readouterr().err
    resolved = run("printed", "training.steps=2", "debug.print_config=true")
    assert main([str(resolved)]) == 0
    assert resolved.read_text() in capsys.readouterr().err
    assert resolved.read_text() in (resolved.parent / "logs" / "rank-0.log").read_text()


def test_the_log_shows_the_modules_where_that_is_wanted(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run("plain", "training.steps=2"))]) == 0
    assert "(wq): Linear(" not in capsys.readouterr().err
    assert main([str(run("printed", "training.steps=2", "model.print_after_conversion=true"))]) == 0
    assert "(wq): Linear(" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:Error detected in")
def test_an_anomaly_is_found_in_the_operation_that_gave_it(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "optimizer.lr=1e38", "debug.detect_anomaly=true")
    assert main([str(resolved)]) == 5
    error = capsys.readouterr().err
    assert "error[non-finite]: Function '" in error
    assert "Traceback of forward call that caused the error" in error
    assert not torch.is_anomaly_enabled()
