"""Parts of a step that are measured alone: updates, the head with its loss, and saves."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_ceilings import measure_ceilings
from gpu_optimizers import create_weights, measure_optimizers, time_calls
from gpu_rows import Row
from titanrun.components.checkpoints.async_save import StagingBuffer
from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.distributed.head_loss import HeadLoss, HeadLossOptions, compute_logit_gradients

CHUNKS = 8
Found = dict[str, dict[str, float]]


def measure_head_loss(row: Row, device: torch.device) -> Found:
    """Return milliseconds of the head with its loss, forward and backward.

    The traffic is what it must at least read and write: stream and weight, and their gradients.
    """
    tokens, dim, vocabulary = row.batch * row.seq_len, row.sizes["dim"], row.sizes["vocab_size"]
    make: dict[str, Any] = {"device": device, "dtype": torch.bfloat16, "requires_grad": True}
    stream, weight = torch.randn(tokens, dim, **make), torch.randn(vocabulary, dim, **make)
    labels = torch.randint(vocabulary, (tokens,), device=device)
    ones, scale = torch.ones(tokens, device=device), torch.tensor(1 / tokens, device=device)
    compute = compute_logit_gradients
    if device.type != "cpu":
        compute = torch.compile(compute)
    options = HeadLossOptions(CHUNKS, 0.0, 0.0, compute)

    def call() -> None:
        stream.grad = weight.grad = None
        HeadLoss.apply(stream, weight, labels, ones, scale, options).backward()

    moved = 2 * (stream.nbytes + weight.nbytes)
    return {"head_loss": describe(time_calls(call, device), moved)}


def measure_checkpoint(row: Row, device: torch.device) -> Found:
    """Return milliseconds of copying weights to the host, and of a save to the disk."""
    tensors = {name: each.detach() for name, each in create_weights(row.sizes, device).items()}
    moved = sum(tensor.nbytes for tensor in tensors.values())
    stage = StagingBuffer(is_shared=False)

    def copy() -> None:
        stage.stage(tensors)
        stage.copies.wait()

    copying = time_calls(copy, device)
    staged = stage.stage(tensors)
    stage.copies.wait()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        writer = Saves(CheckpointStore(folder=Path(folder)), staged)
        writing = time_calls(writer.save, torch.device("cpu"), warm=1, calls=2)
    stage.close()
    return {"copy to the host": describe(copying, moved), "save": describe(writing, moved)}


@dataclass
class Saves:
    """Saves the same tensors as one step after the other."""

    store: CheckpointStore
    tensors: dict[str, torch.Tensor]
    step: int = 0

    def save(self) -> None:
        """Save the next step."""
        self.step += 1
        self.store.save(
            Snapshot(step=self.step, tensors=self.tensors, state={}, rng={}, resolved_yaml="")
        )


def describe(seconds: float, moved: int) -> dict[str, float]:
    """Return time and traffic."""
    return {"ms": 1e3 * seconds, "gb_per_second": moved / seconds / 1e9}


PARTS: dict[str, Callable[[Row, torch.device], dict[str, Any]]] = {
    "optimizers": lambda row, device: measure_optimizers(row.sizes, device),
    "head_loss": measure_head_loss,
    "checkpoint": measure_checkpoint,
    "ceilings": measure_ceilings,
}
