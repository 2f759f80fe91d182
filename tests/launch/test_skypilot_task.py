"""The task of a run for SkyPilot: read by its own parser, and its command on two machines."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.launch.reserved_port import reserve_port
from titanrun.cli import launch
from titanrun.config.problems import ProblemsFound
from titanrun.launch.skypilot.config import SkyPilotLaunchConfig
from titanrun.launch.skypilot.sky_program import read_jobs
from titanrun.launch.skypilot.task_file import build_task, build_task_name, format_task

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "llama3_debug_skypilot.yaml"
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "unmanaged": {"managed": False, "infra": "aws/us-east-1"},
    "gpus": {
        "infra": "k8s",
        "accelerators": "H100:8",
        "nnodes": 2,
        "nproc_per_node": 8,
        "cpus_per_node": 32,
        "memory": "256GiB",
        "disk_size": "512GiB",
        "use_spot": True,
        "image": "registry.example/titanrun:0.1",
        "setup": ["pip install titanrun", "echo 'a: b' # c"],
        "secrets": ["HF_TOKEN"],
        "volumes": [{"volume": "runs", "path": "/runs"}],
        "max_restarts": 5,
    },
}


def task_of(case: dict[str, Any], *, allows_code: bool = False) -> dict[str, Any]:
    config = SkyPilotLaunchConfig.model_validate(case)
    return build_task(
        config,
        name=build_task_name("first", "/runs/first"),
        recipe="launch/first/resolved.yaml",
        folder=PurePosixPath("/runs/it's first"),
        allows_code=allows_code,
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_another_yaml_reader_reads_the_task(case: dict[str, Any]) -> None:
    task = task_of(case)
    read = yaml.safe_load(format_task(task))
    assert {
        key: text.rstrip("\n") if key in ("run", "setup") else text for key, text in read.items()
    } == task


FIELDS: dict[str, tuple[dict[str, Any], tuple[str, ...], object]] = {
    "infra": ({"infra": "aws/us-east-1"}, ("resources", "infra"), "aws/us-east-1"),
    "accelerators": ({"accelerators": "H100:8"}, ("resources", "accelerators"), "H100:8"),
    "nnodes": ({"nnodes": 3}, ("num_nodes",), 3),
    "cpus_per_node": ({"cpus_per_node": 32}, ("resources", "cpus"), "32+"),
    "memory": ({"memory": "256GiB"}, ("resources", "memory"), "256+"),
    "disk_size": ({"disk_size": "512GiB"}, ("resources", "disk_size"), 512),
    "use_spot": ({"use_spot": True}, ("resources", "use_spot"), True),
    "image": ({"image": "a.example/b:1"}, ("resources", "image_id"), "docker:a.example/b:1"),
    "setup": ({"setup": ["echo a", "echo b"]}, ("setup",), "echo a\necho b"),
    "volumes.volume": ({"volumes": [{"volume": "disk", "path": "/r"}]}, ("volumes", "/r"), "disk"),
    "volumes.path": ({"volumes": [{"volume": "runs", "path": "/r"}]}, ("volumes", "/r"), "runs"),
    "secrets": ({"secrets": ["HF_TOKEN"]}, ("secrets",), {"HF_TOKEN": None}),
    "managed": ({"managed": False}, ("resources", "job_recovery"), None),
    "max_restarts": (
        {"max_restarts": 5},
        ("resources", "job_recovery"),
        {"max_restarts_on_errors": 5, "recover_on_exit_codes": [75]},
    ),
}


def value_at(task: Any, path: tuple[str, ...]) -> object:
    for key in path:
        task = (task or {}).get(key)
    return task


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_in_the_task(field: str) -> None:
    given, path, expected = FIELDS[field]
    assert value_at(task_of(given), path) == expected != value_at(task_of({}), path)


def test_the_command_has_the_processes_of_a_machine_and_the_consent() -> None:
    run = task_of({"nproc_per_node": 8}, allows_code=True)["run"]
    assert "nproc_per_node: 8" in run and run.endswith("--trust")
    assert "--trust" not in task_of({})["run"]


def test_fewer_accelerators_than_ranks_are_a_conflict() -> None:
    with pytest.raises(ValidationError, match="nproc_per_node 8 exceeds accelerators 1"):
        SkyPilotLaunchConfig.model_validate({"accelerators": "H100", "nproc_per_node": 8})


def problem_of(*overrides: str) -> str:
    with pytest.raises(ProblemsFound) as found:
        launch.run([str(RECIPE), "--no-follow", "--trust", *overrides])
    (problem,) = found.value.problems
    return problem.message


def test_a_run_that_would_be_lost_with_its_machines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "is in no volume of the launch section" in problem_of("dump_folder=/elsewhere")
    address = ("checkpoint.enable=true", "checkpoint.folder=s3://bucket/first")
    # an address is enough for one machine; several share their run directory
    assert "is in no volume" in problem_of("dump_folder=/elsewhere", *address)
    one = ["launch.nnodes=1", "launch.volumes=[]", "dump_folder=null", *address]
    assert launch.run([str(RECIPE), "--dry-run", *one]) == 0
    task = yaml.safe_load(capsys.readouterr().out)
    assert "volumes" not in task and "dump_folder" not in task["run"]
    assert not [*tmp_path.iterdir()]


def test_what_the_machine_lacks_is_said_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs the program sky" in problem_of()
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert "HF_TOKEN is not set" in problem_of("launch.secrets=[HF_TOKEN]")


FAKE_SKY = """#!{python}
import json, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["jobs", "queue"]:
    print("Fetching jobs [all]")
    print(json.dumps({jobs}, indent=2))
