"""Runs whose checkpoints lie at an address: local:// is the disk as a store, reached through fsspec
as any other, without a rename."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from titanrun.cli import checkpoint as command
from titanrun.cli import fork, resume
from titanrun.components.checkpoints.spec.manifest import list_step_folders, read_manifest
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import (
    check_checkpoints_match_recipe,
    find_parent_checkpoint,
)
from titanrun.recipe.rundir.run_files import read_json_or_empty
from titanrun.worker.commands import checkpoint as worker
from titanrun.worker.rank_main import main

Run = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"local://{tmp_path / 'store' / 'first'}"


def losses(resolved: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]


def saved(store: str) -> list[int]:
    return list(list_step_folders(parse_storage_path(store)))


@pytest.mark.parametrize(
    "mode", ["disabled", "async", pytest.param("async_with_pinned_mem", marks=pytest.mark.slow)]
)
def test_a_run_saves_into_a_store_and_goes_on_from_it(run: Run, store: str, mode: str) -> None:
    uncut = run("uncut", "checkpoint.enable=false")
    settings = (
        f"checkpoint.folder={store}",
        "checkpoint.interval=4",
        f"checkpoint.async_mode={mode}",
    )
    first = run("first", *settings, "training.steps=8", "lr_scheduler.total_steps=10")
    assert main([str(uncut)]) == main([str(first)]) == 0
    assert saved(store) == [4, 8]
    assert not (first.parent / "checkpoint").exists()
    # the machine is lost with its run directory, another one goes on
    shutil.rmtree(first.parent)
    second = run("second", *settings)
    assert main([str(second)]) == 0
    assert losses(second) == losses(uncut)[8:]
    assert saved(store) == [4, 8, 10]


def test_a_damaged_checkpoint_in_a_store_is_set_aside_and_the_one_before_it_taken(
    run: Run, store: str, tmp_path: Path
) -> None:
    resolved = run("run", f"checkpoint.folder={store}", "checkpoint.interval=4")
    assert main([str(resolved)]) == 0
    newest = tmp_path / "store" / "first" / "step-10"
    (newest / "__0_0.distcp").write_bytes(b"something else")
    expected = losses(resolved)
    assert main([str(resolved)]) == 0
    assert losses(resolved) == expected
    names = {
        entry.name.partition("-")[0] + entry.name[4:].partition("-")[2][:10]
        for entry in newest.parent.iterdir()
    }
    assert any("damaged" in name for name in names) and saved(store) == [4, 8, 10]
    assert read_manifest(parse_storage_path(store) / "step-10").step == 10


def test_weights_and_hugging_face_folders_are_read_from_a_store(
    run: Run, store: str, tmp_path: Path
) -> None:
    first = run(
        "first", f"checkpoint.folder={store}", "checkpoint.last_save_in_hf=true", "training.steps=2"
    )
    assert main([str(first)]) == 0
    (first.parent / "hf").rename(tmp_path / "store" / "hf")
    weights = {}
    for name, source in (
        ("own", (store,)),
        ("theirs", (f"local://{tmp_path}/store/hf", "checkpoint.initial_load_in_hf=true")),
    ):
        resolved = run(
            name, f"checkpoint.initial_load_path={source[0]}", *source[1:], "training.steps=2"
        )
        assert main([str(resolved)]) == 0
        weights[name] = losses(resolved)
    assert weights["own"] == weights["theirs"]
    assert find_parent_checkpoint(load_resolved(tmp_path / "own" / "resolved.yaml")) is not None
    assert read_json_or_empty(tmp_path / "own" / "status.json")["state"] == "finished"


def test_the_commands_read_and_prune_a_store(
    run: Run,
    store: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = run("run", f"checkpoint.folder={store}", "checkpoint.interval=4")
    assert main([str(resolved)]) == 0
    capsys.readouterr()
    for named in (store, str(resolved.parent)):
        assert command.run(["ls", named]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
            f"{store}/step-{step}" for step in (4, 8, 10)
        ]
    assert command.run(["show", store, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 10
    assert command.run(["verify", store]) == 0
    assert command.run(["diff", f"{store}/step-4", f"{store}/step-8", "--names"]) == 0
    assert command.run(["prune", store, "--keep", "1"]) == 0
    assert saved(store) == [10]
    job = {
        "do": "export",
        "checkpoint": f"{store}/step-10",
        "out": str(tmp_path / "weights.pt"),
        "format": "torch",
        "merge": False,
        "dtype": None,
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**job, "shard_bytes": 10**9})))
    assert worker.main() == 0
    assert "norm.weight" in torch.load(tmp_path / "weights.pt")
    with pytest.raises(ProblemsFound, match="exports are written to this machine"):
        command.run(["export", store, "s3://bucket/out", "--format", "hf"])


def test_resume_and_fork_from_a_store_and_another_recipe_is_refused(
    run: Run, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = run("first", f"checkpoint.folder={store}", "checkpoint.interval=4")
    assert main([str(first)]) == 0
    recipe, *rest = resume.build_resume_arguments(parse_storage_path(store))
    assert (load_resolved(Path(recipe)).checkpoint.folder, rest) == (store, [])
    assert resume.build_resume_arguments(parse_storage_path(f"{store}/step-4"))[1:] == [
        "checkpoint.load_step=4"
    ]
    copied = tmp_path / "elsewhere" / "step-10"
    shutil.copytree(tmp_path / "store" / "first" / "step-10", copied)
    assert "checkpoint.initial_load_model_only=false" in resume.build_resume_arguments(
        parse_storage_path(f"local://{copied}")
    )
    told = []
    monkeypatch.setattr("titanrun.cli.train.run", lambda arguments: told.append(arguments) or 0)
    assert fork.run([store, "optimizer.lr=1e-4", "checkpoint.folder=checkpoint"]) == 0
    assert (
        f'checkpoint.initial_load_path="{store}/step-10"' in told[0]
        or f"checkpoint.initial_load_path={store}/step-10" in told[0]
    )
    check_checkpoints_match_recipe(
        load_resolved(run("same", f"checkpoint.folder={store}", "checkpoint.interval=4"))
    )
    with pytest.raises(ProblemsFound, match=r"holds checkpoints of another recipe: .*optimizer.lr"):
        check_checkpoints_match_recipe(
            load_resolved(run("other", f"checkpoint.folder={store}", "optimizer.lr=1e-5"))
        )


def test_a_store_that_cannot_be_written_ends_the_run_as_a_disk_does(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    resolved = run("run", f"checkpoint.folder=local://{tmp_path}/file/below", "training.steps=2")
    assert main([str(resolved)]) in (7, 70)
    assert "file/below" in (resolved.parent / "logs" / "rank-0.log").read_text()
