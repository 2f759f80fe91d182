"""The README: its commands run, its recipes validate, its output and its figures are real."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from titanrun.cli.migrate import SOURCE_PROGRAMS
from titanrun.config.registry import load_choices
from titanrun.rl.algorithms.config import AlgorithmConfig

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


def test_it_names_every_program_that_migrate_reads() -> None:
    section = README.partition("## Coming from another tool")[2].partition("\n## ")[0]
    assert re.findall(r"migration_(\w+)\.md", section) == list(SOURCE_PROGRAMS)


def test_it_names_algorithms_that_there_are_and_counts_the_others() -> None:
    row = r"^\| \[Reinforcement learning\]\(.*?\) \| ([\w, ]+) and (\w+) more"
    (named,) = re.findall(row, README, re.MULTILINE)
    algorithms = load_choices(AlgorithmConfig)
    names = [name.lower() for name in named[0].split(", ")]
    assert set(names) <= algorithms.keys()
    assert named[1] == {6: "six", 7: "seven", 8: "eight"}[len(algorithms) - len(names)]


def test_every_area_leads_to_a_page() -> None:
    table = README.partition("## What is in it")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    assert [row for row in rows if not row.startswith("| [")] == []


def test_the_installation_page_lists_every_extra() -> None:
    section = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2]
    named = set(re.findall(r"`([a-z0-9-]+)`", section.partition("`titanrun doctor`")[0]))
    for file in ("pyproject.toml", "packages/titanrun/pyproject.toml"):
        extras = tomllib.loads((ROOT / file).read_text())["project"]["optional-dependencies"]
        assert set(extras) <= named
