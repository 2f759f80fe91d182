"""State that is moved between an accelerator and host memory while nobody computes with it."""

import torch
from torch import Tensor
from torch.optim import Optimizer


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Moves an optimizer's state; single numbers, such as a count of steps, stay where the optimizer put them."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.numel() > 1:
                state[name] = value.to(device)
