"""Converters on several ranks: the losses and gradients of one process, whoever shares, splits,
recomputes or compiles."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import Case, Trained, alone, case, train
from titanrun.distributed.dtensor import full_tensor, to_local
from titanrun.training.loop import TrainLoop

# products in few bits round up to 6% away: what differs by 1e-7 before may differ by that much
# after, in a few elements
LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 0.02
# float8 gradients have two bits behind the point, and scales come from other tokens in a pipeline
# or in parts of rows, and with a
# float8 gather from each tensor-parallel rank's part of a weight
OTHER_SCALES = {"fsdp2_tp2": 0.1, "fsdp2_pp2": 0.1, "fsdp2_cp2": 0.1}
SHORT = ("training.steps=2", "lr_scheduler.warmup_steps=1", "validation.enable=false")
SIZES = "dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: 2"
SMALL = (
    f"model={{name: llama3, flavor: debugmodel, {SIZES}, feed_forward: {{hidden_dim: 128}}}}",
    *SHORT,
)
MIXTURE = (
    f"model={{name: qwen3, flavor: debugmodel_moe, {SIZES}, moe: {{num_experts: 4, top_k: 2, "
    f"hidden_dim: 128}}}}",
    *SHORT,
)
FLOAT8 = (*SMALL, "converters=[{name: float8_linear, emulate: true, filter_fqns: [output]}]")
ROWWISE = (*SMALL, "converters=[{name: float8_linear, emulate: true, recipe_name: rowwise}]")
MXFP8 = (*SMALL, "converters=[{name: mxfp8_linear, emulate: true}]")
QAT = (*SMALL, "converters=[qat]")
EXPERTS = (*MIXTURE, "converters=[{name: mxfp8_grouped_mm, emulate: true}]")
GATHER = ("converters[0].enable_fsdp_float8_all_gather=true",)
BEFOREHAND = (*GATHER, "converters[0].precompute_float8_dynamic_scale_for_fsdp=true")
MIXED = "training.mixed_precision_param=bfloat16"
TP2, EP2 = "parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=2"
CP2, DDP2 = "parallelism.context_parallel_degree=2", "parallelism.data_parallel_replicate_degree=2"
PP2 = ("parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=1F1B")
FULL, OPERATIONS = (
    "activation_checkpoint=full",
    "activation_checkpoint={name: selective, selective_ac_option: op}",
)
COMPILED = "compile={enable: true, backend: aot_eager}"

CASES = [
    case("fsdp2_recomputed", nproc=2, base=FLOAT8, overrides=[*BEFOREHAND, FULL], slow=True),
    case(
        "fsdp2_compiled_operations",
        nproc=2,
        base=FLOAT8,
        overrides=[*BEFOREHAND, COMPILED, OPERATIONS],
        slow=True,
    ),
    case("hsdp2x2", nproc=4, base=FLOAT8, overrides=[*BEFOREHAND, DDP2], slow=True),
    case("ddp2", nproc=2, base=FLOAT8, overrides=[DDP2], slow=True),
    case("tp2_rowwise", nproc=2, base=ROWWISE, overrides=[TP2], slow=True),
    case("fsdp2_tp2", nproc=4, base=FLOAT8, overrides=[*BEFOREHAND, TP2], slow=True),
    case("fsdp2_pp2", nproc=4, base=FLOAT8, overrides=[*BEFOREHAND, *PP2], slow=True),
    case("fsdp2_cp2", nproc=2, base=FLOAT8, overrides=[*BEFOREHAND, CP2], slow=True),
    case("fsdp2_mxfp8", nproc=2, base=MXFP8, slow=True),
    case("tp2_mxfp8", nproc=2, base=MXFP8, overrides=[TP2], slow=True),
    case("fsdp2_qat_compiled", nproc=2, base=QAT, overrides=[COMPILED], slow=True),
    case("tp2_qat", nproc=2, base=QAT, overrides=[TP2], slow=True),
    case("fsdp2_pp2_qat_recomputed", nproc=4, base=QAT, overrides=[*PP2, FULL], slow=True),
    case("fsdp2_ep2_experts", nproc=2, base=EXPERTS, overrides=[EP2], slow=True),
    case("tp2_experts", nproc=2, base=EXPERTS, overrides=[TP2], slow=True),
]


@pytest.mark.parametrize("layout", CASES)
def test_converted_modules_train_as_in_one_process(layout: Case) -> None:
    expected, found = alone(layout.base), train(layout.nproc, [*layout.base, *layout.overrides])
    assert losses(found) == pytest.approx(losses(expected), rel=LOSS_TOLERANCE)
    (reference,) = expected.gradients
    seen = {name: gradient for gradients in found.gradients for name, gradient in gradients.items()}
    assert seen.keys() == reference.keys()
    for name, gradient in seen.items():
        difference = (gradient - reference[name]).norm() / reference[name].norm()
        assert difference <= OTHER_SCALES.get(layout.name, GRADIENT_TOLERANCE), (
            f"{name}: {difference}"
        )


def losses(run: Trained) -> list[float]:
    """The loss of each step."""
    return [line["loss"] for line in run.numbers]


@pytest.mark.slow
def test_how_weights_are_gathered_changes_no_bit() -> None:
    plain, gathered, beforehand = (
        train(2, [*FLOAT8, *options]) for options in ((), GATHER, BEFOREHAND)
    )
    assert plain.numbers == gathered.numbers == beforehand.numbers


def look(trainer: TrainLoop) -> dict[str, Any]:
    """What FSDP gathers a layer's and the head's weight as, and whether the scale is known
    beforehand."""
    model, seen = trainer.engine.model, {}
    name = "layers.0.feed_forward.w1"
    model.get_submodule(name).register_forward_pre_hook(
        lambda module, _: seen.update(layer=type(module.weight.data).__name__)
    )
    model.output.register_forward_pre_hook(
        lambda module, _: seen.update(head=str(module.weight.dtype))
    )
    part = model.get_parameter(f"{name}.weight")._local_tensor
    model(torch.zeros(1, 64, dtype=torch.int64))
    saved = trainer.engine.named_state_tensors()[f"model.{name}.weight"]
    return {
        **seen,
        "is_scaled": getattr(part, "_precomputed_scale", None) is not None,
        "is_plain": type(to_local(saved)) is torch.Tensor,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "layer", "head", "is_scaled"),
    [
        (FLOAT8, "Tensor", "torch.float32", False),
        ((*FLOAT8, *GATHER), "Float8TrainingTensor", "torch.float32", False),
        ((*FLOAT8, *BEFOREHAND), "Float8TrainingTensor", "torch.float32", True),
        ((*SMALL, MIXED), "Tensor", "torch.bfloat16", False),
        ((*SMALL, MIXED, "converters=[fp32_lm_head]"), "Tensor", "torch.float32", False),
    ],
    ids=["whole", "float8", "beforehand", "bf16_head", "fp32_head"],
)
def test_weights_are_gathered_as_the_recipe_says(
    overrides: tuple[str, ...], layer: str, head: str, is_scaled: bool
) -> None:
    for found in train(2, overrides, look=look).build_mask:
        assert found == {"layer": layer, "head": head, "is_scaled": is_scaled, "is_plain": True}


@pytest.mark.slow
def test_a_head_in_fp32_is_split_as_any_other() -> None:
    base = (*SMALL, MIXED, "converters=[fp32_lm_head]")
    assert losses(train(2, [*base, TP2])) == pytest.approx(losses(alone(base)), rel=1e-4)


def tensors(trainer: TrainLoop) -> dict[str, Tensor]:
    """Weights and optimizer state of a rank's trainer, whole."""
    return {
        name: full_tensor(tensor) for name, tensor in trainer.engine.named_state_tensors().items()
    }


@pytest.mark.slow
def test_a_float8_run_goes_on_in_another_layout(tmp_path: Path) -> None:
    saving = (*FLOAT8, "checkpoint={enable: true, interval: 2}")
    first, *_ = train(2, [*saving, *GATHER], folder=tmp_path, look=tensors).build_mask
    for nproc, layout in ((1, ()), (2, (TP2,))):
        for loaded in train(nproc, [*saving, *layout], folder=tmp_path, look=tensors).build_mask:
            assert [name for name in first if not torch.equal(loaded[name], first[name])] == []
    shorter = "training.steps=2"
    longer = train(
        1, [*(text for text in saving if text != shorter), "training.steps=3"], folder=tmp_path
    )
    assert [len(longer.numbers), longer.numbers[-1]["loss"] < longer.numbers[0]["loss"]] == [
        3,
        True,
    ]
