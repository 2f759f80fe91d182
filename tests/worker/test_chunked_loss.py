"""A loss whose logits are made chunk by chunk is the loss, and holds a chunk's logits only."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
Metrics = Callable[..., list[dict[str, float]]]
ROWS = ["training.steps=3"]


def trainer_of(resolved: Path) -> AbstractContextManager[TrainLoop]:
    """The trainer of a run."""
    return build_train_loop(
        load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=SignalRequests()
    )


def chunked(number: int, settings: str = "") -> str:
    return f"loss={{name: chunked_cross_entropy, num_chunks: {number}{settings}}}"


# rows have 16 tokens: even chunks, uneven ones, and more chunks than tokens
@pytest.mark.parametrize("number", [1, 4, 5, 40])
@pytest.mark.parametrize(
    "settings",
    ["", ", label_smoothing: 0.1", ", z_loss: 0.01"],
    ids=["plain", "smoothed", "with_z_loss"],
)
def test_it_is_the_plain_loss_to_1e_6(number: int, settings: str, metrics: Metrics) -> None:
    plain = metrics(*ROWS, f"loss={{name: cross_entropy{settings}}}")
    found = metrics(*ROWS, chunked(number, settings))
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in found] == pytest.approx(
            [line[name] for line in plain], rel=1e-6
        )


class ProductRows(TorchDispatchMode):
    """Notes how many rows the products with so many columns have."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns
        self.rows: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and found.size(1) == self.columns:
            self.rows.add(found.size(0))
        return found


@pytest.mark.parametrize("number", [2, 4, 8])
def test_the_head_makes_the_logits_of_a_chunk_at_a_time(number: int, run: Run) -> None:
    def rows_of(chunks: int) -> set[int]:
        # no other weight has as many columns
        resolved = run(f"in-{chunks}", *ROWS, "model.vocab_size=271", chunked(chunks))
        with trainer_of(resolved) as trainer, ProductRows(271) as products:
            trainer.train()
        return products.rows

    [tokens] = rows_of(1)
    assert tokens % 8 == 0 and rows_of(number) == {tokens // number}


def test_what_is_measured_are_the_logits(run: Run) -> None:
    found = {}
    for folder, loss in (("plain", "loss=cross_entropy"), ("chunked", chunked(4))):
        with trainer_of(run(folder, *ROWS, loss)) as trainer:
            batch = TokenBatch.from_sequences(torch.arange(34).view(2, 17))
            found[folder] = trainer.engine.forward(batch, outputs=("logits",))["logits"]
    torch.testing.assert_close(found["plain"], found["chunked"], rtol=0, atol=0)


PEAK = """
import json, sys, torch
from torch import nn
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import ChunkedCrossEntropyConfig
from titanrun.distributed.chunked_loss import ChunkedLMHead
from titanrun.distributed.device import get_peak_memory_bytes
from titanrun.distributed.head_loss import HeadLossOptions, compute_logit_gradients
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.training.runners.chunked_forward_backward import ChunkedLossForwardBackward
from titanrun.training.runners.forward_backward import FullModelForwardBackward

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(16000, 16), nn.Linear(16, 16000, bias=False)
    def forward(self, tokens, positions=None):
        return self.output(self.embedding(tokens))

chunks = int(sys.argv[1])
config = ChunkedCrossEntropyConfig(num_chunks=max(chunks, 1))
model, device = Model(), torch.device("cpu")
weights = WorkingWeights(model, get_precision("float32", "float32"))
if chunks:
    options = HeadLossOptions(chunks, 0.0, 0.0, compute_logit_gradients)
    head = ChunkedLMHead(
        model.output, chunks, needs_full_logits=False, cross_entropy=options
    )
    loss = config.load_builder()(config)
    passes = ChunkedLossForwardBackward(model, loss, weights, head)
else:
    passes = FullModelForwardBackward(model, config.load_builder()(config), weights)
batch = TokenBatch.from_sequences(torch.randint(16000, (1, 4097)))
first = TokenBatch.from_sequences(torch.randint(16000, (1, 65)))
passes.forward_backward(first, torch.tensor(64))
before = get_peak_memory_bytes(device)
passes.forward_backward(batch, torch.tensor(4096))
print(json.dumps((get_peak_memory_bytes(device) - before) / 2**20))
"""


@pytest.mark.slow
def test_peak_memory_falls_with_the_number_of_chunks() -> None:
    def peak_mib(chunks: int) -> float:
        # what is freed goes back to the system at once, as on a device
        environment = {
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "MALLOC_TRIM_THRESHOLD_": "65536",
        }
        command = [sys.executable, "-c", PEAK, str(chunks)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return float(json.loads(done.stdout))

    plain, four, sixteen = peak_mib(0), peak_mib(4), peak_mib(16)
    # 4096 tokens x 16000 words x 4 bytes are 250 MiB, of which the plain loss holds two at the
    # least
    assert plain > 450
    assert four < 0.3 * plain
    assert sixteen < 0.1 * plain
