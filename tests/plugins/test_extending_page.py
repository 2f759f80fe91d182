"""Every block of Python, YAML and TOML in docs/extending.md is a complete file that works."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|yaml|toml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = {name: text for _, name, text in BLOCK.findall(PAGE)}
RECIPES = [name for name in FILES if name.endswith(".yaml")]


def titanrun(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(place / "site"), str(ROOT))),
            "XDG_STATE_HOME": str(place / "state"),
        },
    )


def install(place: Path) -> None:
    """What pip leaves of the package in pyproject.toml."""
    about = tomllib.loads(FILES["pyproject.toml"])
    project, included = about["project"], about["tool"]["hatch"]["build"]["targets"]["wheel"]
    info = place / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["titanrun.plugins"]
    lines = [f"{name} = {module}\n" for name, module in points.items()]
    (info / "entry_points.txt").write_text("[titanrun.plugins]\n" + "".join(lines))
    for name in included["only-include"]:
        (place / "site" / name).write_text(FILES[name])


def test_every_block_of_code_is_a_named_file() -> None:
    assert len(re.findall(r"^```(python|yaml|toml)$", PAGE, re.MULTILINE)) == len(FILES)
    listed = set(re.findall(r"\./(\w+\.py)", "".join(FILES[name] for name in RECIPES)))
    assert listed == {name for name in FILES if name.endswith(".py")}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_as_it_is(name: str, tmp_path: Path) -> None:
    for file, text in FILES.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    trust = ["--trust"] if ".py" in FILES[name] else []
    if not trust:
        install(tmp_path)
    done = titanrun(tmp_path, "train", name, *trust)
    assert done.returncode == 0, done.stderr
    if name == "all.yaml":
        assert "loss at 1.0 or below after step" in done.stderr
    else:
        assert "finished: 10 steps" in done.stderr
