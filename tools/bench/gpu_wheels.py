"""Whether a folder of wheels has what a machine without a network lacks to run titanrun."""

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[2]
# limit on what travels with a working tree
MAX_BYTES = 64 * 2**20
# of the rows: what a recipe with float8 and a table of token ids needs besides torch
FURTHER = ("torchao>=0.17", "typing_extensions")


def check_wheels(folder: Path, root: Path = ROOT) -> list[str]:
    """Return what is wrong with a folder of wheels: missing, of other versions, or too large."""
    found: dict[str, Version] = {}
    for file in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(file.name)
        found[name] = version
    faults = []
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in (*project["dependencies"], *FURTHER):
        wanted = Requirement(text)
        version = found.get(canonicalize_name(wanted.name))
        if version is None:
            faults.append(f"{wanted.name}: no wheel")
        elif not wanted.specifier.contains(version):
            faults.append(f"{wanted.name}: {version} is not {wanted.specifier}")
    size = sum(file.stat().st_size for file in folder.glob("*.whl"))
    if size > MAX_BYTES:
        faults.append(f"{size / 2**20:.1f} MiB are more than {MAX_BYTES / 2**20:.0f}")
    return faults


def try_wheels(folder: Path, recipe: Path, root: Path = ROOT) -> str | None:
    """Validate a recipe with nothing but these wheels; return what was said if that fails."""
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        python = Path(name) / "bin" / "python"
        wheels = [str(file) for file in sorted(folder.glob("*.whl"))]
        install = ["-m", "pip", "install", "--no-index", "--no-deps", "--quiet", *wheels]
        validate = ["-m", "titanrun", "validate", str(recipe)]
        for arguments in (install, validate):
            done = subprocess.run(
                [python, *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=name,
                env={"PYTHONPATH": str(root), "HOME": name, "PATH": "/usr/bin:/bin"},
            )
            if done.returncode:
                return done.stdout + done.stderr
    return None


def wheels_report(folder: Path) -> bool:
    """Print what is wrong with a folder of wheels, and return whether nothing is."""
    faults = check_wheels(folder)
    if not faults:
        said = try_wheels(folder, ROOT / "recipes" / "llama3_debug.yaml")
        faults = [] if said is None else [f"validate fails with these wheels:\n{said}"]
    for fault in faults:
        print(fault)
    if not faults:
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"{folder}: these wheels are enough for Python {version}")
    return not faults
