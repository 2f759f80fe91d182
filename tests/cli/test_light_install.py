"""`titanrun-core` alone: text work without PyTorch, and a clear refusal of everything else."""

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = "version: 1\nextends: [shipped:llama3_debug.yaml]\n"


def iter_requirements(lines: Iterable[str]) -> Iterator[str]:
    """Yield the names of the required packages and of what they require."""
    for line in lines:
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            yield needed.name
            yield from iter_requirements(distribution(needed.name).requires or [])


def link_packages(site: Path, names: Iterable[str]) -> None:
    """Link the files of installed packages into another environment."""
    for name in set(names):
        found = distribution(name)
        tops = {file.parts[0] for file in found.files if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (site / top).unlink(missing_ok=True)
            (site / top).symlink_to(found.locate_file(top))


@pytest.fixture(scope="module")
def light_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the requirements of `titanrun-core[lsp,ui]` and no other package."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python3*/site-packages")
    extras = PROJECT["optional-dependencies"]
    link_packages(
        site, iter_requirements([*PROJECT["dependencies"], *extras["lsp"], *extras["ui"]])
    )
    (site / "titanrun.pth").write_text(f"{ROOT}\n")
    info = site / "titanrun_core-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: titanrun-core\nVersion: 0.1.0\n")
    return folder / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe, a run directory and a checkpoint by their looks."""
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "hub.yaml").write_text(
        RECIPE + "training: {dataset: {name: hub, repo: org/data}}\n"
    )
    (tmp_path / "sweep.yaml").write_text(
        "version: 1\nrecipe: mine.yaml\ngrid: {optimizer.lr: [1e-3, 2e-3]}\n"
    )
    (tmp_path / "torchtitan.toml").write_text("[training]\nsteps = 10\n")
    return tmp_path


def run_light(
    light_python: Path, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing of this environment but PATH."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent)}
    return subprocess.run(
        [light_python, "-m", "titanrun", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_no_package_of_training_is_there(light_python: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('numpy'))"
    done = subprocess.run([light_python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None None\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["validate", "mine.yaml"],
        ["validate", "--level", "environment", "mine.yaml"],
        ["validate", "--format", "sarif", "mine.yaml"],
        ["validate", "sweep.yaml"],
        ["show", "mine.yaml", "--sources"],
        ["diff-config", "mine.yaml", "mine.yaml"],
        ["explain", "training.steps"],
        ["migrate", "--from", "torchtitan", "torchtitan.toml", "--output", "new.yaml"],
        ["runs", "ls", "."],
        ["sweep", "sweep.yaml", "--list"],
        ["ls", "recipes"],
        ["cat", "llama3_debug"],
        ["cp", "llama3_debug", "copy.yaml"],
        ["schema"],
        ["completion", "bash"],
        ["data", "--help"],
        ["download", "--help"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_text_work_needs_no_torch(arguments: list[str], light_python: Path, folder: Path) -> None:
    done = run_light(light_python, folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "mine.yaml"],
        ["train", "mine.yaml", "--nproc", "2"],
        ["launch", "mine.yaml"],
        ["sweep", "sweep.yaml"],
        ["plan", "mine.yaml"],
        ["show", "mine.yaml", "--model"],
        ["data", "build", "mine.yaml"],
        ["data", "stats", "mine.yaml", "training.data_cache=cache"],
        ["data", "pin", "hub.yaml"],
        ["generate", "runs/first", "--prompt", "One"],
        ["eval", "runs/first"],
        ["chat", "runs/first"],
        ["serve", "runs/first"],
        ["fleet", "mine.yaml", "--listen", "127.0.0.1:0"],
        ["reproduce", "runs/first"],
        ["download", "org/model", "--output", "model"],
    ],
    ids=" ".join,
)
def test_training_is_refused_before_anything_is_written(
    arguments: list[str], light_python: Path, folder: Path
) -> None:
    before = sorted(folder.rglob("*"))
    done = run_light(light_python, folder, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.fullmatch(
        r"error\[usage\]: this command needs (PyTorch|huggingface_hub)\n"
        r"  = help: pip install titanrun\n",
        done.stderr,
    ), done.stderr
    assert sorted(folder.rglob("*")) == before


def test_doctor_says_what_is_installed(light_python: Path, folder: Path) -> None:
    said = run_light(light_python, folder, "doctor").stdout
    assert re.search(r"^torch +not installed: text tools only$", said, re.MULTILINE), said
    assert re.search(r"^titanrun-core +0\.1\.0$", said, re.MULTILINE), said
    assert "WRONG" not in said


def test_a_run_from_elsewhere_is_read(light_python: Path, folder: Path) -> None:
    train = ["train", "mine.yaml", "dump_folder=runs/first", "training.steps=4", "--quiet"]
    changes = ["lr_scheduler.warmup_steps=1", "validation.enable=false", "metrics.log_freq=1"]
    subprocess.run(
        [sys.executable, "-m", "titanrun", *train, *changes],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    assert "first" in run_light(light_python, folder, "runs", "ls").stdout
    reported = run_light(light_python, folder, "report", "runs/first", "--output", "report.html")
    assert reported.returncode == 0, reported.stderr
    plotted = run_light(light_python, folder, "plot", "runs/first", "--out", "loss.svg")
    assert plotted.returncode == 0, plotted.stderr
    assert (folder / "report.html").is_file() and (folder / "loss.svg").is_file()


def test_the_language_server_answers(light_python: Path, folder: Path) -> None:
    body = json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {"processId": None, "rootUri": None, "capabilities": {}},
        }
    )
    asked = f"Content-Length: {len(body)}\r\n\r\n{body}"
    done = subprocess.run(
        [light_python, "-m", "titanrun", "lsp"],
        input=asked,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    answer = json.loads(done.stdout.partition("\n\n")[2] or done.stdout.partition("\r\n\r\n")[2])
    assert answer["result"]["serverInfo"] == {"name": "titanrun", "version": "0.1.0"}


def test_the_browser_interface_serves_its_page(light_python: Path, folder: Path) -> None:
    process = subprocess.Popen(
        [light_python, "-m", "titanrun", "ui", "--no-browser", "--port", "0"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        link = next(
            found.group()
            for line in process.stdout
            if (found := re.search(r"http://127\.0\.0\.1:\d+\S*", line))
        )
        with urllib.request.urlopen(link, timeout=30) as answer:
            assert answer.status == 200 and b"titanrun" in answer.read()
    finally:
        process.terminate()
        process.communicate(timeout=30)
