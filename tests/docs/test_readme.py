"""The README: its commands run, its recipes validate, its output and its figures are real."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
[RECIPE] = [text for kind, text in BLOCKS if kind == "yaml"]
[MISTAKE] = [text for kind, text in BLOCKS if kind == "console"]
NEEDS_TRAINING = ("make", "titanrun train", "titanrun runs")


def run_shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run lines as a shell does that stops at the first error."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    # a registry or a proxy that this machine needs
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "PYENV_", "http"))}
    environment = {"PATH": path, "HOME": str(folder), "TERM": "dumb", "COLUMNS": "100", **kept}
    return subprocess.run(
        ["sh", "-euc", script],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_one_page() -> None:
    assert len(README.splitlines()) <= 125
    assert {kind for kind, _ in BLOCKS} == {"sh", "yaml", "console"}


def test_commands_that_do_not_train_run(tmp_path: Path) -> None:
    (tmp_path / "assistant.yaml").write_text(RECIPE)
    lines = [line for block in SHELL for line in block.splitlines()]
    quick = [line for line in lines if not line.startswith(NEEDS_TRAINING)]
    assert len(quick) == 4
    ran = run_shell("\n".join(quick), tmp_path, PYTHONPATH=str(ROOT))
    assert ran.returncode == 0, ran.stderr
    assert "mine.yaml: ok" in ran.stderr
    assert "assistant.yaml:8:21" in ran.stdout
    assert "of 78.00 GiB: fits" in ran.stdout


def test_the_mistake_is_reported_as_shown(tmp_path: Path) -> None:
    wrong = RECIPE.replace("  local_batch_size: 2", "  batch_size: 2")
    (tmp_path / "assistant.yaml").write_text(wrong)
    command, _, output = MISTAKE.partition("\n")
    ran = run_shell(command.removeprefix("$ "), tmp_path, PYTHONPATH=str(ROOT))
    assert (ran.returncode, ran.stdout + ran.stderr) == (2, output)


def test_figures_are_rows_of_the_benchmarks() -> None:
    table = README.partition("## Measured")[2].partition("\n## ")[0]
    figures = re.findall(r"\| ([\d.]+)(?: s)? \|$", table, re.MULTILINE)
    assert len(figures) == 4
    benchmarks = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [figure for figure in figures if not re.search(rf"\| {figure}\b", benchmarks)] == []


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_fresh_clone_trains(tmp_path: Path) -> None:
    """Installs from the registry, with an empty home and a short PATH."""
    python = Path(shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable)
    path = f"{python.parent}:/usr/bin:/bin"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    install, train, *_ = SHELL
    home = tmp_path / "home"
    home.mkdir()
    script = f"{install}. .venv/bin/activate\n{train}"
    ran = run_shell(script, tmp_path / "clone", PATH=path, HOME=str(home))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("finished: ") == 2, ran.stderr
    assert re.search(r"finished +80/80", ran.stdout), ran.stdout
    assert re.search(r"finished +40/40", ran.stdout), ran.stdout
