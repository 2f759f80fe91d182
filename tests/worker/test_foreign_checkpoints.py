"""A good checkpoint of another run is never resumed. Row B3 of the defect list."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.cli.main import run_and_flush
from titanrun.components.checkpoints.spec.hashed_file import compute_text_xxh3
from titanrun.components.checkpoints.spec.manifest import (
    encode_manifest,
    read_manifest,
    to_canonical_json,
)
from titanrun.recipe.rundir.checkpoint_lookup import select_verified_checkpoint
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
SAVED = ("checkpoint.interval=3", "model.n_layers=1")


def trained(run: Run, folder: str, *overrides: str, run_id: str | None) -> Path:
    """Train a run with an id in run.json, as `titanrun train` writes it."""
    resolved = run(folder, *SAVED, *overrides)
    record = {"format": 1, "name": folder, "parent": None, "starts": [{}]}
    (resolved.parent / "run.json").write_text(
        json.dumps(record if run_id is None else {**record, "id": run_id})
    )
    assert main([str(resolved)]) == 0
    shutil.rmtree(step(resolved, 10))
    return resolved


def step(resolved: Path, number: int) -> Path:
    return resolved.parent / "checkpoint" / f"step-{number}"


def put(source: Path, target: Path) -> None:
    """Put a whole checkpoint in the place of another."""
    shutil.rmtree(target)
    shutil.copytree(source, target)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def log_of(resolved: Path) -> str:
    return (resolved.parent / "logs" / "rank-0.log").read_text()


def test_every_manifest_names_its_run(run: Run) -> None:
    resolved = trained(run, "own", run_id="a" * 32)
    assert {read_manifest(step(resolved, number)).run for number in (3, 6, 9)} == {"a" * 32}


def test_a_checkpoint_of_another_run_ends_the_resume_by_name(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    own = trained(run, "own", run_id="a" * 32)
    other = trained(run, "other", "debug.seed=7", run_id="b" * 32)
    put(step(other, 9), step(own, 9))
    before = content(own.parent / "checkpoint")
    capsys.readouterr()
    assert main([str(own)]) == 4
    said = capsys.readouterr().err
    assert f"{step(own, 9)} belongs to another run" in said
    assert "a" * 32 in said and "b" * 32 in said
    assert "checkpoint.initial_load_path" in said
    assert content(own.parent / "checkpoint") == before
    # other commands do not take it for one of this run either
    assert run_and_flush(["checkpoint", "verify", str(own.parent)]) == 4
    assert "step-9: it belongs to another run" in capsys.readouterr().out
    chosen, passed_over = select_verified_checkpoint(own.parent)
    assert chosen == step(own, 6) and list(passed_over) == [step(own, 9)]
    # the help says what to do
    shutil.rmtree(step(own, 9))
    assert main([str(own)]) == 0
    assert "resuming after step 6" in log_of(own)


def test_a_requested_step_of_another_run_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    own = trained(run, "own", run_id="a" * 32)
    put(step(trained(run, "other", run_id="b" * 32), 6), step(own, 6))
    resolved = run("own", *SAVED, "checkpoint.load_step=6")
    assert main([str(resolved)]) == 4
    assert "step-6 belongs to another run" in capsys.readouterr().err


def test_an_earlier_version_saved_no_id_and_is_resumed(run: Run) -> None:
    own = trained(run, "own", run_id="a" * 32)
    for number in (3, 6, 9):
        forge_without_id(step(own, number))
    assert main([str(own)]) == 0
    assert "resuming after step 9" in log_of(own)
    assert read_manifest(step(own, 10)).run == "a" * 32


def forge_without_id(folder: Path) -> None:
    """Write the manifest as versions without the key `run` wrote it."""
    path = folder / "manifest.json"
    written = json.loads(path.read_text())
    del written["run"], written["digest"]
    path.write_text(
        encode_manifest({**written, "digest": compute_text_xxh3(to_canonical_json(written))})
    )


def test_without_an_id_another_recipe_is_another_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    own = trained(run, "own", run_id="a" * 32)
    other = trained(run, "other", "debug.seed=7", run_id=None)
    assert read_manifest(step(other, 9)).run is None
    put(step(other, 9), step(own, 9))
    assert main([str(own)]) == 4
    said = capsys.readouterr().err
    assert "belongs to a run of another recipe: debug.seed 7 -> 0" in said
    allowed = run("own", *SAVED, "checkpoint.allow_change=[debug.seed]")
    assert main([str(allowed)]) == 0


def test_another_run_is_a_start_where_the_recipe_names_it(run: Run) -> None:
    other = trained(run, "other", "debug.seed=7", run_id="b" * 32)
    fork = run(
        "fork",
        *SAVED,
        f"checkpoint.initial_load_path={step(other, 9)}",
        "checkpoint.initial_load_model_only=false",
    )
    (fork.parent / "run.json").write_text(json.dumps({"format": 1, "id": "c" * 32, "starts": []}))
    assert main([str(fork)]) == 0
    assert read_manifest(step(fork, 10)).run == "c" * 32
