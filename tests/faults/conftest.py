"""The fault matrix: a tiny run, a run that nothing happened to, and what each row gave, kept with
commit and date."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.processes import work
from tests.worker.conftest import write_run, write_tokens
from titanrun.components.checkpoints.spec.manifest import read_manifest

RESULTS = Path(__file__).with_name("results.json")
STEPS = 10
# the tiny run saves after steps 3, 6, 9 and 10
EVERY_3 = ("checkpoint.interval=3", "model.n_layers=1")

Run = Callable[..., Path]
Note = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, shared_tokens: Path) -> Run:
    """Writes resolved.yaml of the tiny recipe with overrides into a new run directory, and gives
    its path."""
    return lambda folder="run", *overrides: write_run(
        tmp_path, shared_tokens, folder, *EVERY_3, *overrides
    )


@pytest.fixture(scope="session")
def shared_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of every run."""
    return write_tokens(tmp_path_factory.mktemp("data") / "tokens.npy")


@pytest.fixture(scope="session")
def uncut(tmp_path_factory: pytest.TempPathFactory, shared_tokens: Path) -> Path:
    """A run that nothing happened to."""
    resolved = write_run(tmp_path_factory.mktemp("uncut"), shared_tokens, "run", *EVERY_3)
    assert work(resolved) == 0
    return resolved


def digests(resolved: Path, step: int = STEPS) -> dict[str, str]:
    """The digests of everything a checkpoint holds but the recipe: tensors, state, random
    numbers."""
    files = read_manifest(resolved.parent / "checkpoint" / f"step-{step}").files
    return {
        name: entry.xxh3_128
        for name, entry in files.items()
        if name not in ("resolved.yaml", ".metadata")
    }


def said(resolved: Path) -> str:
    """All that the workers of a run said."""
    return (resolved.parent / "said.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def tested_commit() -> str:
    """The commit that is tested, marked where files differ from it: all but the results, which the
    tests write themselves."""
    commit, changed = (
        git("rev-parse", "--short=10", "HEAD"),
        git("status", "--porcelain", "--", ":/", f":(exclude){RESULTS.name}"),
    )
    return f"{commit}-dirty" if changed else commit


def git(*arguments: str) -> str:
    """What git says; nothing where this is no clone."""
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=RESULTS.parent
    ).stdout.strip()


@pytest.fixture
def note(request: pytest.FixtureRequest, tested_commit: str) -> Iterator[Note]:
    """Keeps what a row gave, once its test has passed: `note(row, injected=..., outcome=...,
    lost=...)`."""
    noted: dict[str, dict[str, str]] = {}
    yield lambda row, **cells: noted.__setitem__(str(row), cells)
    if noted and os.environ.get("TITANRUN_WRITE_FAULTS"):
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        stamp = {
            "commit": tested_commit,
            "date": datetime.now(UTC).date().isoformat(),
            "test": request.node.name.partition("[")[0],
        }
        results |= {row: {**cells, **stamp} for row, cells in noted.items()}
        in_order = sorted(results.items(), key=lambda item: (int(item[0].rstrip("b")), item[0]))
        text = json.dumps(dict(in_order), indent=1, ensure_ascii=False)
        RESULTS.write_text(text + "\n", encoding="utf-8")
