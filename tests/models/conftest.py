"""Resolved model configs for the tests of the families."""

from collections.abc import Callable
from typing import Any

import pytest

from titanrun.models.decoder.config import CustomDecoderConfig
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.llama4.config import Llama4Config
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import merge_sizes, resolve_model_sizes

TINY_LLAMA3 = {"vocab_size": 96, "dim": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 16384}
TINY_LLAMA4 = {
    **TINY_LLAMA3,
    "n_layers": 4,
    "n_kv_heads": 2,
    "every_n_layers_nope": 4,
    "first_nope_layer": 3,
    "fixed_attn_block_size": 24,
    "qk_norm": True,
    "attn_scale": 0.3,
    "floor_scale": 8,
    "feed_forward": {"hidden_dim": 96},
    "moe": {"num_experts": 8, "top_k": 1, "hidden_dim": 48},
}
TINY_DECODER = {**TINY_LLAMA3, "n_kv_heads": 2, "head_dim": 16, "feed_forward": {"hidden_dim": 96}}
TINY_QWEN3 = {**TINY_LLAMA3, "n_kv_heads": 2, "head_dim": 16, "feed_forward": {"hidden_dim": 128}}
TINY_GPT_OSS = {
    **TINY_LLAMA3,
    "n_kv_heads": 2,
    "head_dim": 16,
    "sliding_window": 5,
    "moe": {"num_experts": 8, "top_k": 3, "hidden_dim": 48},
}
TINY_DEEPSEEK_V3 = {
    **TINY_LLAMA3,
    "n_layers": 3,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "feed_forward": {"hidden_dim": 96},
    "rope": {"scaling": None},
    "moe": {"num_experts": 8, "top_k": 3, "hidden_dim": 32},
}


def maker(family: type[ModelConfig], tiny: dict[str, Any]) -> Callable[..., Any]:
    """Makes resolved configs of a family; without a flavor a tiny one, with `fields` on top."""

    def make(flavor: str | None = None, **fields: Any) -> ModelConfig:
        written = {"flavor": flavor, **fields} if flavor else merge_sizes(tiny, fields)
        return family.model_validate(resolve_model_sizes(family.model_validate(written)))

    return make


@pytest.fixture
def decoder() -> Callable[..., CustomDecoderConfig]:
    return maker(CustomDecoderConfig, TINY_DECODER)


@pytest.fixture
def llama3() -> Callable[..., Llama3Config]:
    return maker(Llama3Config, TINY_LLAMA3)


@pytest.fixture
def llama4() -> Callable[..., Llama4Config]:
    return maker(Llama4Config, TINY_LLAMA4)


@pytest.fixture
def qwen3() -> Callable[..., Qwen3Config]:
    return maker(Qwen3Config, TINY_QWEN3)


@pytest.fixture
def gpt_oss() -> Callable[..., GptOssConfig]:
    return maker(GptOssConfig, TINY_GPT_OSS)


@pytest.fixture
def deepseek_v3() -> Callable[..., DeepseekV3Config]:
    return maker(DeepseekV3Config, TINY_DEEPSEEK_V3)