if sys.argv[1:3] == ["jobs", "logs"]:
    print("step 1")
    sys.exit(100)
"""


def fake_sky(folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[dict[str, str]]) -> Path:
    """A `sky` that lists jobs and writes down how it was called."""
    log = folder / "calls.jsonl"
    program = folder / "sky"
    program.write_text(FAKE_SKY.format(python=sys.executable, log=str(log), jobs=jobs))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    return log


def test_a_task_is_submitted_once_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = build_task_name("llama3-debug-skypilot", "/runs/llama3-debug")
    log = fake_sky(tmp_path, monkeypatch, [{"job_name": "another", "status": "RUNNING"}])
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    code = launch.run([str(RECIPE), "--trust", "launch.secrets=[HF_TOKEN]"])
    assert code == 100 and "step 1" in capfd.readouterr().out
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    task = f"launch/{name}/task.yaml"
    assert calls[1] == [
        *("jobs", "launch", "--name", name, "--yes", "--detach-run"),
        *("--secret", "HF_TOKEN", task),
    ]
    assert calls[2] == ["jobs", "logs", "--name", name]
    for file in (tmp_path / "launch" / name).iterdir():
        assert "hf_abc" not in file.read_text()
    fake_sky(tmp_path, monkeypatch, [{"job_name": name, "status": "RUNNING"}])
    assert problem_of() == f"job '{name}' is already training this run: RUNNING"


def test_jobs_are_read_from_what_sky_prints() -> None:
    assert read_jobs("No in-progress managed jobs.\n") == []
    assert read_jobs('note [1]\n[\n  {"job_name": "a"}\n]\n') == [{"job_name": "a"}]


@pytest.fixture
def port() -> Iterator[int]:
    with reserve_port() as reserved:
        yield reserved


@pytest.mark.slow
def test_the_command_trains_on_two_machines_together(tmp_path: Path, port: int) -> None:
    runs = tmp_path / "runs"
    words = ["launch", str(RECIPE), "--dry-run", "training.steps=4", "metrics.log_freq=1"]
    words += [f"dump_folder={runs}/first", f"launch.volumes=[{{volume: runs, path: {runs}}}]"]
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    task = yaml.safe_load(done.stdout)
    mounted, _ = next(iter(task["file_mounts"].items()))
    shown = subprocess.run(
        [sys.executable, "-m", "titanrun", "show", *words[1:2], *words[3:]],
        capture_output=True,
        text=True,
        check=True,
    )
    # two homes, one volume: the first machine is 127.0.0.1
    machines = []
    for rank in range(2):
        home = tmp_path / f"machine-{rank}"
        recipe = home / mounted.removeprefix("~/")
        recipe.parent.mkdir(parents=True)
        recipe.write_text(shown.stdout)
        environment = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        }
        machines.append(
            subprocess.Popen(
                ["bash", "-c", task["run"]],
                cwd=home,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [machine.communicate(timeout=300)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert re.search(r"step 4/4", "".join(said))
    record = json.loads((runs / "first" / "run.json").read_text())
    assert record["starts"][-1]["decided"]["ranks"] == 2


CHECK = """
import sys, yaml
import sky
for text in sys.stdin.read().split("\\x00"):
    written = yaml.safe_load(text)
    given = {"HF_TOKEN": "a"} if "secrets" in written else None
    task = sky.Task.from_yaml_config(yaml.safe_load(text), secrets_overrides=given)
    assert task.num_nodes == written["num_nodes"]
    assert task.run.rstrip() == written["run"].rstrip()
"""


@pytest.mark.skypilot
def test_skypilots_own_parser_accepts_the_task(tmp_path: Path) -> None:
    python = os.environ["TITANRUN_SKYPILOT_PYTHON"]
    recipe = tmp_path / "launch" / "first" / "resolved.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("version: 1\n")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }

    def parse(texts: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [python, "-c", CHECK],
            input="\0".join(texts),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = parse([format_task(task_of(case)) for case in CASES.values()])
    assert done.returncode == 0, done.stderr
    # the judge is awake
    wrong = parse([format_task(task_of({})).replace("num_nodes", "num_node")])
    assert wrong.returncode != 0 and "num_node" in wrong.stderr


@pytest.mark.skypilot
@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["jobs", "launch"], ["--name", "--yes", "--detach-run", "--secret"]),
        (["jobs", "queue"], ["--refresh", "--skip-finished", "--output"]),
        (["jobs", "logs"], ["--name"]),
        (["jobs", "cancel"], ["--name"]),
        (["launch"], ["--cluster", "--yes", "--detach-run", "--secret"]),
        (["logs"], ["CLUSTER"]),
        (["cancel"], ["--all"]),
    ],
)
def test_sky_has_the_options_that_are_used(
    tmp_path: Path, command: list[str], options: list[str]
) -> None:
    sky = Path(os.environ["TITANRUN_SKYPILOT_PYTHON"]).with_name("sky")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    done = subprocess.run(
        [sky, *command, "--help"], env=environment, capture_output=True, text=True, check=True
    )
    assert [option for option in options if option not in done.stdout] == []
