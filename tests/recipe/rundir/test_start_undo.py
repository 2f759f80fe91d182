"""What a run was before a start is kept until the start has trained."""

import json
from pathlib import Path
from typing import Any

from titanrun.recipe.rundir.start_undo import accept_start, keep_previous_start, undo_start


def write(folder: Path, recipe: str, state: str, starts: int) -> None:
    (folder / "resolved.yaml").write_text(recipe)
    (folder / "resolved.sources.json").write_text(json.dumps({"of": recipe}))
    (folder / "status.json").write_text(json.dumps({"state": state, "step": 4}))
    record = {"id": "1", "starts": [{"seed": number} for number in range(starts)]}
    (folder / "run.json").write_text(json.dumps({**read(folder), **record}))


def read(folder: Path, name: str = "run.json") -> dict[str, Any]:
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_start_is_undone_once_and_stays_on_record(tmp_path: Path) -> None:
    write(tmp_path, "old", "finished", 1)
    keep_previous_start(tmp_path)
    write(tmp_path, "new", "failed", 2)
    for _ in range(2):
        undo_start(tmp_path)
        assert (tmp_path / "resolved.yaml").read_text() == "old"
        assert read(tmp_path, "resolved.sources.json") == {"of": "old"}
        assert read(tmp_path, "status.json")["state"] == "finished"
        assert read(tmp_path) == {
            "id": "1",
            "starts": [{"seed": 0}],
            "refused_starts": [{"seed": 1}],
        }


def test_starts_that_died_one_after_the_other_are_undone_together(tmp_path: Path) -> None:
    write(tmp_path, "old", "finished", 1)
    for number in (2, 3):
        keep_previous_start(tmp_path)
        write(tmp_path, f"new {number}", "starting", number)
    undo_start(tmp_path)
    assert (tmp_path / "resolved.yaml").read_text() == "old"
    assert read(tmp_path)["refused_starts"] == [{"seed": 1}, {"seed": 2}]


def test_a_run_that_had_failed_keeps_the_state_of_its_last_failure(tmp_path: Path) -> None:
    write(tmp_path, "old", "preempted", 1)
    keep_previous_start(tmp_path)
    write(tmp_path, "new", "failed", 2)
    undo_start(tmp_path)
    assert (tmp_path / "resolved.yaml").read_text() == "old"
    assert read(tmp_path, "status.json")["state"] == "failed"


def test_an_accepted_start_is_not_undone(tmp_path: Path) -> None:
    write(tmp_path, "old", "finished", 1)
    keep_previous_start(tmp_path)
    write(tmp_path, "new", "failed", 2)
    accept_start(tmp_path)
    undo_start(tmp_path)
    assert (tmp_path / "resolved.yaml").read_text() == "new"
    assert len(read(tmp_path)["starts"]) == 2
