"""The installed script, started as its users start it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / "titanrun"


@pytest.fixture
def titanrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `titanrun WORD ...` in an empty folder."""

    def start(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *words], capture_output=True, text=True, cwd=tmp_path, check=False, **options
        )  # type: ignore[call-overload,no-any-return]

    return start
