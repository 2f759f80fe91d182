"""bf16 copies of fp32 weights: one rank computes what torch's FSDP2 computes, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.distributed.ranks import train
from tests.integrations.parts import on_ranks
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.training.runners.forward_backward import FullModelForwardBackward
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.build.build_model import build_model, materialize_and_init
from titanrun.worker.build.build_parallelism import compile_model

CPU = torch.device("cpu")
BF16, FP32 = get_precision("float32", "bfloat16"), get_precision("float32", "float32")
PASSES = 2
SMALL = "dim: 64, n_heads: 4"
LLAMA3 = f"name: llama3, flavor: debugmodel, n_layers: 2, {SMALL}"
EXPERTS = "moe: {num_experts: 4, top_k: 2, hidden_dim: 96"
LATENT = (
    "q_lora_rank: 24, kv_lora_rank: 32, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 16"
)
FAMILIES = {
    "llama3": LLAMA3,
    "llama3_tied": f"{LLAMA3}, tie_word_embeddings: true",
    "qwen3": f"name: qwen3, flavor: debugmodel, n_layers: 2, {SMALL}, n_kv_heads: 2, head_dim: 16",
    "gpt_oss": f"name: gpt_oss, flavor: debugmodel, n_layers: 2, vocab_size: 2048, {SMALL}, "
    f"n_kv_heads: 2, head_dim: 16, {EXPERTS}}}",
    "deepseek_v3": f"name: deepseek_v3, flavor: debugmodel, n_layers: 2, {SMALL}, {LATENT}, "
    f"{EXPERTS}, num_shared_experts: 1}}",
    "llama4": f"name: llama4, flavor: debugmodel_irope, n_layers: 4, every_n_layers_nope: 4, "
    f"{SMALL}, n_kv_heads: 2, head_dim: 16, {EXPERTS}}}",
}
NARROW = ("model.dim=64", "model.n_heads=8")
FP32_HEAD = "converters: [fp32_lm_head]\n"


def built(folder: Path, model: str, *rest: str) -> nn.Module:
    """A model with the weights of seed 0, in fp32, with the converters and compiled as asked."""
    (folder / "recipe.yaml").write_text(
        f"version: 1\nmodel: {{{model}}}\ntraining: {{dataset: tiny, seq_len: 32}}\n{''.join(rest)}"
    )
    recipe = resolve_recipe(str(folder / "recipe.yaml"), [], environment={}).run
    whole = build_model(recipe, BF16)
    convert_model(recipe, whole, meshes=None)
    compile_model(recipe, whole)
    materialize_and_init(whole, device=CPU, seed=0)
    return whole


def batches() -> list[TokenBatch]:
    generator = torch.Generator().manual_seed(1)
    return [
        TokenBatch.from_sequences(torch.randint(2000, (2, 33), generator=generator))
        for _ in range(PASSES)
    ]


def passed(model: nn.Module, weights: WorkingWeights) -> dict[str, Tensor]:
    """The losses of two passes and the sums of their gradients."""
    passes = FullModelForwardBackward(model, CrossEntropyLoss(CrossEntropyConfig()), weights)
    losses = [passes.forward_backward(batch, torch.tensor(64.0 * PASSES)) for batch in batches()]
    found = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {"loss": torch.stack(losses), **found}


def by_fsdp(folder: Path, model: str, *rest: str) -> dict[str, Tensor]:
    """As torch's own FSDP2 computes on one rank: an embedding, each layer and the head a group."""
    whole: Any = built(folder, model, *rest)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard: Callable[..., Any] = lambda modules, policy=policy: fully_shard(  # noqa: E731
        modules, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy
    )
    for layer in whole.layers.children():
        shard(layer)
    ends = [whole.tok_embeddings, whole.norm, whole.output]
    if ends[0].weight is ends[2].weight:
        shard(ends)
    elif FP32_HEAD in rest:
        shard(ends[0])
        shard(ends[1])
        shard(ends[2], MixedPrecisionPolicy(reduce_dtype=torch.float32))
    else:
        shard(ends[0])
        shard(ends[1:])
    shard(whole)
    found = passed(whole, WorkingWeights(whole, FP32))
    return {
        name: tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for name, tensor in found.items()
    }


