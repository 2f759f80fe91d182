"""No step waits for the device: on torch's meta device, which has no values, reading one fails."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from titanrun.components.data.document_ids import attach_document_starts
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.lr_schedulers.spec.warmup_stable_decay import WarmupStableDecaySchedule
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.engine import Engine
from titanrun.training.nonfinite import NonFiniteGuard
from titanrun.worker.build.build_model import build_forward_backward, build_loss, build_model
from titanrun.worker.build.build_parallelism import ParallelizedModel

META = torch.device("meta")
BF16 = get_precision("float32", "bfloat16")
FOREACH = "{name: adamw, implementation: foreach}"
SIZES = "flavor: debugmodel, n_layers: 2"
CASES = {
    # model, optimizer, loss
    "llama3": ("{name: llama3, %s}", FOREACH, "cross_entropy"),
    "documents": (
        "{name: llama3, %s, attention: {mask: block_causal, documents: eos}}",
        "{name: adamw, state_dtype: bfloat16}",
        "cross_entropy",
    ),
    "documents of varlen": (
        "{name: llama3, %s, attention: {backend: varlen, mask: block_causal, documents: eos}}",
        FOREACH,
        "cross_entropy",
    ),
    "gpt_oss": (
        "{name: gpt_oss, %s, attention: {backend: sdpa}}",
        FOREACH,
        "cross_entropy",
    ),
    "deepseek_v3": (
        "{name: deepseek_v3, %s}",
        FOREACH,
        "cross_entropy",
    ),
    "llama4": ("{name: llama4, %s}", FOREACH, "cross_entropy"),
    "qwen3 with Muon": ("{name: qwen3, %s}", "{name: muon}", "cross_entropy"),
    "chunks": ("{name: llama3, %s}", "{name: adamw_8bit}", "chunked_cross_entropy"),
}


def build_engine(folder: Path, model: str, optimizer: str, loss: str) -> Engine:
    path = folder / "recipe.yaml"
    path.write_text(
        f"version: 1\nmodel: {model % SIZES}\noptimizer: {optimizer}\nloss: {loss}\n"
        "training: {dataset: tiny, seq_len: 64}\n"
    )
    recipe = resolve_recipe(str(path), [], environment={}).run
    built = build_model(recipe, BF16)
    assert {parameter.device for parameter in built.parameters()} == {META}
    config, weights, computed = recipe.optimizer, WorkingWeights(built, BF16), build_loss(recipe)
    return Engine(
        built,
        config.load_builder()(config, parameters=list(built.named_parameters())),
        WarmupStableDecaySchedule(WarmupStableDecayConfig(total_steps=10, warmup_steps=2)),
        computed,
        device=META,
        working_weights=weights,
        max_norm=1.0,
        runner=build_forward_backward(
            recipe,
            built,
            ParallelizedModel(BF16),
            computed,
            weights,
            device=META,
            meshes=None,
        ),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_step_reads_a_value_of_the_device(case: tuple[str, str, str], tmp_path: Path) -> None:
    engine = build_engine(tmp_path, *case)
    guard = NonFiniteGuard(device=META)
    for step in range(1, 4):
        batch = TokenBatch.from_sequences(torch.randint(2000, (2, 65)))
        if "documents" in case[0]:
            numbered = replace(batch, document_ids=(batch.tokens < 9).cumsum(1))
            batch = attach_document_starts(numbered) if "varlen" in case[0] else numbered
        out = engine.forward_backward([batch, batch])
        engine.optim_step(
            should_update=lambda norm, step=step, loss=out.loss_sum: guard.should_update(  # type: ignore[misc]
                step, loss=loss, grad_norm=norm
            )
        )
    assert engine.steps_done == 3
    # a logged step reads: so this device would have noticed
    with pytest.raises(NotImplementedError, match="meta"):
        guard.read()
