"""Seeds, deterministic kernels, and RNG states."""

import hashlib
import random
from typing import Self

import numpy as np
import torch
from torch import nn

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.rank_env import set_variable_default

NUMPY_SEED_LIMIT = 2**32


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEED_LIMIT)
    torch.manual_seed(seed)


def enable_deterministic_algorithms(*, warn_only: bool) -> None:
    """Restrict torch to deterministic kernels. Others raise, or warn if `warn_only` is set."""
    # cuBLAS is deterministic only with a fixed workspace, and reads this when its first handle is
    # created
    set_variable_default("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


class WeightInitRng(torch.Generator):
    """Generator for initial weights that depend only on the seed and the parameter's name.

    Each rank draws the same numbers that a single process would draw, whatever part of the model it
    holds, and other draws do not change them.
    """

    def __new__(cls, seed: int, device: torch.device, model: nn.Module) -> Self:
        """Create a generator on `device` for the parameters that `model` has now."""
        return super().__new__(cls, device)  # type: ignore[call-arg]  # torch types __init__ alone

    def __init__(self, seed: int, device: torch.device, model: nn.Module) -> None:
        self._seed = seed
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}

    def seed_for_parameter(self, parameter: torch.Tensor) -> None:
        """Seed the generator for one parameter."""
        digest = hashlib.sha256(f"{self._seed}/{self._names[id(parameter)]}".encode()).digest()
        self.manual_seed(int.from_bytes(digest[:8], "little"))


def get_rng_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of the global generators as tensors by name."""
    version, words, next_gauss = random.getstate()
    name, keys, position, has_gauss, cached_gauss = np.random.get_state(legacy=True)
    assert (version, name) == (3, "MT19937") and not isinstance(keys, str)
    states = {
        "python.words": torch.tensor(words, dtype=torch.int64),
        "python.next_gauss": torch.tensor(
            [] if next_gauss is None else [next_gauss], dtype=torch.float64
        ),
        "numpy.keys": torch.from_numpy(keys.astype(np.int64)),
        "numpy.position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy.cached_gauss": torch.tensor([cached_gauss], dtype=torch.float64),
        "torch.cpu": torch.get_rng_state(),
    }
    if is_accelerator(device):
        states["torch.device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_rng_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restore the states that `get_rng_states` returned.

    The state of a device is skipped on a device of another kind.
    """
    next_gauss = states["python.next_gauss"].tolist()
    random.setstate(
        (3, tuple(states["python.words"].tolist()), next_gauss[0] if next_gauss else None)
    )
    keys = states["numpy.keys"].numpy().astype(np.uint32)
    position, has_gauss = states["numpy.position"].tolist()
    np.random.set_state(("MT19937", keys, position, has_gauss, states["numpy.cached_gauss"].item()))
    torch.set_rng_state(states["torch.cpu"])
    if is_accelerator(device) and "torch.device" in states:
        torch.get_device_module(device).set_rng_state(states["torch.device"], device)
