"""verl's RayWorkerGroup of two ranks, with titanrun's engine and its own."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
STEPS = 6


@pytest.fixture
def alone(folder: Path) -> list[dict[str, float]]:
    """The steps of one rank, in this process."""
    from tests.integrations.verl_package.test_training_worker import build_worker
    from tests.integrations.verl_package.test_training_worker import train as train_here

    return train_here(build_worker(folder, "titanrun"), STEPS)


@pytest.fixture
def cluster(alone: Any, worker_environment: dict[str, str]) -> Iterator[Any]:
    import tempfile

    ray = pytest.importorskip("ray", reason="make test-verl installs it")
    with pytest.MonkeyPatch.context() as patch:
        # those of this process: the workers have a rendezvous of their own
        for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            patch.delenv(name, raising=False)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # the path of a Unix socket has at most 107 bytes
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            ray.init(
                address="local",
                num_cpus=4,
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=short,
                runtime_env={"env_vars": worker_environment},
            )
            yield ray
            ray.shutdown()


def train(ray: Any, folder: Path, backend: str, ranks: int) -> list[dict[str, float]]:
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import sft_loss

    from tests.integrations.verl_package.configs import learnable_batch, worker_config
    from tests.integrations.verl_package.cpu_worker import CpuWorker

    config = worker_config(folder, backend, shards=ranks)
    pool = RayResourcePool([ranks], use_gpu=False, max_colocate_count=1)
    workers = RayWorkerGroup(
        pool, RayClassWithInitArgs(ray.remote(CpuWorker), config=config), device_name="cpu"
    )
    workers.set_loss_fn(partial(sft_loss, None))
    workers.reset()
    found = []
    for _ in range(STEPS):
        output = workers.train_batch(learnable_batch()).get()
        found.append(tu.get(output, "metrics"))
    for worker in workers.workers:
        ray.kill(worker)
    return found


def test_two_ranks_train_as_verls_own_engine_and_as_one_rank(
    cluster: Any, folder: Path, alone: list[dict[str, float]]
) -> None:
    ours, theirs = (train(cluster, folder, backend, 2) for backend in ("titanrun", "fsdp2"))
    assert ours[-1]["loss"] < 0.9 * ours[0]["loss"]
    for other in (theirs, alone):
        for one, wanted in zip(ours, other, strict=True):
            assert one["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
            assert one["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
