"""Tensor parallelism does what its settings say, and outputs of tokens do not depend on how the
vocabulary is split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import train
from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.precision import get_precision
from titanrun.distributed.tensor_parallel import find_plan_pattern
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.worker.build.build_model import build_model

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
IN_BF16 = (
    *SHORT,
    "training.mixed_precision_param=bfloat16",
    "training.seq_len=32",
    "training.local_batch_size=1",
)


def look(trainer: TrainLoop) -> dict[str, Any]:
    """What a rank holds of a weight, of the stream between the layers and of the logits, and what
    it says about tokens."""
    engine = trainer.engine
    rows = torch.randint(
        0, VOCABULARY, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0)
    )
    batch = TokenBatch.from_sequences(rows)
    batch.loss_mask[:, :3] = False
    found: dict[str, Any] = {
        "weight": tuple(to_local(engine.model.get_parameter("layers.0.attention.wq.weight")).shape)
    }

    def note(_: object, __: object, logits_BTV: Tensor) -> None:
        found["kept"] = tuple(to_local(logits_BTV).shape)

    def note_stream(_: object, arguments: tuple[Tensor, ...]) -> None:
        found["stream"] = tuple(arguments[0].shape)

    hooks = [
        engine.model.register_forward_hook(note),
        engine.model.get_submodule("layers.0").register_forward_pre_hook(note_stream),
    ]
    found |= engine.forward(batch, outputs=["logprobs", "entropy", "logits"])
    for hook in hooks:
        hook.remove()
    return found


def run(nproc: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """What each rank saw after one step."""
    return train(nproc, [*SHORT, *overrides], look=look).build_mask


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What one process sees."""
    (seen,) = run(1, [])
    return seen


@pytest.mark.parametrize(
    ("overrides", "stream", "kept"),
    [
        ([], (ROWS, TOKENS // 2, 256), [(ROWS, TOKENS, 1025), (ROWS, TOKENS, 1024)]),
        (
            ["parallelism.enable_sequence_parallel=false"],
            (ROWS, TOKENS, 256),
            [(ROWS, TOKENS, 1025), (ROWS, TOKENS, 1024)],
        ),
        (
            ["parallelism.disable_loss_parallel=true"],
            (ROWS, TOKENS // 2, 256),
            [(ROWS, TOKENS, VOCABULARY)] * 2,
        ),
    ],
    ids=["default", "whole-stream", "whole-logits"],
)
def test_ranks_hold_parts_and_say_what_one_process_says(
    expected: dict[str, Any],
    overrides: list[str],
    stream: tuple[int, ...],
    kept: list[tuple[int, ...]],
) -> None:
    seen = run(2, [TP2, *overrides])
    assert [rank["weight"] for rank in seen] == [(128, 256)] * 2
    assert [rank["stream"] for rank in seen] == [stream] * 2
    assert [rank["kept"] for rank in seen] == kept
    for rank in seen:
        for name in ("logprobs", "entropy", "logits"):
            torch.testing.assert_close(rank[name], expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_logprobs_from_parts_of_the_vocabulary_are_those_of_one_process(
    expected: dict[str, Any],
) -> None:
    labels = torch.randint(
        0, VOCABULARY, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0)
    )[:, 1:, None]
    for rank in run(2, [TP2]):
        assert rank["kept"] < (ROWS, TOKENS, VOCABULARY)
        exact = rank["logits"].double().log_softmax(-1).gather(-1, labels).squeeze(-1)
        exact[:, :3] = 0
        assert (rank["logprobs"] - exact).abs().max() < 1e-6
        # near -8, and after a step of training, which leaves weights that differ in their last bits
        torch.testing.assert_close(rank["logprobs"], expected["logprobs"], rtol=1e-6, atol=0)


def computed_in(trainer: TrainLoop) -> set[torch.dtype]:
    """The dtypes that the matrix products of a layer gave in a forward pass."""
    found: set[torch.dtype] = set()

    def note(_: object, __: object, output: Tensor) -> None:
        found.add(output.dtype)

    for name in ("attention.wq", "attention.wo", "feed_forward.w1", "feed_forward.w2"):
        trainer.engine.model.get_submodule(f"layers.0.{name}").register_forward_hook(note)
    trainer.engine.evaluate_loss(TokenBatch.from_sequences(torch.zeros(1, 9, dtype=torch.int64)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4], ids=["working_weights", "fsdp"])
def test_matrices_multiply_in_bf16_with_and_without_shards(ranks: int) -> None:
    expected, found = train(1, IN_BF16), train(ranks, [*IN_BF16, TP2], look=computed_in)
    assert found.build_mask == [{torch.bfloat16}] * ranks
    assert found.numbers[0] == pytest.approx(expected.numbers[0], rel=1e-3)


DENSE = "name: llama3, flavor: debugmodel"
SIZES = {
    "llama3": [DENSE],
    "qwen3": [
        "name: qwen3, flavor: debugmodel",
        "name: qwen3, flavor: debugmodel_moe, moe: {num_shared_experts: 1}",
    ],
}


@pytest.mark.parametrize("family", SIZES)
def test_every_line_of_a_plan_is_for_some_module(family: str, tmp_path: Path) -> None:
    used = set()
    for sizes in SIZES[family]:
        (tmp_path / "recipe.yaml").write_text(
            f"version: 1\nmodel: {{{sizes}, n_layers: 1}}\ntraining: "
            f"{{dataset: tiny, seq_len: 16}}\n"
        )
        recipe = resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}).run
        plan = load_family_module(type(recipe.model), "parallelize").TENSOR_PLAN
        model = build_model(recipe, get_precision("float32", "float32"))
        used |= {find_plan_pattern(name, plan) for name, _ in model.named_modules()}
    assert used - {None} == set(plan)
