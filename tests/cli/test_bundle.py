"""`titanrun bundle`, and `reproduce` of what it wrote."""

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.runs.run_bundle import unpack_bundle

Run = Callable[..., subprocess.CompletedProcess[str]]
RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
TINY = (
    "training.steps=5",
    "model.n_layers=2",
    "model.dim=32",
    "model.n_heads=4",
    "training.seq_len=32",
    "training.local_batch_size=2",
)


@pytest.fixture
def bundle(tmp_path: Path, titanrun: Run) -> Path:
    """The bundle of a run directory that was written by hand."""
    run = tmp_path / "first"
    run.mkdir()
    git = {"commit": "0" * 40, "dirty": True, "diff": "git-0123456789abcdef.diff"}
    environment = {
        "python": "3.11.7",
        "platform": "Linux",
        "packages": {"torch": "2.13.0", "numpy": "2.3.0"},
        "git": git,
    }
    (run / "run.json").write_text(
        json.dumps(
            {
                "starts": [
                    {"inputs": [{"path": "data.npy", "digest": "abc"}], "environment": environment}
                ]
            }
        )
    )
    for name in ("resolved.yaml", "metrics.jsonl", "git-0123456789abcdef.diff"):
        (run / name).write_text(f"what {name} says\n")
    (run / "checkpoint").mkdir()
    done = titanrun("bundle", "first")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        f"wrote {tmp_path / 'first.zip'}\n",
    )
    return tmp_path / "first.zip"


def test_a_bundle_holds_recipe_record_numbers_lock_and_patch(bundle: Path, titanrun: Run) -> None:
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert files["resolved.yaml"] == "what resolved.yaml says\n" and files[
        "git-0123456789abcdef.diff"
    ].startswith("what git-")
    assert files["environment.txt"].splitlines()[2:] == ["numpy==2.3.0", "torch==2.13.0"]
    assert "git-0123456789abcdef.diff" in files["environment.txt"]
    about = json.loads(files["bundle.json"])
    assert about["inputs"] == [{"path": "data.npy", "digest": "abc"}] and set(
        about["files"]
    ) == set(files) - {"bundle.json"}
    before = bundle.read_bytes()
    again = titanrun("bundle", "first", "-o", "again.zip")
    assert again.returncode == 0 and (bundle.parent / "again.zip").read_bytes() == before
    refused = titanrun("bundle", "first")
    assert refused.returncode == 2 and "exists and is never overwritten" in refused.stderr


def test_a_damaged_bundle_is_refused(bundle: Path, titanrun: Run) -> None:
    whole = bundle.read_bytes()
    for at in range(40, len(whole), max(1, len(whole) // 6)):
        bundle.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        done = titanrun("reproduce", "first.zip")
        assert done.returncode == 2 and "internal" not in done.stderr, done.stderr
    bundle.write_bytes(whole[: len(whole) // 2])
    done = titanrun("reproduce", "first.zip")
    assert done.returncode == 2 and "'first.zip' is not a bundle of a run" in done.stderr


def test_only_a_run_directory_becomes_a_bundle(titanrun: Run, tmp_path: Path) -> None:
    assert "no run in runs/ has the name 'none'" in titanrun("bundle", "none").stderr
    done = titanrun("bundle", ".")
    assert (
        done.returncode == 2
        and "'.' has no resolved.yaml" in done.stderr
        and list(tmp_path.iterdir()) == []
    )


@pytest.mark.slow
def test_a_bundle_is_reproduced_bit_by_bit_in_another_folder(titanrun: Run, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    trained = titanrun(
        "train",
        str(RECIPE),
        *TINY,
        "dump_folder=here/run",
        "lr_scheduler.warmup_steps=2",
        "metrics.log_freq=1",
    )
    assert trained.returncode == 0, trained.stderr
    assert titanrun("bundle", "here/run", "-o", "there/run.zip").returncode == 0
    here.rename(tmp_path / "gone")
    done = titanrun("reproduce", "there/run.zip")
    assert (
        done.returncode == 0 and "equal: 5 logged steps, up to step 5, bit by bit" in done.stdout
    ), done.stderr
    assert [
        path.name.startswith("run-reproduced-") for path in there.iterdir() if path.is_dir()
    ] == [True]
    resolved = next(there.glob("run-reproduced-*/resolved.yaml")).read_text()
    assert "n_layers: 2" in resolved
    different = titanrun("reproduce", "there/run.zip", "--steps", "3", "--out", "again")
    assert different.returncode == 0 and "equal: 3 logged steps" in different.stdout


@pytest.mark.parametrize("name", ["..", ".", "", "../..", "a/..", "/tmp/.."])
def test_a_bundle_names_no_folder_beside_the_one_it_is_unpacked_in(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    """Row B6 of the defect list: what a file names is not trusted."""
    with zipfile.ZipFile(bundle) as archive:
        files = {member: archive.read(member) for member in archive.namelist()}
    about = json.loads(files["bundle.json"])
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        for member, content in files.items():
            is_about = member == "bundle.json"
            archive.writestr(member, json.dumps(about | {"run": name}) if is_about else content)
    unpacked = unpack_bundle(tmp_path / "other.zip", tmp_path / "here")
    assert unpacked == tmp_path / "here" / "run"
    # row B18 of the defect list: what holds a run is for its user only
    assert unpacked.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[" * 100_000, "is not a bundle of a run"),
        ('{"format": 1, "run": "first", "files": 3}', "is not a bundle of a run"),
        ('{"format": 99, "run": "first", "files": {}}', "was written by a newer titanrun"),
        ('{"format": 1, "run": "a\\u0000b", "files": {}}', "files are missing"),
    ],
)
def test_a_bundle_that_was_written_by_something_else_is_a_problem(
    tmp_path: Path, content: str, expected: str
) -> None:
    """Row B13 of the defect list."""
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        archive.writestr("bundle.json", content)
    with pytest.raises(ProblemsFound, match=expected):
        unpack_bundle(tmp_path / "odd.zip", tmp_path / "out")


def test_a_bundle_of_a_run_with_a_nul_in_its_name_is_unpacked(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(files["bundle.json"])
    files["bundle.json"] = json.dumps({**about, "run": "a\0b"}).encode()
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert unpack_bundle(tmp_path / "odd.zip", tmp_path / "out").name == "ab"
