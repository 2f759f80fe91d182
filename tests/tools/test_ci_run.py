""".ci/run calls every part in order, or one alone, with programs that only write down calls."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# the calls are compared, not what they do
RECORD = f"""#!/bin/sh
echo "$(basename "$0") $*" | sed "s#$TMPDIR/[^ /]*#WORK#" >>"$CALLS"
case "$(basename "$0") $*" in
    "python tools/ci_report.py "*) exec {sys.executable} "$@" ;;
    *" train "*dump_folder=*debug) mkdir -p "${{3#dump_folder=}}/checkpoint/step-80"
        touch "${{3#dump_folder=}}/checkpoint/step-80/resolved.yaml" ;;
    "$FAILS"*) exit 3 ;;
esac
"""
PROGRAMS = ("make", "slurmctld", "chromium", "firefox-esr", "nvim", "kubectl", "npm")
OWN = ("verl", "oracles", "gguf", "torchft", "openai", "stores", "triton")
ORDER = [
    "make test",
    "make check",
    "make test-medium",
    "titanrun train",
    "python tools/check_loss_falls.py",
    "titanrun train",
    "python tools/bench",
    "make test-settings",
    *(f"make {name}" for part in OWN for name in (f".venv-{part}/.installed", f"test-{part}")),
    "make .venv-delivery/.installed",
    "make lint-delivery",
    "make .venv-skypilot/.installed",
    "make test-skypilot",
    "make .venv-kubernetes/.installed",
    "make test-slurm",
    "make test-kubernetes",
    "make test-browser",
    "make test-firefox",
    "make .venv-docs/.installed",
    "make test-docs",
    "make test-editors",
    "make .venv-vllm/.installed",
    "make test-vllm",
    "make test-slow",
    "python tools/ci_report.py",
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with .ci and stand-ins for all that it calls."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / ".ci", clone / ".ci")
    for name in ("tools", "recipes"):
        (clone / name).mkdir()
    shutil.copy(ROOT / "tools" / "ci_report.py", clone / "tools")
    (clone / "tools" / "try_wheel.sh").write_text("")
    (clone / "recipes" / "llama3_debug.yaml").write_text("")
    programs = [clone / "bin" / name for name in PROGRAMS]
    for path in (*programs, clone / ".venv/bin/python", clone / ".venv/bin/titanrun"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RECORD)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return clone


def run_ci(clone: Path, *arguments: str, **variables: str) -> tuple[int, list[str], str]:
    """Return the exit code, the calls, and what was printed."""
    calls = clone / "calls"
    calls.unlink(missing_ok=True)
    (clone / "tmp").mkdir(exist_ok=True)
    environment = {"PATH": f"{clone}/bin:/usr/bin:/bin", "CALLS": str(calls), "FAILS": "nothing"}
    done = subprocess.run(
        ["bash", clone / ".ci" / "run", *arguments],
        env=environment | {"TMPDIR": str(clone / "tmp"), "HOME": os.environ["HOME"]} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = calls.read_text().splitlines() if calls.exists() else []
    shown = [line for line in lines if not re.match(r"titanrun (validate|show)", line)]
    return done.returncode, [" ".join(line.split()[:2]) for line in shown], done.stdout


def test_without_arguments_it_runs_everything_in_order(clone: Path) -> None:
    code, calls, printed = run_ci(clone)
    assert code == 0, printed
    remaining = iter(calls)
    # other parts may stand between
    assert [call for call in ORDER if call not in remaining] == []
    assert [calls[0], *calls[-2:]] == [ORDER[0], *ORDER[-2:]]
    assert printed.endswith("green\n")


@pytest.mark.parametrize(("seconds", "budget"), [("0", 900), ("90000", 89000)])
def test_the_benchmark_has_the_time_of_ci_and_writes_elsewhere(
    clone: Path, seconds: str, budget: int
) -> None:
    run_ci(clone, "--step", "bench", TITANRUN_CI_SECONDS=seconds)
    (call,) = [line for line in (clone / "calls").read_text().splitlines() if "bench gpu" in line]
    words = call.split()
    assert words[words.index("--out") + 1] == "WORK/bench"
    found = int(words[words.index("--budget") + 1])
    assert found == budget if budget == 900 else found > budget


def test_without_time_only_what_may_be_left_out_is_left_out(clone: Path) -> None:
    code, calls, printed = run_ci(clone, TITANRUN_CI_SECONDS="0")
    assert code == 0, printed
    assert calls[:3] == ["make test", "make check", "make test-medium"]
    assert calls[-2] == "make test-settings"
    left_out = re.findall(r"^([a-z-]+): left out: out of time", printed, re.MULTILINE)
    assert {"verl", "slurm", "kubernetes", "docs", "editors", "vllm", "slow"} < set(left_out)


def test_a_step_runs_alone(clone: Path) -> None:
    code, calls, printed = run_ci(clone, "--step", "check")
    assert code == 0, printed
    assert calls == ["make .venv/.installed-dev", "make check", "python tools/ci_report.py"]


def test_the_list_of_steps_is_complete(clone: Path) -> None:
    _, _, printed = run_ci(clone)
    ran = set(re.findall(r"^([a-z-]+): passed", printed, re.MULTILINE))
    code, calls, listed = run_ci(clone, "--step", "unknown")
    assert (code, calls) == (2, [])
    assert set(listed.splitlines()[1:]) == ran


def test_a_wanted_step_that_cannot_run_fails(clone: Path) -> None:
    code, _, printed = run_ci(clone, FAILS="make .venv-verl/.installed")
    assert code == 0 and "verl: left out: cannot be installed" in printed
    code, _, _ = run_ci(clone, "--step", "verl", FAILS="make .venv-verl/.installed")
    assert code == 1


@pytest.mark.parametrize("arguments", [(), ("--step", "test-of-nothing"), ("--step", "check")])
def test_a_failure_ends_it(clone: Path, arguments: tuple[str, ...]) -> None:
    code, calls, _ = run_ci(clone, *arguments, FAILS="make check")
    assert code != 0
    assert not any("ci_report" in call for call in calls)


def test_workflows_name_steps_that_exist(clone: Path) -> None:
    _, _, listed = run_ci(clone, "--step", "unknown")
    named = {
        step
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for step in re.findall(r"\.ci/run --step ([\w-]+)", path.read_text())
    }
    assert named and named <= set(listed.splitlines()[1:])
