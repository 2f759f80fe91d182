"""The loop to compare with: what one would write by hand around the same model.

It imports torch and the model class only.
"""

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from titanrun.models.llama3.model import Llama3


def train(
    model: Llama3,
    rows_NS: Iterator[Tensor],
    *,
    lr: float,
    max_norm: float,
    device: torch.device,
    bfloat16: bool,
) -> Iterator[tuple[float, float]]:
    """Yield wall and CPU seconds of each step, one optimizer step an item."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    for rows in rows_NS:
        wall, cpu = time.perf_counter(), time.process_time()
        step(model, optimizer, rows.to(device), max_norm=max_norm, bfloat16=bfloat16)
        if device.type != "cpu":
            torch.accelerator.synchronize()
        yield time.perf_counter() - wall, time.process_time() - cpu


def step(
    model: Llama3,
    optimizer: torch.optim.Optimizer,
    rows_BS: Tensor,
    *,
    max_norm: float,
    bfloat16: bool,
) -> Tensor:
    """Take one optimizer step on rows of token ids, and return the mean loss.

    The last id of each row is a label only.
    """
    tokens_BT, labels_BT = rows_BS[:, :-1], rows_BS[:, 1:]
    with torch.autocast(rows_BS.device.type, dtype=torch.bfloat16, enabled=bfloat16):
        logits_BTV = model(tokens_BT)
    loss = (
        cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), reduction="sum")
        / labels_BT.numel()
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
