"""Tests on one GPU: `pytest -m gpu tests/gpu`.

TITANRUN_REHEARSE=1 runs those that do not need a GPU's own kernels on the CPU, so that the tests
themselves are tried before a GPU is there.
"""

import os

import pytest
import torch

REHEARSES = os.environ.get("TITANRUN_REHEARSE") == "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU, or the CPU in a rehearsal."""
    return torch.device("cpu") if REHEARSES else torch.device("cuda")


@pytest.fixture
def needs_gpu() -> None:
    """Leaves a test out of a rehearsal."""
    if REHEARSES:
        pytest.skip("needs a GPU's own kernels")
