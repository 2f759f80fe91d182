import hashlib
import json
from pathlib import Path

import pytest

from tests.recipe.rundir.test_run_directory import (
    NOW,
    begin,
    in_empty_folder,  # noqa: F401 (an automatic fixture)
    resolved,
)
from titanrun.components.checkpoints.spec.manifest import Manifest, format_manifest
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory
from titanrun.recipe.rundir.run_identity import RunIdentity, read_run_id


def save(folder: Path, step: int, run: str | None, recipe: str = "x", text: str = "") -> Path:
    """Write a manifest without tensors, and a resolved recipe."""
    made = folder / f"step-{step}"
    made.mkdir(parents=True)
    manifest = Manifest(
        step=step,
        holds="everything",
        layout={"ranks": 1},
        versions={},
        recipe=recipe,
        saved_at="",
        tensors={},
        files={},
        run=run,
    )
    (made / "manifest.json").write_text(format_manifest(manifest))
    (made / "resolved.yaml").write_text(text)
    return made


def start(folder: Path) -> str | None:
    run = resolved(f"dump_folder={folder}")
    directory = select_run_directory(run, NOW)
    write_run_directory(directory, run, ["titanrun", "train"], NOW, environment={})
    return read_run_id(directory.path)


def test_a_run_keeps_its_id_over_all_starts_and_no_two_runs_share_one() -> None:
    first = start(Path("first"))
    assert first is not None and len(first) == 32
    assert start(Path("first")) == first
    assert start(Path("second")) != first


def test_a_run_of_an_earlier_version_gets_an_id_at_its_next_start() -> None:
    path = begin(saved=None)
    record = json.loads((path / "run.json").read_text())
    del record["id"]
    (path / "run.json").write_text(json.dumps(record))
    save(path / "checkpoint", 9, "b" * 32)
    assert start(path) not in (None, "b" * 32)


@pytest.mark.parametrize("lost", ["missing", "no JSON", "a list"])
def test_a_run_whose_run_json_is_lost_is_the_one_that_saved_its_checkpoints(lost: str) -> None:
    path = begin(saved=None)
    (path / "run.json").unlink()
    if lost != "missing":
        (path / "run.json").write_text("{" if lost == "no JSON" else "[]")
    save(path / "checkpoint", 3, None)
    save(path / "checkpoint", 9, "b" * 32)
    assert start(path) == "b" * 32


def test_a_recipe_that_cannot_be_read_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = save(tmp_path, 9, None, text="no: recipe\n")
    RunIdentity("a" * 32, resolved().text).check_owner(checkpoint)
    assert "cannot be compared with this run" in caplog.text


def test_an_equal_recipe_hash_needs_no_recipe(tmp_path: Path) -> None:
    text = resolved().text
    checkpoint = save(tmp_path, 9, None, hashlib.sha256(text.encode()).hexdigest())
    RunIdentity("a" * 32, text).check_owner(checkpoint)


def test_the_seed_checkpoint_of_another_run_is_refused_and_one_without_an_id_is_not(
    tmp_path: Path,
) -> None:
    owner = RunIdentity("a" * 32, resolved().text)
    owner.check_owner(save(tmp_path / "old", 0, None, text=resolved("debug.seed=3").text))
    with pytest.raises(ProblemsFound, match="belongs to another run"):
        owner.check_owner(save(tmp_path / "other", 0, "b" * 32))


def test_at_a_storage_url_the_recipe_decides(tmp_path: Path) -> None:
    owner = RunIdentity("a" * 32, resolved().text)
    own_recipe = save(tmp_path, 3, "b" * 32, text=resolved("checkpoint.keep_latest_k=3").text)
    owner.check_owner(parse_storage_path(f"local://{own_recipe}"))
    other_recipe = save(tmp_path, 6, "b" * 32, text=resolved("debug.seed=3").text)
    with pytest.raises(ProblemsFound, match="a run of another recipe"):
        owner.check_owner(parse_storage_path(f"local://{other_recipe}"))
