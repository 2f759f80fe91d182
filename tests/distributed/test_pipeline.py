"""A pipeline does more than train: it evaluates, gives outputs of tokens, counts experts over its
stages, and gives its weights away."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.ranks import alone, train
from tests.distributed.spec.test_parallel_dims import Stage
from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.fsdp import should_reshard_after_forward
from titanrun.distributed.pipeline import build_pipeline_schedule, split_into_stages
from titanrun.distributed.spec.pipeline_stages import (
    PIPELINE_SCHEDULES,
    PipelinePlan,
    get_stages_for_rank,
)
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.training.loop import TrainLoop

SHORT = (
    "training.steps=1",
    "lr_scheduler.warmup_steps=0",
    "training.global_batch_size=4",
    "validation={enable: false}",
)
V_SHAPED = (
    "parallelism.pipeline_parallel_degree=2",
    "parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
)
MODULES = ("tok_embeddings", "layers.0", "layers.1", "layers.2", "norm", "output")


def look(trainer: TrainLoop) -> dict[str, Any]:
    """Outputs of tokens for three rows of different lengths' worth of labels, and all weights by
    name."""
    rows_BS = torch.arange(3 * 33).reshape(3, 33) % 251
    batch = TokenBatch.from_sequences(rows_BS)
    batch.labels[0, 5:] = IGNORE_INDEX
    found = trainer.engine.forward(
        batch, outputs=("logprobs", "entropy", "logits"), temperature=0.7
    )
    evaluated = trainer.engine.evaluate_loss(batch)
    weights = {name: tensor.clone() for name, tensor in trainer.engine.state_dict_stream()}
    numbers = {"loss": evaluated.loss_sum, "tokens": evaluated.valid_tokens}
    return {
        "outputs": found | numbers,
        "weights": weights,
        "training": trainer.engine.model.training,
    }


def test_every_rank_of_a_pipeline_knows_the_outputs_and_the_weights() -> None:
    (expected,) = train(1, SHORT, look=look).build_mask
    ranks = train(
        2, [*SHORT, *V_SHAPED, "parallelism.pipeline_parallel_microbatch_size=2"], look=look
    ).build_mask
    assert len(ranks) == 2
    for found in ranks:
        assert found["training"]
        assert found["weights"].keys() == expected["weights"].keys()
        for name, tensor in expected["outputs"].items():
            torch.testing.assert_close(found["outputs"][name], tensor, rtol=1e-4, atol=1e-4)
    assert all(
        torch.equal(tensor, ranks[1]["weights"][name])
        for name, tensor in ranks[0]["weights"].items()
    )


@pytest.mark.slow
def test_tokens_of_experts_are_counted_once_and_over_all_stages() -> None:
    base = (
        "model={name: qwen3, flavor: debugmodel_moe, n_layers: 2, tie_word_embeddings: false}",
        "metrics.tokens_per_expert=true",
    )
    runs = [alone(base).folder, train(2, [*base, "parallelism.pipeline_parallel_degree=2"]).folder]
    ours, theirs = (
        next(line for line in read_metrics(folder / "metrics.jsonl") if "loss" in line)
        for folder in reversed(runs)
    )
    names = [name for name in theirs if name.startswith("moe/")]
    assert len([name for name in names if "/layer_1/expert_" in name]) > 1
    assert {name: ours[name] for name in names} == pytest.approx(
        {name: theirs[name] for name in names}
    )


@pytest.mark.parametrize("name", PIPELINE_SCHEDULES)
def test_each_name_makes_its_own_schedule(name: str) -> None:
    shape = PIPELINE_SCHEDULES[name]
    stages: list[Any] = [
        Stage(2, shape.stages_per_rank, index)
        for index in get_stages_for_rank(
            0, 2, 2 * shape.stages_per_rank, is_v_shaped=shape.is_v_shaped
        )
    ]
    plan = PipelinePlan(
        stages=((),) * 2 * shape.stages_per_rank,
        schedule=name,
        schedule_csv=None,
        microbatch_size=1,
    )
    schedule = build_pipeline_schedule(plan, stages, 4, lambda output, number: output)
    assert type(schedule).__name__ == f"Schedule{name}"
    assert not schedule.scale_grads


def test_weights_stay_gathered_in_a_pipeline_unless_the_recipe_insists() -> None:
    # what PyTorch gets silently wrong where a schedule splits backward passes
    assert not should_reshard_after_forward("default", is_pipeline=True)
    assert should_reshard_after_forward("default", is_pipeline=False)
    assert should_reshard_after_forward("always", is_pipeline=True)


def small_model() -> nn.Module:
    written = Llama3Config(
        flavor="debugmodel", vocab_size=64, dim=32, n_layers=3, n_heads=2, n_kv_heads=2
    )
    config = Llama3Config.model_validate(resolve_model_sizes(written))
    model: nn.Module = config.load_builder()(config, seq_len=8)
    return model


def test_stages_are_views_of_what_a_rank_keeps() -> None:
    model = small_model()
    plan = PipelinePlan(
        stages=(MODULES[:2], MODULES[2:3], MODULES[3:4], MODULES[4:]),
        schedule="ZBVZeroBubble",
        schedule_csv=None,
        microbatch_size=1,
    )
    stages = split_into_stages(model, plan, pp_rank=0, pp_size=2)
    assert list(stages) == [0, 3]
    kept = dict(model.named_parameters())
    assert {name.split(".")[0] for name in kept} == {"tok_embeddings", "layers", "norm", "output"}
    assert not [name for name in kept if name.startswith(("layers.1", "layers.2"))]
    owned = [id(weight) for stage in stages.values() for weight in stage.parameters()]
    assert sorted(owned) == sorted(map(id, kept.values()))
    model.register_forward_hook(lambda *_: pytest.fail("a stage has hooks of its own"))
    tokens_BT = torch.zeros(1, 8, dtype=torch.int64)
    stream_BTD: Tensor = stages[0](tokens_BT, tokens_BT)
    assert stream_BTD.shape == (1, 8, 32)
    assert stages[3](stream_BTD).shape == (1, 8, 64)
