"""Queries, keys and values reach the back end in one dtype."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.model import DeepseekV3
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.qwen3.model import Qwen3
from titanrun.models.shared.spec.flavors import resolve_model_sizes


class Fp32Norm(nn.Module):
    """As autocast on CUDA computes a norm since torch 2.12."""

    def forward(self, x_BTNH: Tensor) -> Tensor:
        return nn.functional.rms_norm(x_BTNH.float(), x_BTNH.shape[-1:])


def return_fp32_from_norms(attention: nn.Module) -> None:
    attention.q_norm = attention.k_norm = Fp32Norm()


def return_fp32_from_rotation(attention: nn.Module) -> None:
    rotate: Any = attention.rotary_fn
    attention.rotary_fn = lambda x, rows: rotate(x, rows).float()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model_class", "config_class", "change"),
    [
        (Qwen3, Qwen3Config, return_fp32_from_norms),
        # the norms of latent attention are before its products
        (DeepseekV3, DeepseekV3Config, return_fp32_from_rotation),
    ],
    ids=["qwen3", "deepseek_v3"],
)
def test_the_back_end_gets_one_dtype_whatever_norms_and_rotation_return(
    model_class: Any, config_class: Any, change: Callable[[nn.Module], None]
) -> None:
    sizes = resolve_model_sizes(config_class(flavor="debugmodel", n_layers=1, vocab_size=64))
    model = model_class(config_class.model_validate(sizes), seq_len=8)
    model.init_weights(torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    attention = model.get_submodule("layers.0.attention")
    change(attention)
    seen: list[tuple[Tensor, ...]] = []
    attention.get_submodule("backend").register_forward_pre_hook(
        lambda _, given: seen.append(given[:3])
    )
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert [tensor.dtype for tensor in seen[0]] == [torch.bfloat16] * 3
