"""Adapters of stacked experts: which matrices get them, what they compute and begin with, and how
they are merged."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.conftest import maker
from titanrun.components.checkpoints.adapter_weights import is_adapter, merge_adapters
from titanrun.components.converters.config import LoraConfig, Mxfp8GroupedMmConfig
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.converters.grouped_mm import set_grouped_mm
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.config import ModelConfig
from titanrun.training.preference_inputs import disable_adapters
from titanrun.worker.build.build_model import materialize_and_init, named_trainable_parameters

CPU = torch.device("cpu")
MOE = {"num_experts": 4, "top_k": 2, "hidden_dim": 24}
MIXTURE: Any = maker(Qwen3Config, {})(
    "debugmodel_moe", n_layers=2, dim=32, n_heads=2, n_kv_heads=2, moe=MOE
)
MOE_OF_32 = {**MOE, "hidden_dim": 32}
CLAMPED: Any = maker(GptOssConfig, {})(
    "debugmodel", n_layers=1, dim=32, n_heads=2, n_kv_heads=2, moe=MOE
)
STACK = "layers.0.moe.experts"
COUNTS = torch.tensor([3, 0, 4, 2])


def adapted(lora: LoraConfig, config: ModelConfig = MIXTURE) -> tuple[nn.Module, ConversionReport]:
    """A model with adapters on the meta device, and what became of its modules."""
    with init_on_meta_device():
        model = config.load_builder()(config, seq_len=16)
    return model, lora.load_builder()(lora, model=model, shards=1)


def experts_with(lora: LoraConfig, config: ModelConfig = MIXTURE) -> Any:
    """Experts of the first layer, whose adapters are no longer zero: eighths of small whole
    numbers, and so are their weights."""
    model, _ = adapted(lora, config)
    materialize_and_init(model, device=CPU, seed=0)
    experts = model.get_submodule(STACK).eval()
    generator = torch.Generator().manual_seed(1)
    for weight in experts.parameters():
        weight.data = torch.randint(-8, 9, weight.shape, generator=generator) / 8
    return experts


def slots() -> Tensor:
    return (
        torch.randint(-8, 9, (int(COUNTS.sum()), 32), generator=torch.Generator().manual_seed(2))
        / 8
    )


@pytest.mark.parametrize(
    ("targets", "matrices"),
    [
        (("experts",), ("w1", "w2", "w3")),
        (("w2",), ("w2",)),
        (("layers.*.moe.experts.w[13]",), ("w1", "w3")),
        (("wq",), ()),
        (None, ()),
    ],
)
def test_matrices_that_are_named_get_an_adapter_for_each_expert(
    targets: Any, matrices: tuple[str, ...]
) -> None:
    model, conversion = adapted(LoraConfig(rank=3, target_modules=targets))
    assert [name for name in conversion.converted if name.startswith(STACK)] == [
        f"{STACK}.{matrix}" for matrix in matrices
    ]
    sizes = {"w1": (24, 32), "w2": (32, 24), "w3": (24, 32)}
    wanted = {}
    for matrix in matrices:
        outputs, inputs = sizes[matrix]
        wanted |= {
            f"{STACK}.{matrix}_lora_a": (4, 3, inputs),
            f"{STACK}.{matrix}_lora_b": (4, outputs, 3),
        }
    assert {
        name: tuple(weight.shape)
        for name, weight in named_trainable_parameters(model)
        if name.startswith(STACK)
    } == wanted
    reasons = {
        None: "experts get adapters only if target_modules names them",
        ("wq",): "target_modules does not name it",
    }
    assert conversion.skipped.get(STACK) == reasons.get(targets)


def test_an_adapter_of_experts_adds_alpha_over_rank_times_b_a_x_of_each_slots_expert() -> None:
    experts, x_SD = (
        experts_with(LoraConfig(rank=2, alpha=3.0, target_modules=("w1", "w2"))).double(),
        slots().double(),
    )
    owner_S = torch.arange(4).repeat_interleave(COUNTS)
    whole = {name: getattr(experts, name) for name in ("w1", "w2", "w3")}
    for name in ("w1", "w2"):
        whole[name] = whole[name] + 1.5 * getattr(experts, f"{name}_lora_b") @ getattr(
            experts, f"{name}_lora_a"
        )

    def times(name: str, x_SI: Tensor) -> Tensor:
        return torch.einsum("si,soi->so", x_SI, whole[name][owner_S])

    wanted = times("w2", nn.functional.silu(times("w1", x_SD)) * times("w3", x_SD))
    assert torch.allclose(experts(x_SD, COUNTS), wanted, rtol=1e-12)


@pytest.mark.parametrize("config", [MIXTURE, CLAMPED], ids=["swiglu", "clamped_and_biased"])
def test_merged_experts_give_the_same_bits_where_nothing_is_rounded(config: Any) -> None:
    lora = LoraConfig(rank=2, alpha=4.0, target_modules=("experts",))
    experts, x_SD = experts_with(lora, config), slots()
    weights = {f"{STACK}.{name}": weight.detach() for name, weight in experts.named_parameters()}
    for name in experts.matrices:
        plain = merge_adapters(weights, scale=lora.scale)[f"{STACK}.{name}"]
        assert not torch.equal(plain, weights[f"{STACK}.{name}"])
        x_SI = x_SD[:, : plain.size(2)]
        expected = torch.cat(
            [part @ plain[expert].T for expert, part in enumerate(x_SI.split(COUNTS.tolist()))]
        )
        assert torch.equal(experts.multiply(name, x_SI, COUNTS), expected)
    assert not any(map(is_adapter, merge_adapters(weights, scale=lora.scale)))


def test_a_model_begins_as_it_is_without_adapters_of_experts() -> None:
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(3))
    for config in (MIXTURE, CLAMPED):
        model, _ = adapted(LoraConfig(target_modules=("experts",)), config)
        with init_on_meta_device():
            plain = config.load_builder()(config, seq_len=16)
        for each in (model, plain):
            materialize_and_init(each, device=CPU, seed=4)
        assert torch.equal(model(tokens), plain(tokens))
        a, bound = (
            next(
                weight
                for name, weight in named_trainable_parameters(model)
                if name.endswith("lora_a")
            ),
            1 / 32**0.5,
        )
        assert 0.9 * bound < a.abs().max() <= bound


def test_a_reference_leaves_adapters_of_experts_out_too() -> None:
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(3))
    model, _ = adapted(LoraConfig(target_modules=("experts", "wq")))
    materialize_and_init(model, device=CPU, seed=4)
    first = model(tokens)
    with torch.no_grad():
        for name, weight in named_trainable_parameters(model):
            weight.add_(0.1 if name.endswith("lora_b") else 0.0)
    with disable_adapters(model):
        assert torch.equal(model(tokens), first)
    assert not torch.allclose(model(tokens), first)


def test_dropout_of_experts_leaves_out_inputs_of_the_adapters_alone() -> None:
    experts, x_SD = experts_with(LoraConfig(dropout=0.5, target_modules=("w1",))).train(), slots()
    assert not torch.equal(
        experts.multiply("w1", x_SD, COUNTS), experts.multiply("w1", x_SD, COUNTS)
    )
    assert torch.equal(
        experts.multiply("w2", x_SD[:, :24], COUNTS), experts.multiply("w2", x_SD[:, :24], COUNTS)
    )


def test_experts_in_few_bits_keep_adapters_that_are_not() -> None:
    model, _ = adapted(
        LoraConfig(rank=3, target_modules=("w1",)),
        maker(Qwen3Config, {})("debugmodel_moe", n_layers=1, moe=MOE_OF_32),
    )
    conversion = set_grouped_mm(
        model,
        Mxfp8GroupedMmConfig(emulate=True),
        (),
        lambda x, weight, offs, out_dtype: x.new_zeros(len(x), weight.size(-1)),
        kind="",
    )
    assert conversion.converted == (STACK,)
    materialize_and_init(model, device=CPU, seed=0)
    experts: Any = model.get_submodule(STACK)
    x_SD = torch.randn(9, experts.w1.size(2))
    experts.w1_lora_b.data.fill_(0.5)
    inner_SR = experts.multiply_unconverted("w1_lora_a", x_SD, COUNTS)
    assert inner_SR.any()
    assert torch.equal(
        experts.multiply("w1", x_SD, COUNTS),
        16 / 3 * experts.multiply_unconverted("w1_lora_b", inner_SR, COUNTS),
    )
