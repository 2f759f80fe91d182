"""verl on a CPU: one process group of one rank for all tests of this folder."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**VARIABLES, **ranks, "LOCAL_RANK": "0"}.items():
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
