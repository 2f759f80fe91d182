"""A run that an older version left at half its steps is resumed, and ends as it ended then.

Each folder holds a recipe, its data, the run with the checkpoint of its middle, and in
expected.json what the uninterrupted run of that version measured. docs/releasing.md says when a
folder is added; before the release of its version, a folder may be made again.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.config.version import VERSION

ROOT = Path(__file__).parents[2]
RELEASES = sorted(path for path in Path(__file__).parent.iterdir() if (path / "run").is_dir())
# other processors and versions of torch sum in another order
TOLERANCE = 1e-4


def run_titanrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_this_version_has_a_checkpoint() -> None:
    minor = VERSION.rpartition(".")[0]
    assert any(path.name.startswith(f"{minor}.") for path in RELEASES)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_run_of_a_release_is_resumed_and_ends_as_it_did(release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(release, folder)
    expected = json.loads((folder / "expected.json").read_text())
    done = run_titanrun(folder, "train", "recipe.yaml", "dump_folder=run")
    assert done.returncode == 0, done.stderr
    assert "resuming after step 4 from run/checkpoint/step-4" in done.stderr
    metrics = (folder / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, wanted in zip(rows[4:], expected[4:], strict=True):
        assert {key: row[key] for key in wanted} == pytest.approx(wanted, rel=TOLERANCE)
