"""Linear modules that round as they will be quantised: which, to what, and what their gradients
see."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.conftest import TINY_LLAMA3, maker
from titanrun.components.converters.config import QatConfig
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.converters.torchao_quantization import (
    build_torchao_config,
    quantize_weight,
)
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.config import ModelConfig
from titanrun.worker.build.build_model import materialize_and_init

CPU = torch.device("cpu")
LLAMA: Any = maker(Llama3Config, {**TINY_LLAMA3, "n_kv_heads": 2})(
    dim=64, feed_forward={"hidden_dim": 96}
)
MIXTURE: Any = maker(Qwen3Config, {})("debugmodel_moe", n_layers=1)


def converted(
    config: QatConfig, model_config: ModelConfig = LLAMA
) -> tuple[nn.Module, ConversionReport]:
    with init_on_meta_device():
        model = model_config.load_builder()(model_config, seq_len=16)
    return model, config.load_builder()(config, model=model, shards=1)


def test_modules_are_taken_but_for_head_routers_and_rows_that_fill_no_groups() -> None:
    model, conversion = converted(QatConfig(group_size=64))
    assert conversion.skipped == {
        **{
            f"layers.{layer}.feed_forward.w2": "96 columns are not divisible by 64"
            for layer in (0, 1)
        },
        "output": "'output' is in its name",
    }
    assert len(conversion.converted) == 2 * 6
    with init_on_meta_device():
        plain = LLAMA.load_builder()(LLAMA, seq_len=16)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert "output" in converted(QatConfig(filter_fqns=("w1",)))[1].converted
    assert (
        converted(QatConfig(), MIXTURE)[1].skipped["layers.0.moe.router.gate"] == "it is a router"
    )


@pytest.mark.parametrize("group_size", [32, 64])
def test_weights_are_rounded_to_what_torchao_quantises_them_to_and_gradients_pass(
    group_size: Any,
) -> None:
    model, _ = converted(QatConfig(scheme="int4_weight_only", group_size=group_size))
    materialize_and_init(model, device=CPU, seed=0)
    linear = model.layers["0"].attention.wq
    rounded = quantize_weight(
        linear.weight.detach(), build_torchao_config("int4_weight_only", group_size)
    ).dequantize()
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    slope = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
    y = linear(x)
    torch.testing.assert_close(y, x @ rounded.T, rtol=1e-5, atol=1e-6)
    (y * slope).sum().backward()
    torch.testing.assert_close(x.grad, slope @ rounded, rtol=1e-5, atol=1e-6)
    # but for numbers beyond the last step, which have none
    assert linear.weight.grad is not None
    passes = linear.weight.grad != 0
    assert 0.98 < passes.float().mean() < 1
    torch.testing.assert_close(
        linear.weight.grad[passes], (slope.T @ x)[passes], rtol=1e-5, atol=1e-5
    )


def test_the_scheme_says_whether_inputs_are_rounded_too() -> None:
    found = []
    for scheme in ("int4_weight_only", "int8_dynamic_activation_int4_weight"):
        model, _ = converted(QatConfig.model_validate({"scheme": scheme}))
        materialize_and_init(model, device=CPU, seed=0)
        found.append(
            model.layers["0"].attention.wq(
                torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
            )
        )
    assert 0 < (found[0] - found[1]).norm() < 0.05 * found[0].norm()
