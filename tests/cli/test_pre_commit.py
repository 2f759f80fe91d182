"""The hooks for pre-commit, run by pre-commit itself in another repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = "version: 1\nextends: [shipped:llama3_debug.yaml]\ntraining:\n  steps: 50\n"
BAD = GOOD.replace("steps", "stepz")


@pytest.mark.slow
def test_the_hooks_report_recipes_and_leave_other_files_alone(tmp_path: Path) -> None:
    repository = tmp_path / "project"
    (repository / "recipes" / "parts").mkdir(parents=True)
    (repository / "recipes" / "mine.yaml").write_text(GOOD)
    (repository / "recipes" / "parts" / "half.yaml").write_text("training: {stepz: 5}\n")
    (repository / "other.yaml").write_text("stepz: 5\n")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(tmp_path / "cache"),
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, check=False
        )

    def run_hook(hook: str) -> subprocess.CompletedProcess[str]:
        assert run("git", "add", ".").returncode == 0
        return run("pre-commit", "try-repo", str(ROOT), hook, "--all-files")

    assert run("git", "init", "--quiet").returncode == 0
    for hook in ("titanrun-validate", "titanrun-migrate-check"):
        passed = run_hook(hook)
        assert passed.returncode == 0, passed.stdout + passed.stderr
        assert "Passed" in passed.stdout
    (repository / "recipes" / "mine.yaml").write_text(BAD)
    failed = run_hook("titanrun-validate")
    assert failed.returncode == 1
    assert "recipes/mine.yaml:4:3" in failed.stdout and "did you mean 'steps'" in failed.stdout
    assert failed.stdout.count("error[") == 1
    (repository / "recipes" / "mine.yaml").write_text(GOOD.replace("version: 1", "version: 2"))
    old = run_hook("titanrun-migrate-check")
    assert old.returncode == 1
    assert "recipes/mine.yaml:1:10" in old.stdout and "this recipe has version 2" in old.stdout
