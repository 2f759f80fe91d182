"""Renew constraints.txt: the versions that uv finds for all requirements of both distributions.

Versions that still fit stay; with --upgrade the newest ones are taken. The tests decide whether
the result stays. Needs uv.

Usage: python tools/renew_constraints.py [--upgrade] [FILE]
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = (
    "# One set of versions known to work together; install with: "
    "pip install --constraint constraints.txt\n"
)
# what the tests and the tools of developers need
EXTRA = "dev"
OWN = re.compile(r"titanrun(?:-core)?(?:\[([^\]]*)\])?(?:$|==)")
# what the CUDA wheel of torch brings along; its versions are torch's business
OF_TORCH = re.compile(r"(?:nvidia-|cuda-|triton==)")
OLDEST_PYTHON = "3.11"


def read_project(folder: Path) -> dict[str, object]:
    """Return the table `project` of a pyproject.toml."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def find_requirements() -> list[str]:
    """Return all requirements of both distributions, with the extras that an extra names."""
    core, full = read_project(ROOT), read_project(ROOT / "packages" / "titanrun")
    extras = core["optional-dependencies"]
    found: set[str] = set()

    def add(lines: object) -> None:
        for line in iterate(lines):
            own = OWN.match(line)
            if own is None:
                found.add(line)
            for name in (own[1] or "").split(",") if own else []:
                if name:
                    add(extras[name])

    add(core["dependencies"])
    add(full["dependencies"])
    add(extras[EXTRA])
    return sorted(found)


def iterate(lines: object) -> Iterator[str]:
    """Yield the lines of a list of requirements."""
    assert isinstance(lines, list)
    yield from lines


def renew(file: Path, *, upgrade: bool) -> None:
    """Let uv resolve the requirements into a file, whose versions it prefers."""
    uv = shutil.which("uv")
    if uv is None:
        raise FileNotFoundError("uv is not installed: pip install uv")
    options = ["--python-version", OLDEST_PYTHON, "--no-header", "--no-annotate", "--quiet"]
    if upgrade:
        options.append("--upgrade")
    subprocess.run(
        [uv, "pip", "compile", *options, "--output-file", str(file), "-"],
        input="\n".join(find_requirements()),
        text=True,
        check=True,
        cwd=ROOT,
    )
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("#") and not OF_TORCH.match(line)]
    file.write_text(HEAD + "".join(kept), encoding="utf-8")


def main() -> int:
    """Renew the file, and return 1 if uv finds no versions."""
    words = [word for word in sys.argv[1:] if word != "--upgrade"]
    file = Path(words[0]).resolve() if words else ROOT / "constraints.txt"
    try:
        renew(file, upgrade="--upgrade" in sys.argv)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
