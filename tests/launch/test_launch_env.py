from pathlib import Path

import pytest

from titanrun.launch.host_info import count_accelerators
from titanrun.launch.launch_env import (
    build_node_environment,
    build_rank_environment,
    build_threads_environment,
    get_first_host,
    get_rank_and_world_size,
)

STEP = {
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "gpu[03-04],gpu11",
}


def test_ranks_of_srun_are_told_what_torchrun_would_tell_them() -> None:
    joined = build_rank_environment(STEP)
    assert get_rank_and_world_size(joined) == (9, 16)
    assert (joined["LOCAL_RANK"], joined["MASTER_ADDR"], joined["MASTER_PORT"]) == (
        "1",
        "gpu03",
        "23456",
    )


@pytest.mark.parametrize(
    ("seen", "local_rank"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "8"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "5", "SLURM_GPUS_ON_NODE": "8"}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}, "1"),
        # two tasks for one accelerator: the second has none, and find_device says so
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "1"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "1"),
        ({}, "1"),
    ],
    ids=["own", "own-amd", "all-of-the-node", "too-many-tasks", "none", "not-told"],
)
def test_a_task_that_sees_its_own_accelerator_only_takes_that(
    seen: dict[str, str], local_rank: str
) -> None:
    assert build_rank_environment({**STEP, **seen})["LOCAL_RANK"] == local_rank


@pytest.mark.parametrize("changed", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}])
def test_a_batch_script_is_one_rank(changed: dict[str, str]) -> None:
    assert get_rank_and_world_size(build_rank_environment({**STEP, **changed})) == (0, 1)


def test_torchrun_inside_a_job_knows_better() -> None:
    assert get_rank_and_world_size(
        build_rank_environment({**STEP, "RANK": "1", "WORLD_SIZE": "4"})
    ) == (1, 4)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node[03-07,12],login", "node03"),
        ("a,b", "a"),
        ("gpu-1.site", "gpu-1.site"),
        ("n[1-2]", "n1"),
        ("n[9,11]", "n9"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, host: str) -> None:
    assert get_first_host(nodes) == host


@pytest.mark.parametrize(
    ("files", "environ", "count"),
    [
        ([], {}, 0),
        (["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"], {}, 2),
        (["nvidiactl", "nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (["nvidiactl", "nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": ""}, 0),
        (["nvidiactl", "nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        (
            ["kfd", "dri/renderD128", "dri/renderD129", "dri/card0"],
            {"HIP_VISIBLE_DEVICES": "0,1"},
            2,
        ),
        (["dri/renderD128"], {}, 0),
    ],
    ids=["none", "two", "one-shown", "none-shown", "hidden", "amd", "a-laptops-graphics"],
)
def test_accelerators_are_counted_without_torch(
    tmp_path: Path, files: list[str], environ: dict[str, str], count: int
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert count_accelerators(environ, tmp_path) == count


@pytest.mark.parametrize(
    ("variable", "value", "spins"),
    [(None, None, "1000"), ("GOMP_SPINCOUNT", "5", "5"), ("OMP_WAIT_POLICY", "active", None)],
)
def test_compute_threads_that_wait_soon_leave_the_processor(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str | None,
    value: str | None,
    spins: str | None,
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None and value is not None:
        monkeypatch.setenv(variable, value)
    node = build_node_environment(tmp_path, 2, is_loopback=True)
    assert build_threads_environment(2).get("GOMP_SPINCOUNT") == spins
    assert node.get("GOMP_SPINCOUNT") == spins
