"""What tools/check_names.py finds, and that it finds nothing in titanrun/."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "check_names.py"


def check_files(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    result = subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True)
    *faults, counts = result.stdout.splitlines()
    assert result.returncode == (1 if faults else 0), result.stderr
    assert f"modules {len(files)}," in counts
    return [fault.removeprefix(f"{folder}/") for fault in faults]


def test_the_package_has_no_faults() -> None:
    result = subprocess.run(
        [sys.executable, TOOL, "titanrun"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("trained", "begins with a participle"),
        ("placed_batch", "begins with a participle"),
        ("_listed", "begins with a participle"),
        ("size_of", "use get_x(y)"),
        ("of_kind", "use get_x(y)"),
        ("share_of_loss", "use get_x(y)"),
        ("build_rollouter", "old word 'rollouter'"),
    ],
)
def test_names_that_are_faults(tmp_path: Path, name: str, fault: str) -> None:
    text = f"class Widget:\n    def {name}(self) -> None: ...\n"
    (found,) = check_files(tmp_path, {"one.py": text})
    assert found.startswith("one.py:2: ") and fault in found


def test_names_that_are_none(tmp_path: Path) -> None:
    text = """
@rule("packed-rows-need-mask")
def packed_rows_need_mask(): ...
class Widget:
    @property
    def trained_weights(self): ...
    def is_out_of_memory(self): ...
    def named_parameters(self): ...
    def train(self): ...
"""
    assert check_files(tmp_path, {"one.py": text}) == []


def test_old_words_in_modules_and_classes(tmp_path: Path) -> None:
    faults = check_files(tmp_path, {"stopwatch.py": "class FurtherLayer: ...\n"})
    assert [fault.partition(" has")[0] for fault in faults] == [
        "stopwatch.py:1: stopwatch",
        "stopwatch.py:1: FurtherLayer",
    ]


def test_equal_file_names_are_allowed_for_topics_only(tmp_path: Path) -> None:
    names = ("a/config.py", "b/config.py", "a/loss.py", "rules/loss.py", "cli/loss.py")
    assert check_files(tmp_path, dict.fromkeys(names, "")) == []
    (fault,) = check_files(tmp_path, {**dict.fromkeys(names, ""), "b/loss.py": ""})
    assert fault.startswith("b/loss.py:1: has the file name of ")


def test_functions_defined_in_two_modules(tmp_path: Path) -> None:
    text = "def run(): ...\ndef convert(): ...\n"
    assert check_files(tmp_path, {"a.py": text, "b.py": text}) == []
    (fault,) = check_files(
        tmp_path, {"a.py": "def load_it(): ...\n", "b.py": "def load_it(): ...\n"}
    )
    assert fault.startswith("b.py:1: load_it is defined in ")
