"""Moves of optimizer state between an accelerator and host memory."""

import torch
from torch import Tensor
from torch.optim import Optimizer


def move_optimizer_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move an optimizer's state to a device.

    Scalars, such as step counts, stay where the optimizer put them.
    """
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.numel() > 1:
                state[name] = value.to(device)
