"""verl on a CPU: one process group of one rank for all tests of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.reserved_port import reserve_port

# verl reads these at its import, in every worker of Ray too
MODULES = (
    "tests.integrations.verl_package.cpu_platform,titanrun.integrations.verl.registered_engine"
)
VARIABLES = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": MODULES,
    "VERL_USE_EXTERNAL_PLUGINS": "none",
    "RAY_AUTH_MODE": "disabled",
}


@pytest.fixture(scope="session")
def verl_on_cpu() -> Iterator[None]:
    """verl with a process group of one rank."""
    # held until the end: between two processes that look for a port, one may take the other's
    with reserve_port() as port, pytest.MonkeyPatch.context() as patch:
        ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "RANK": "0"}
        for name, value in {**VARIABLES, **ranks, "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
            patch.setenv(name, value)
        pytest.importorskip("verl", reason="make test-verl installs it")
        import torch.distributed as dist

        from tests.integrations.verl_package.cpu_platform import open_group, register_fsdp

        open_group()
        register_fsdp()
        yield
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def folder(verl_on_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    from tests.integrations.verl_package.configs import write_model

    return write_model(tmp_path_factory.mktemp("verl") / "model")


@pytest.fixture(scope="session")
def worker_environment() -> dict[str, str]:
    """What a process of verl's own needs in its environment."""
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**VARIABLES, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
