"""Packed frozen matrices: torchao's numbers, the products and gradients of the rounded matrix, and
a seventh of the memory."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.conftest import TINY_LLAMA3, maker
from titanrun.components.converters.config import Float8LinearConfig, QloraConfig
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.distributed.quantized_weights import (
    QuantizedLinear,
    QuantizedWeight,
    fake_quantize,
    iter_quantized_parameters,
    quantize_linear_,
)
from titanrun.distributed.torchao_import import import_torchao
from titanrun.models.llama3.config import Llama3Config
from titanrun.worker.build.build_model import materialize_and_init

CPU = torch.device("cpu")
LLAMA: Any = maker(Llama3Config, {**TINY_LLAMA3, "n_kv_heads": 2})(
    dim=64, feed_forward={"hidden_dim": 96}
)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def converted(config: QloraConfig, *, before: Any = None) -> tuple[nn.Module, ConversionReport]:
    with init_on_meta_device():
        model = LLAMA.load_builder()(LLAMA, seq_len=16)
    if before is not None:
        before.load_builder()(before, model=model, shards=1)
    return model, config.load_builder()(config, model=model, shards=1)


def test_nf4_has_torchaos_numbers_where_it_keeps_scales_as_they_are() -> None:
    matrix = drawn(48, 128)
    theirs = (
        import_torchao("quantization.quantize_.workflows.nf4.nf4_tensor")
        .to_nf4(matrix.clone(), 64, 2)
        .get_original_weight()
    )
    ours = fake_quantize(matrix, "nf4", 64)
    # torchao rounds the scales to 8 bits, half a step of 1/127 at most; a number right between two
    # values may go either way
    is_near = torch.isclose(ours, theirs, rtol=1 / 127, atol=0)
    assert is_near.float().mean() > 0.999
    assert 0.05 < (ours - matrix).norm() / matrix.norm() < 0.1
    assert torch.equal(fake_quantize(ours, "nf4", 64), ours)


@pytest.mark.parametrize("block_size", [32, 64])
def test_int8_is_off_by_half_a_step_of_its_blocks_largest(block_size: int) -> None:
    matrix = drawn(6, 128)
    matrix[0] = 0
    off = (fake_quantize(matrix, "int8", block_size) - matrix).unflatten(1, (-1, block_size)).abs()
    largest = matrix.unflatten(1, (-1, block_size)).abs().amax(-1, keepdim=True)
    assert (off <= 0.501 / 127 * largest).all()


@pytest.mark.parametrize("form", ["nf4", "int8"])
def test_products_and_gradients_are_those_of_the_rounded_matrix(form: Any) -> None:
    matrix = drawn(48, 128)
    with init_on_meta_device():
        linear = nn.Linear(128, 48)
    quantize_linear_(linear, form, 64)
    linear.bias = nn.Parameter(drawn(48))
    linear.register_parameter("weight", linear.weight.empty_on_device(CPU))  # type: ignore[operator]
    with torch.no_grad():
        linear.weight.copy_(matrix)
    x, y = (drawn(2, 5, 128).requires_grad_() for _ in range(2))
    found, wanted = linear(x), nn.functional.linear(y, fake_quantize(matrix, form, 64), linear.bias)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    assert torch.equal(found, wanted)
    torch.testing.assert_close(x.grad, y.grad)
    z = x.detach().bfloat16().requires_grad_()
    narrow = linear(z)
    narrow.float().sum().backward()
    assert narrow.dtype == torch.bfloat16 and z.grad is not None and z.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(("form", "share"), [("nf4", 0.5625), ("int8", 1.0625)])
def test_matrices_are_packed_but_for_head_and_rows_that_fill_no_blocks(
    form: Any, share: float
) -> None:
    model, conversion = converted(QloraConfig(base=form, target_modules=("wq",)))
    assert conversion.converted == ("layers.0.attention.wq", "layers.1.attention.wq")
    hidden = LLAMA.dense_hidden_dim()
    assert hidden % 64
    names = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert names == {f"layers.{layer}.{name}" for layer in (0, 1) for name in PACKED}
    assert conversion.kind.endswith(f", {len(names)} matrices in {form}")
    materialize_and_init(model, device=CPU, seed=0)
    for _, _, matrix in iter_quantized_parameters(model):
        assert matrix.quantized_nbytes == share * matrix.numel()
    # other numbers share a scale
    other, _ = converted(QloraConfig(base=form, block_size=32))
    materialize_and_init(other, device=CPU, seed=0)
    weights = [each.layers["0"].attention.wo.weight for each in (model, other)]
    assert all(isinstance(weight, QuantizedWeight) for weight in weights)
    assert not torch.equal(weights[0].dequantize(), weights[1].dequantize())


PACKED = (
    "attention.wq",
    "attention.wk",
    "attention.wv",
    "attention.wo",
    "feed_forward.w1",
    "feed_forward.w3",
)


def test_first_weights_are_those_of_the_plain_model_rounded() -> None:
    model, _ = converted(QloraConfig())
    with init_on_meta_device():
        plain = LLAMA.load_builder()(LLAMA, seq_len=16)
    for each in (model, plain):
        materialize_and_init(each, device=CPU, seed=3)
    found = model.layers["1"].feed_forward.w1.weight
    assert torch.equal(
        found.dequantize(),
        fake_quantize(plain.layers["1"].feed_forward.w1.weight.detach(), "nf4", 64),
    )
    assert torch.equal(model.output.weight, plain.output.weight)


def test_modules_in_float8_keep_their_matrices() -> None:
    model, _ = converted(QloraConfig(), before=Float8LinearConfig(emulate=True))
    assert list(iter_quantized_parameters(model)) == []
    assert type(model.layers["0"].attention.wq).__name__ == "LoraFloat8Linear"


SAME = {"rank": 3, "alpha": 5.0, "rank_stabilized": True, "dropout": 0.4, "target_modules": ["wo"]}


@pytest.mark.parametrize("field", SAME)
def test_adapters_take_each_setting(field: str) -> None:
    found = []
    for settings in ({}, {field: SAME[field]}):
        model, _ = converted(QloraConfig.model_validate(settings))
        materialize_and_init(model, device=CPU, seed=0)
        torch.manual_seed(0)
        for name, weight in model.named_parameters():
            if name.endswith("lora_b"):
                nn.init.ones_(weight)
        found.append(model(torch.arange(16).view(1, 16)))
    assert not torch.equal(*found)
