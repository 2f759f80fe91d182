"""Something else has the name of a file or folder that a run writes. Rows B12 and B13 of the
defect list."""

from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.worker.rank_main import main

Run = Callable[..., Path]
TINY = ("model.n_layers=1", "training.steps=3", "lr_scheduler.total_steps=3")


@pytest.mark.parametrize(
    ("name", "kind", "code", "expected"),
    [
        ("metrics.jsonl", "folder", 2, "'{path}' is a folder, but the metrics of the run"),
        ("logs", "file", 2, "cannot write {path}/rank-0.log"),
        ("logs/rank-0.log", "folder", 2, "cannot write {path}: is a directory"),
        ("checkpoint", "file", 4, "{path} is not a folder"),
        ("checkpoint", "link to nothing", 4, "{path} is not a folder"),
    ],
)
def test_a_name_that_is_taken_is_a_problem(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, kind: str, code: int, expected: str
) -> None:
    resolved = run("run", *TINY)
    path = resolved.parent / name
    occupy(path, kind)
    assert main([str(resolved)]) == code
    said = capsys.readouterr().err
    assert expected.format(path=path) in said
    assert "internal" not in said


def occupy(path: Path, kind: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("notes")
    else:
        path.symlink_to(path.parent / "gone")


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_a_step_folder_that_is_taken_costs_no_save(run: Run, kind: str) -> None:
    resolved = run("run", *TINY)
    occupy(resolved.parent / "checkpoint" / "step-3", kind)
    assert main([str(resolved)]) == 0
    names = sorted(path.name for path in (resolved.parent / "checkpoint").iterdir())
    assert names[0] == "step-3" and names[1].startswith("step-3.occupied-") and len(names) == 2
    assert main([str(resolved)]) == 0


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_an_export_whose_name_is_taken_is_written(run: Run, kind: str) -> None:
    resolved = run("run", *TINY, "checkpoint.last_save_in_hf=true")
    occupy(resolved.parent / "hf", kind)
    assert main([str(resolved)]) == 0
    assert (resolved.parent / "hf" / "model.safetensors").is_file()
    (aside,) = resolved.parent.glob("hf.occupied-*")
    assert aside.is_symlink() or aside.read_text() == "notes"