@pytest.mark.parametrize(
    ("family", "rest"),
    [
        *((family, "") for family in FAMILIES),
        ("llama3", FP32_HEAD),
        ("llama3", "activation_checkpoint: full\n"),
    ],
)
def test_one_rank_computes_what_fsdp_computes(family: str, rest: str, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    model = built(tmp_path, FAMILIES[family], rest)
    found = passed(model, WorkingWeights(model, BF16))
    (expected,) = on_ranks(1, by_fsdp, tmp_path / "ranks", tmp_path, FAMILIES[family], rest)
    assert found.keys() == expected.keys() and len(found) > 10
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    unequal = [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])]
    assert unequal == []


ADAPTERS = "{name: lora, rank: 4}"
DORA = "{name: lora, rank: 4, magnitude: true}"
OF_EXPERTS = "{name: lora, rank: 4, target_modules: [wo, experts]}"


@pytest.mark.parametrize(
    ("family", "converters"),
    [
        ("llama3", ADAPTERS),
        ("llama3", DORA),
        ("llama3_tied", ADAPTERS),
        ("llama3", f"fp32_lm_head, {ADAPTERS}"),
        ("gpt_oss", ADAPTERS),
        ("deepseek_v3", OF_EXPERTS),
    ],
)
def test_weights_that_adapters_freeze_have_no_copies_and_compute_the_same(
    family: str, converters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = f"converters: [{converters}]\n"
    model = built(tmp_path, FAMILIES[family], rest)
    stored = {parameter.dtype for parameter in model.parameters() if not parameter.requires_grad}
    assert torch.bfloat16 in stored
    # a head in fp32, and routers, compute as stored
    kept = {
        name
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad and parameter.dtype == torch.float32
    }
    assert all("output" in name or "router" in name for name in kept), kept
    assert any("output" in name for name in kept) is ("fp32_lm_head" in converters)
    weights = WorkingWeights(model, BF16)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.float32}
    assert weights.num_bytes == 2 * sum(parameter.numel() for parameter in trained)
    found = passed(model, weights)
    monkeypatch.setattr(
        "titanrun.worker.build.apply_converters.cast_frozen_weights", lambda *given: None
    )
    whole = built(tmp_path, FAMILIES[family], rest)
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.float32}
    expected = passed(whole, WorkingWeights(whole, BF16))
    assert found.keys() == expected.keys() and len(found) > 3
    if converters != DORA:  # its magnitudes are norms of the weights as stored
        assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_frozen_weights_that_are_gathered_in_float8_stay_in_fp32(tmp_path: Path) -> None:
    """torchao's wrapper would name bf16, but hold fp32."""
    rest = (
        "converters: [{name: float8_linear, recipe_name: tensorwise, emulate: true, "
        f"enable_fsdp_float8_all_gather: true}}, {ADAPTERS}]\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        f"version: 1\nmodel: {{{FAMILIES['llama3']}}}\ntraining: {{dataset: tiny}}\n{rest}"
    )
    recipe = resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}, ranks=2).run
    model = build_model(recipe, BF16)
    meshes: Any = SimpleNamespace(parallel_dims=SimpleNamespace(fsdp_size=2))
    convert_model(recipe, model, meshes=meshes)
    weight, norm = (
        model.get_parameter(f"layers.0.{name}.weight") for name in ("attention.wq", "ffn_norm")
    )
    assert type(weight) is not nn.Parameter and not weight.requires_grad
    assert (weight.dtype, norm.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_compiled_layers_compute_with_the_copies_and_are_compiled_once(tmp_path: Path) -> None:
    compiled = "compile: {enable: true, backend: aot_eager}\n"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = built(tmp_path, FAMILIES["llama3"], compiled)
    weights = WorkingWeights(model, BF16)
    found = {name: tensor.clone() for name, tensor in passed(model, weights).items()}
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    weights.mark_stale()
    passed(model, weights)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs == 1
    plain = built(tmp_path, FAMILIES["llama3"])
    expected = passed(plain, WorkingWeights(plain, BF16))
    for name, tensor in found.items():
        assert (tensor - expected[name]).norm() <= 2e-2 * expected[name].norm(), name


def test_outside_of_a_pass_the_model_has_its_own_parameters(tmp_path: Path) -> None:
    model = built(tmp_path, FAMILIES["llama3_tied"])
    own = dict(model.named_parameters())
    weights = WorkingWeights(model, BF16)
    with weights.swap_in(), weights.swap_in():
        swapped = dict(model.named_parameters())
        with pytest.raises(AssertionError, match="working copies"):
            model.state_dict()
        with pytest.raises(AssertionError, match="working copies"):
            weights.to(torch.device("cpu"))
    assert swapped.keys() == own.keys()
    assert {parameter.dtype for parameter in swapped.values()} == {torch.bfloat16}
    assert model.output.weight is model.tok_embeddings.weight is own["tok_embeddings.weight"]
    assert all(dict(model.named_parameters())[name] is own[name] for name in own)
    assert weights.num_bytes == 2 * sum(parameter.numel() for parameter in own.values())
    with pytest.raises(ZeroDivisionError), weights.swap_in():
        1 / 0  # noqa: B018
    assert model.norm.weight is own["norm.weight"]


def test_the_copies_follow_every_write_to_the_weights(tmp_path: Path) -> None:
    model = built(tmp_path, FAMILIES["llama3"])
    weights = WorkingWeights(model, BF16)
    weight = model.get_parameter("norm.weight")
    with torch.no_grad():
        weight.detach().fill_(3)
    with weights.swap_in():
        assert model.norm.weight.eq(3).all()
    weight.data.copy_(torch.full_like(weight, 4))
    weights.mark_stale()
    with weights.swap_in():
        assert model.norm.weight.eq(4).all()


def test_hooks_on_the_weights_get_the_whole_gradient(tmp_path: Path) -> None:
    model = built(tmp_path, FAMILIES["llama3"])
    weights, seen = WorkingWeights(model, BF16), []
    weight = model.get_parameter("norm.weight")
    weight.register_post_accumulate_grad_hook(
        lambda parameter: seen.append((parameter is weight, parameter.grad.dtype))
    )
    found = passed(model, weights)
    assert seen == [(True, torch.float32)] * PASSES
    assert weight.grad is found["norm.weight"]


def test_nothing_is_copied_where_nothing_is_cast(tmp_path: Path) -> None:
    model = built(tmp_path, FAMILIES["llama3"])
    weights = WorkingWeights(model, FP32)
    with weights.swap_in():
        assert model.norm.weight.dtype == torch.float32
    assert weights.num_bytes == 0


def test_frozen_weights_get_no_gradients(tmp_path: Path) -> None:
    model = built(
        tmp_path,
        FAMILIES["llama3"],
        "converters: [{name: lora, rank: 4, target_modules: [wq]}]\n",
    )
    found = passed(model, WorkingWeights(model, BF16))
    assert set(found) == {
        "loss",
        *(f"layers.{i}.attention.wq.lora_{which}" for i in (0, 1) for which in "ab"),
    }


@pytest.mark.parametrize(
    "schedule",
    ["1F1B", pytest.param("ZBVZeroBubble", marks=pytest.mark.slow)],
)
def test_pipeline_stages_compute_with_copies_too(schedule: str) -> None:
    mixed = (*NARROW, "training.mixed_precision_param=bfloat16")
    pipeline = (
        "parallelism.pipeline_parallel_degree=2",
        f"parallelism.pipeline_parallel_schedule={schedule}",
    )
    expected, found = train(1, mixed), train(2, (*mixed, *pipeline), look=dtypes_between_stages)
    assert found.build_mask == [[torch.bfloat16]] * 2
    for line, wanted in zip(found.numbers, expected.numbers, strict=True):
        assert line["loss"] == pytest.approx(wanted["loss"], rel=2e-3)
        assert line["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=2e-2)


def dtypes_between_stages(trainer: TrainLoop) -> list[torch.dtype]:
    """The dtypes that this rank's stages send and receive."""
    runner: Any = trainer.engine.runner
    sides = [side for both in runner.pipeline._stage_io.values() for side in both]
    return sorted({side.dtype for side in sides if side.is_floating_point()} - {torch.float32})
