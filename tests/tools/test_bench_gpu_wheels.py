"""Whether wheels in a folder are enough for a machine without a network."""

import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools" / "bench")]

from gpu_wheels import check_wheels, try_wheels, wheels_report  # noqa: E402


def test_wheels_that_are_missing_old_or_too_large_are_named(tmp_path: Path) -> None:
    for name in ("pydantic-2.14.3-py3-none-any.whl", "tomli-1.0.0-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"")
    faults = check_wheels(tmp_path)
    assert "ruamel.yaml: no wheel" in faults
    assert any(fault.startswith("tomli: 1.0.0 is not") for fault in faults)
    assert not any(fault.startswith("pydantic:") for fault in faults)
    with (tmp_path / "torchao-0.17.0-cp310-abi3-manylinux_2_28_x86_64.whl").open("wb") as file:
        file.truncate(65 * 2**20)
    assert "65.0 MiB are more than 64" in check_wheels(tmp_path)


def write_wheel(folder: Path, name: str) -> None:
    """Write a wheel with an empty module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


# what stands for titanrun: it needs two packages, and takes a command and a recipe
PROGRAM = """
import sys
import carried_one, carried_two
if sys.argv[1] != "validate" or not open(sys.argv[2]).read():
    raise SystemExit("no recipe")
"""


def test_wheels_are_tried_with_nothing_else_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, wheels, recipe = tmp_path / "root", tmp_path / "wheels", tmp_path / "recipe.yaml"
    (root / "titanrun").mkdir(parents=True)
    wheels.mkdir()
    (root / "titanrun" / "__main__.py").write_text(PROGRAM)
    recipe.write_text("version: 1")
    # packages of this environment must not stand in for a wheel
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "carried_two.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    write_wheel(wheels, "carried_one")
    said = try_wheels(wheels, recipe, root)
    assert said is not None and "No module named 'carried_two'" in said
    write_wheel(wheels, "carried_two")
    assert try_wheels(wheels, recipe, root) is None


def test_the_report_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not wheels_report(tmp_path)
    assert "pydantic: no wheel" in capsys.readouterr().out
