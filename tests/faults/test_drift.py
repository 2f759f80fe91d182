"""Row 16: a run goes on with another recipe than it began with."""

import shutil
from datetime import datetime
from pathlib import Path

import pytest

from tests.faults.conftest import Note
from tests.worker.conftest import RECIPE
from titanrun.cli.main import run_and_flush
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory

CHANGES = {
    "optimizer.lr": ("0.5", "0.01 -> 0.5"),
    "model.dim": ("64", "32 -> 64"),
    "debug.seed": ("7", "0 -> 7"),
    "training.dataset.path": ("other.npy", "tokens.npy' -> '"),
}


def begun(recipe: Path, folder: Path, checkpoints: Path) -> None:
    """A run directory as `titanrun train` opens it, with the checkpoints of a run."""
    resolved = resolve_recipe(str(recipe), [f"dump_folder={folder}"], environment={})
    now = datetime(2026, 11, 21)
    write_run_directory(
        select_run_directory(resolved, now), resolved, ["titanrun", "train"], now, environment={}
    )
    shutil.copytree(checkpoints, folder / "checkpoint")


def test_row_16_each_changed_key_is_named_and_refused(
    tmp_path: Path, shared_tokens: Path, uncut: Path, capsys: pytest.CaptureFixture[str], note: Note
) -> None:
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(RECIPE % shared_tokens)
    shutil.copy(shared_tokens, tmp_path / "other.npy")
    begun(recipe, folder, uncut.parent / "checkpoint")
    before = (folder / "resolved.yaml").read_bytes()
    for path, (value, shown) in CHANGES.items():
        value = str(tmp_path / value) if path.endswith("path") else value
        assert (
            run_and_flush(["train", str(recipe), f"dump_folder={folder}", f"{path}={value}"]) == 2
        )
        error = capsys.readouterr().err
        assert "holds a run of another recipe: " in error
        assert f"{path} " in error and shown in error
        assert "list the intended ones in checkpoint.allow_change" in error
    assert (folder / "resolved.yaml").read_bytes() == before
    injected = "learning rate, model.dim, seed, data changed before the next start"
    note(
        16,
        injected=injected,
        outcome="exit 2, each key with both values; only what checkpoint.allow_change names "
        "may change",
        lost="nothing",
    )
