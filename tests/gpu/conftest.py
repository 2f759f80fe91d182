"""Tests on one GPU, `pytest -m gpu tests/gpu`, and on several, `pytest -m multi_gpu tests/gpu`.

A test that takes `device` runs on the CPU too, there without the marker, as every other test: what
fails on the CPU would fail on a GPU. One that takes `gpu` needs a GPU, and its docstring says why.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from titanrun.distributed.device import CPU, select_device

MARKERS = {"gpu": 1, "multi_gpu": 2}
ON_GPU = pytest.param("gpu", marks=pytest.mark.gpu)


def find_missing(item: pytest.Item) -> str | None:
    """What this machine lacks for the test, None if nothing."""
    there = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    needed = max(MARKERS[mark.name] for mark in item.iter_markers() if mark.name in MARKERS)
    if there >= needed:
        return None
    return f"needs {needed} GPU{'s' * (needed > 1)}, torch {torch.__version__} finds {there}"


def is_marked(item: pytest.Item) -> bool:
    """Whether the test needs a GPU."""
    return any(mark.name in MARKERS for mark in item.iter_markers())


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """A session of nothing but tests that cannot run fails, and says why."""
    if session.config.option.collectonly or not all(map(is_marked, session.items)):
        return
    missing = [reason for item in session.items if (reason := find_missing(item))]
    if missing and len(missing) == len(session.items):
        pytest.exit(
            f"none of the {len(missing)} selected tests can run here: each {missing[0]}",
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that cannot run here beside others that can."""
    if is_marked(item) and (reason := find_missing(item)):
        pytest.skip(reason)


def pytest_itemcollected(item: pytest.Item) -> None:
    """On a GPU, warnings are shown and are no errors: torch has some that no CPU test sees."""
    if is_marked(item):
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first GPU, warm: libraries are loaded, and Triton has compiled a kernel."""
    # read at the first product of matrices, which a later test cannot take back
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = select_device("gpu")
    warm_up(device)
    return device


def warm_up(device: torch.device) -> None:
    """Load the libraries of products, and start what inductor starts once in a process."""
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.ones(64, 64, device=device, dtype=dtype, requires_grad=True)
        (square @ square).float().sum().backward()
    compiled = torch.compile(lambda x: (x.sin() * 2).sum(-1))
    compiled(torch.ones(64, 64, device=device, requires_grad=True)).sum().backward()
    torch.accelerator.synchronize(device)


# of a test, not of the session: pytest would put the tests of a device first
@pytest.fixture(params=["cpu", ON_GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and with -m gpu the GPU."""
    if request.param == "cpu":
        return CPU
    found: torch.device = request.getfixturevalue("gpu")
    return found


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("gpu", marks=pytest.mark.multi_gpu),
    ]
)
def devices(request: pytest.FixtureRequest) -> str:
    """The device of several ranks, as a recipe names it."""
    kind: str = request.param
    return kind


@pytest.fixture(
    params=[
        # Triton's interpreter: make test-triton
        pytest.param("cpu", marks=pytest.mark.triton),
        ON_GPU,
    ]
)
def kernel_device(request: pytest.FixtureRequest) -> torch.device:
    """A device that runs Triton kernels."""
    if request.param == "cpu":
        return CPU
    found: torch.device = request.getfixturevalue("gpu")
    return found


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    """What a run sets for its process does not reach the next test."""
    cudnn: Any = torch.backends.cudnn
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
    )
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    cudnn.deterministic, cudnn.benchmark = before[2:]
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")
