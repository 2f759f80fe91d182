"""Pages that list files and variables: they name all that the program has, and no others."""

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from titanrun.config.types import RESERVED_RUN_NAMES
from titanrun.recipe.rundir.run_files import EXPERT_LOADS, LOCK, OPENING, PREVIOUS
from titanrun.recipe.schemas.all_schemas import SCHEMAS
from tools.copy_pages import ROOT, find_pages

DOCS = ROOT / "docs"
HEADER = re.compile(r"^(\|.*\|)\n\|(?:\s*:?-+:?\s*\|)+$", re.MULTILINE)
# between a launcher and its processes
INTERNAL = {
    "TITANRUN_FAILURE_FILE",
    "TITANRUN_FAILURE_FOLDER",
    "TITANRUN_GROUP",
    "TITANRUN_LAUNCHER",
    "TITANRUN_LIFELINE",
    "TITANRUN_LIGHTHOUSE",
    "TITANRUN_MOVED",
    "TITANRUN_PLUGIN_FILES",
    "TITANRUN_QUIET",
    "TITANRUN_STOP_AFTER",
    "TITANRUN_STORE_SOCKET",
    "TITANRUN_TRUST",
}


def read_first_cells(page: str) -> list[str]:
    """Return the names in the first column of all tables of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def find_variables() -> set[str]:
    """Return the variables of titanrun that its source names as a text of their own."""
    source = "\n".join(path.read_text() for path in (ROOT / "titanrun").rglob("*.py"))
    return set(re.findall(r'"(TITANRUN_[A-Z_]*[A-Z])"', source))


def test_the_run_directory_page_names_every_reserved_file() -> None:
    names = {name.rstrip("/") for name in read_first_cells("run_directory.md")}
    folders = {name.partition("/")[0] for name in names}
    assert (RESERVED_RUN_NAMES | {EXPERT_LOADS, LOCK, OPENING, PREVIOUS}) - folders == set()


def test_the_page_of_schemas_names_each_of_them() -> None:
    assert read_first_cells("json_schemas.md") == list(SCHEMAS)


@pytest.mark.slow
def test_a_run_writes_only_files_that_the_page_names(tmp_path: Path) -> None:
    settings = [
        "training.steps=4",
        "lr_scheduler.warmup_steps=2",
        "metrics.save_for_all_ranks=true",
    ]
    settings += ["checkpoint.interval=2", "validation.enable=false", f"dump_folder={tmp_path}/run"]
    command = [sys.executable, "-m", "titanrun", "train", "llama3_debug", *settings]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    patterns = [
        re.sub(r"-N\b", "-*", name) + ("*" if name.endswith("/") else "")
        for name in read_first_cells("run_directory.md")
    ]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    names = [path.relative_to(tmp_path / "run").as_posix() for path in files]
    assert "checkpoint/step-4/resolved.yaml" in names
    assert [name for name in names if not any(fnmatch(name, known) for known in patterns)] == []


def test_every_variable_of_titanrun_is_documented_or_internal() -> None:
    listed = {name.partition("=")[0] for name in read_first_cells("environment_variables.md")}
    assert find_variables() - INTERNAL - listed == set()
    assert INTERNAL - find_variables() == set()


def test_every_documented_variable_is_one_that_the_source_names() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "titanrun").rglob("*.py"))
    listed = {name.partition("=")[0] for name in read_first_cells("environment_variables.md")}
    assert len(listed) > 15
    assert {name for name in listed if name not in source} == set()


def test_no_column_of_a_table_lacks_a_name() -> None:
    """Screen readers read the names of columns; axe reports empty ones."""
    nameless = []
    for page in (ROOT / source for source in find_pages() if source.endswith(".md")):
        for header in HEADER.findall(page.read_text(encoding="utf-8")):
            if not all(cell.strip() for cell in re.split(r"(?<!\\)\|", header)[1:-1]):
                nameless.append(f"{page.name}: {header}")
    assert nameless == []
