"""Tensor parallelism does what its settings say, and outputs of tokens do not depend on how the vocabulary is split."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import train
from titanrun.components.data.batch import TokenBatch
from titanrun.distributed.shards import own_part
from titanrun.training.trainer import Trainer

ROWS, TOKENS, VOCABULARY = 2, 16, 2049
SHORT = (
    "training.steps=1",
    "lr_scheduler.warmup_steps=0",
    "training.global_batch_size=2",
    "validation={enable: false}",
    "model.n_layers=1",
    f"model.vocab_size={VOCABULARY}",
)
TP2 = "parallelism.tensor_parallel_degree=2"


def look(trainer: Trainer) -> dict[str, Any]:
    """What a rank holds of a weight, of the stream between the layers and of the logits, and what it says about tokens."""
    engine = trainer.engine
    rows = torch.randint(0, VOCABULARY, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    batch = TokenBatch.from_rows(rows)
    batch.loss_mask[:, :3] = False
    found: dict[str, Any] = {"weight": tuple(own_part(engine.model.get_parameter("layers.0.attention.wq.weight")).shape)}

    def note(_: object, __: object, logits_BTV: Tensor) -> None:
        found["kept"] = tuple(own_part(logits_BTV).shape)

    def note_stream(_: object, arguments: tuple[Tensor, ...]) -> None:
        found["stream"] = tuple(arguments[0].shape)

    hooks = [engine.model.register_forward_hook(note), engine.model.get_submodule("layers.0").register_forward_pre_hook(note_stream)]
    found |= engine.forward(batch, outputs=["logprobs", "entropy", "logits"])
    for hook in hooks:
        hook.remove()
    return found


def run(nproc: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """What each rank saw after one step."""
    return train(nproc, [*SHORT, *overrides], look=look).seen


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What one process sees."""
    (seen,) = run(1, [])
    return seen


@pytest.mark.parametrize(
    ("overrides", "stream", "kept"),
    [
        ([], (ROWS, TOKENS // 2, 256), [(ROWS, TOKENS, 1025), (ROWS, TOKENS, 1024)]),
        (["parallelism.enable_sequence_parallel=false"], (ROWS, TOKENS, 256), [(ROWS, TOKENS, 1025), (ROWS, TOKENS, 1024)]),
        (["parallelism.disable_loss_parallel=true"], (ROWS, TOKENS // 2, 256), [(ROWS, TOKENS, VOCABULARY)] * 2),
    ],
    ids=["default", "whole-stream", "whole-logits"],
)
def test_ranks_hold_parts_and_say_what_one_process_says(
    expected: dict[str, Any], overrides: list[str], stream: tuple[int, ...], kept: list[tuple[int, ...]]
) -> None:
    seen = run(2, [TP2, *overrides])
    assert [rank["weight"] for rank in seen] == [(128, 256)] * 2
    assert [rank["stream"] for rank in seen] == [stream] * 2
    assert [rank["kept"] for rank in seen] == kept
    for rank in seen:
        for name in ("logprobs", "entropy", "logits"):
            torch.testing.assert_close(rank[name], expected[name], rtol=1e-4, atol=1e-4)
