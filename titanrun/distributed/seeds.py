"""Seeds, deterministic kernels, and the state of every random generator."""

import hashlib
import random
from typing import Self

import numpy as np
import torch
from torch import nn

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.environment import set_default

NUMPY_SEEDS = 2**32


def seed_everything(seed: int) -> None:
    """Seeds the global generators of python, numpy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    torch.manual_seed(seed)


def use_deterministic_kernels(*, warn_only: bool) -> None:
    """Lets torch run only kernels that give the same bits twice; others raise, or warn with `warn_only`."""
    # cuBLAS is deterministic only with a fixed workspace, and reads this when its first handle is made
    set_default("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


class WeightGenerator(torch.Generator):
    """Draws first weights so that each parameter's numbers depend on the seed and its name alone.

    Whatever part of a model a rank holds, it draws what one process alone would draw, and nothing else drawn moves its numbers.
    """

    def __new__(cls, seed: int, device: torch.device, model: nn.Module) -> Self:
        """On `device`, for the parameters that `model` has at this moment."""
        return super().__new__(cls, device)

    def __init__(self, seed: int, device: torch.device, model: nn.Module) -> None:
        self._seed = seed
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}

    def restart_for(self, parameter: torch.Tensor) -> None:
        """Goes to the beginning of the parameter's own numbers."""
        digest = hashlib.sha256(f"{self._seed}/{self._names[id(parameter)]}".encode()).digest()
        self.manual_seed(int.from_bytes(digest[:8], "little"))


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of the global generators as tensors by name."""
    version, words, next_gauss = random.getstate()
    name, keys, position, has_gauss, cached_gauss = np.random.get_state(legacy=True)
    assert (version, name) == (3, "MT19937")
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


def load_random_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Puts the global generators where `random_states` found them; a device state of another kind of device is left out."""
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
