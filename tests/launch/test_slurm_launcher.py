"""The batch script of a run."""

import shlex
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm_launcher import build_run_script, build_sweep_script, format_time_limit
from titanrun.launch.slurm_queue import JobState

# a value for each field, and the line that it becomes
LINES = {
    "nproc_per_node": (4, "#SBATCH --ntasks-per-node=4"),
    "nnodes": (3, "#SBATCH --nodes=3"),
    "gpus_per_node": (8, "#SBATCH --gpus-per-node=8"),
    "cpus_per_task": (12, "#SBATCH --cpus-per-task=12"),
    "memory": ("1.5GiB", "#SBATCH --mem=1536M"),
    "partition": ("h100", "#SBATCH --partition=h100"),
    "account": ("research", "#SBATCH --account=research"),
    "qos": ("low", "#SBATCH --qos=low"),
    "time_limit": ("1d2h30m", "#SBATCH --time=26:30:00"),
    "save_seconds": (120, "#SBATCH --signal=USR1@120"),
    "requeue": (False, "#SBATCH --no-requeue"),
    "max_restarts": (7, '        if [ -e "$ends.stop" ] || [ "$restarts" -ge 7 ]; then break; fi'),
    "setup": (("module load cuda",), "module load cuda"),
    "options": (("--constraint=nvlink",), "#SBATCH --constraint=nvlink"),
}


def script(**fields: object) -> str:
    groups = FaultToleranceConfig(enable="max_restarts" in fields)
    return build_run_script(
        SlurmLaunchConfig(**fields),
        Path("runs/a b"),
        name="a b",
        folder=Path("/work"),
        groups=groups,
    )


@pytest.mark.parametrize("field", sorted(set(SlurmLaunchConfig.model_fields) - {"name"}))
def test_each_field_is_a_line_of_the_script(field: str) -> None:
    value, line = LINES[field]
    assert line in script(**{field: value}).splitlines()
    assert line not in script().splitlines()


def test_a_script_is_one_that_bash_reads_and_words_with_spaces_stay_whole(tmp_path: Path) -> None:
    text = script()
    assert shlex.split(text.splitlines()[2].removeprefix("#SBATCH ")) == ["--job-name=a b"]
    assert "-m titanrun resume 'runs/a b'" in text and "scontrol requeue" in text
    assert "scontrol requeue" not in script(requeue=False)
    sweep = build_sweep_script(
        SlurmLaunchConfig(),
        [Path("s/x"), Path("s/y z")],
        name="s",
        folder=Path("/work"),
        sweep=Path("s"),
        slots=2,
    )
    assert "#SBATCH --array=0-1%2" in sweep and "    's/y z'\n" in sweep
    grouped = script(max_restarts=2)
    assert "#SBATCH --nodes=2" in grouped and "#SBATCH --no-kill" in grouped
    for number, written in enumerate((text, sweep, grouped)):
        file = tmp_path / f"{number}.sh"
        file.write_text(written)
        subprocess.run(["bash", "-n", str(file)], check=True)


def test_limits_are_written_as_slurm_reads_them() -> None:
    assert [format_time_limit(value) for value in (59.2, 3600, 100 * 3600)] == [
        "00:01:00",
        "01:00:00",
        "100:00:00",
    ]


def test_a_job_that_waits_says_why_and_one_that_runs_does_not() -> None:
    assert str(JobState("PENDING", "Resources")) == "pending (Resources)"
    assert str(JobState("RUNNING", "None")) == "running"
    assert [
        JobState(state).is_over
        for state in ("REQUEUED", "COMPLETING", "PREEMPTED", "CANCELLED", "GONE")
    ] == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"nproc_per_node": 2, "gpus_per_node": 1},
            "nproc_per_node 2 exceeds gpus_per_node 1",
        ),
        ({"time_limit": "5m"}, "save_seconds 300 is not shorter than time_limit 5m"),
        ({"options": ("constraint=nvlink",)}, "'constraint=nvlink' is not an option of sbatch"),
        ({"setup": ("one\ntwo",)}, "not one line"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SlurmLaunchConfig(**fields)
