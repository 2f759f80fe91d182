"""Ingredients that no other family has: logits and gradients equal those of a class of transformers
that has them, on random weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from titanrun.models.decoder.model import CustomDecoder
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    FEED_FORWARD_NAMES,
    MODEL_NAMES,
    NORM_NAMES,
)
from titanrun.models.shared.kv_cache import use_kv_cache

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "pad_token_id": None,
    "rms_norm_eps": 1e-6,
}
OURS = {
    "n_layers": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "norm_eps": 1e-6,
    "feed_forward": {"hidden_dim": 96},
}
LAYER_NAMES = {**ATTENTION_NAMES, **FEED_FORWARD_NAMES, **NORM_NAMES}
LAYER_NAMES |= {
    ours.replace("weight", "bias"): theirs.replace("weight", "bias")
    for ours, theirs in LAYER_NAMES.items()
}
GEMMA_NORMS = {
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "attention_post_norm.weight": "post_attention_layernorm.weight",
    "ffn_post_norm.weight": "post_feedforward_layernorm.weight",
}


@dataclass(frozen=True)
class Class:
    """A class of transformers, its settings, and what they are here."""

    build: Callable[[], nn.Module]
    fields: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    change: Callable[[str, Tensor], Tensor] = lambda name, weight: weight


def gemma_weight(name: str, weight: Tensor) -> Tensor:
    """Gemma multiplies embeddings by the root of the width, and adds one to the weights of
    norms."""
    if name == MODEL_NAMES["tok_embeddings.weight"]:
        return weight * SIZES["hidden_size"] ** 0.5
    return weight + 1 if "norm" in name else weight


def llama_with_layer_norms() -> nn.Module:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    for module in model.modules():
        for name, norm in list(module.named_children()):
            if type(norm).__name__ == "LlamaRMSNorm":
                setattr(module, name, nn.LayerNorm(64, eps=1e-6, bias=False))
    return model


CAPS = {
    "attention": {"window": 8, "window_pattern": ["window", "full"], "soft_cap": 3.0},
    "post_norms": True,
    "logit_soft_cap": 5.0,
}
CLASSES = {
    "soft caps, windows in turns, norms behind the parts": Class(
        lambda: Gemma2ForCausalLM(
            Gemma2Config(
                **SIZES,
                hidden_activation="silu",
                query_pre_attn_scalar=16,
                sliding_window=8,
                attn_logit_softcapping=3.0,
                final_logit_softcapping=5.0,
            )
        ),
        CAPS,
        GEMMA_NORMS,
        gemma_weight,
    ),
    "biases of queries, keys and values": Class(
        lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)), {"attention": {"bias": "qkv"}}
    ),
    "all biases": Class(
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
        {"attention": {"bias": "all"}, "feed_forward": {"bias": True}},
    ),
    "layers without RoPE": Class(
        lambda: SmolLM3ForCausalLM(
            SmolLM3Config(
                **SIZES, no_rope_layers=[1, 1, 0, 1], use_sliding_window=False, rope_theta=10000.0
            )
        ),
        {"rope": {"pattern": ["rope", "rope", "none", "rope"]}},
    ),
    "windows in all layers": Class(
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)),
        {"attention": {"window": 8}},
    ),
    "layer norms": Class(llama_with_layer_norms, {"norm": "layer"}),
}


@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES.keys())
def test_logits_and_gradients_are_those_of_transformers(made, decoder):
    torch.manual_seed(0)
    theirs = made.build().float().eval()
    for name, weight in theirs.named_parameters():
        if "norm" in name or name.endswith("bias"):
            nn.init.uniform_(weight, -0.5, 0.5)
            weight.data += 1.0 if "norm" in name and "Gemma" not in type(theirs).__name__ else 0.0
    model = CustomDecoder(decoder(**{**OURS, **sections(made.fields)}), seq_len=64)
    model.init_weights(Generator().manual_seed(0))
    names = {name: name_in(made, name) for name in model.state_dict()}
    assert set(names.values()) == {name for name, _ in theirs.named_parameters()}
    given = theirs.state_dict()
    model.load_state_dict({ours: made.change(name, given[name]) for ours, name in names.items()})
    ids = torch.randint(96, (2, 40), generator=Generator().manual_seed(1))
    expected, logits = theirs(ids).logits, model(ids)
    assert expected.std() > 0.5
    print(f"largest difference of logits: {(logits - expected).abs().max().item():.1e}")
    assert (logits - expected).abs().max() < 1e-5
    expected.logsumexp(-1).mean().backward()
    logits.logsumexp(-1).mean().backward()
    for ours, name in names.items():
        wanted, found = theirs.get_parameter(name).grad, model.get_parameter(ours).grad
        # what is changed on the way in has another gradient by the same factor
        factor = (
            SIZES["hidden_size"] ** 0.5
            if made.change is gemma_weight and name == MODEL_NAMES["tok_embeddings.weight"]
            else 1.0
        )
        torch.testing.assert_close(
            found * factor, wanted, atol=1e-5 * max(wanted.abs().max().item(), 1e-2), rtol=1e-3
        )


def sections(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with those of the tiny model in sections that they share."""
    merged = {
        key: {**OURS.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in fields.items()
    }
    return merged


def name_in(made: Class, name: str) -> str:
    """What the class calls a parameter."""
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    _, layer, within = name.split(".", 2)
    return f"model.layers.{layer}.{({**LAYER_NAMES, **made.names})[within]}"


def test_a_token_that_generates_sees_the_same_capped_scores(decoder):
    model = CustomDecoder(decoder(**{**OURS, **CAPS, "init": {"linear_std": 0.3}}), seq_len=64)
    model.init_weights(Generator().manual_seed(0))
    ids = torch.randint(96, (1, 12), generator=Generator().manual_seed(1))
    with torch.no_grad(), use_kv_cache(model, 16) as cache:
        model(ids[:, :-1])
        cache.first_B = torch.tensor([11])
        last = model(ids[:, -1:], torch.tensor([[11]]))
    torch.testing.assert_close(last[:, -1], model(ids)[:, -1], atol=1e-5, rtol=1e-5)
