"""`titanrun doctor`, as its users run it: in a process of its own, through the training that they
would start."""

import json
import os
import subprocess
import sys
from pathlib import Path


def doctor(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "titanrun", "doctor", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={**os.environ, **environment},
    )


def test_doctor_trains_a_toy_model_and_tells_no_secrets(tmp_path: Path) -> None:
    done = doctor(cwd=tmp_path, HF_TOKEN="a-secret-token")
    assert (done.returncode, done.stderr) == (0, "")
    assert "two steps of a toy model work" in done.stdout
    assert "\n\nready: titanrun trains on this machine, on " in done.stdout
    topics = {line.split()[0] for line in done.stdout.splitlines() if line}
    assert {
        "python",
        "titanrun",
        "torch",
        "torchao",
        "cpu",
        "memory",
        "disk",
        "temporary",
        "accelerator",
        "training",
    } <= topics
    assert "verl" not in topics
    assert "a-secret-token" not in done.stdout
    assert str(Path.home()) not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_wrong(tmp_path: Path) -> None:
    done = doctor("--json", cwd=tmp_path, WORLD_SIZE="2")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [finding["topic"] for finding in found if finding["wrong"]] == ["training"]
    assert "rank 0 of 2 cannot reach the other ranks" in found[-1]["text"]


def test_doctor_says_why_verl_does_not_load_the_backend(tmp_path: Path) -> None:
    (tmp_path / "packages" / "verl").mkdir(parents=True)
    (tmp_path / "packages" / "verl" / "__init__.py").write_text("raise RuntimeError('another Ray')")
    info = tmp_path / "packages" / "verl-0.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n")
    paths = os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")])
    done = doctor("--no-training", "--json", cwd=tmp_path, PYTHONPATH=paths)
    (found,) = [
        finding
        for finding in map(json.loads, done.stdout.splitlines())
        if finding["topic"] == "verl"
    ]
    assert done.returncode == 1 and found["wrong"]
    why = "the backend titanrun does not load: RuntimeError: another Ray"
    assert found["text"] == f"0.9.1; {why}"
    assert "0.9.1" in found["help"]
