"""Every ingredient reaches the model: with another value it says something else, or is made of
other parts."""

from typing import Any

import pytest
import torch
from torch import Generator

from titanrun.models.decoder.model import CustomDecoder
from titanrun.models.shared.spec.flavors import merge_sizes

EXPERTS = {"num_experts": 8, "top_k": 3, "hidden_dim": 48}
WITH_EXPERTS = {"moe": EXPERTS}
IN_GROUPS = {"moe": {**EXPERTS, "num_expert_groups": 4, "num_limited_groups": 2}}
CLAMPED = {"moe": {**EXPERTS, "swiglu_limit": 0.5}}
WINDOW = {"attention": {"window": 5}}
LATENT_SIZES = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
LATENT = {"n_kv_heads": "auto", "head_dim": "auto", "attention": {"latent": LATENT_SIZES}}
COMPRESSED = {**LATENT, "attention": {"latent": {**LATENT_SIZES, "q_lora_rank": 24}}}
# each leaf with another value than the tiny model has, and what must be so for it to be read
LEAVES: dict[str, tuple[Any, dict[str, Any]]] = {
    "vocab_size": (128, {}),
    "dim": (48, {}),
    "n_layers": (3, {}),
    "n_heads": (8, {}),
    "n_kv_heads": (4, {}),
    "head_dim": (8, {}),
    "norm_eps": (0.01, {}),
    "tie_word_embeddings": (True, {}),
    "norm": ("layer", {}),
    "post_norms": (True, {}),
    "logit_soft_cap": (2.0, {}),
    "hidden_pattern": (["dense", "experts"], WITH_EXPERTS),
    "attention.qk_norm": (True, {}),
    "attention.bias": ("qkv", {}),
    "attention.sinks": (True, {}),
    "attention.window": (3, WINDOW),
    "attention.window_pattern": (["full", "window"], WINDOW),
    "attention.soft_cap": (0.5, {}),
    "attention.latent.q_lora_rank": (24, LATENT),
    "attention.latent.kv_lora_rank": (24, LATENT),
    "attention.latent.qk_nope_head_dim": (16, LATENT),
    "attention.latent.qk_rope_head_dim": (4, LATENT),
    "attention.latent.v_head_dim": (16, LATENT),
    "attention.latent.norm_eps": (0.1, COMPRESSED),
    "rope.theta": (100.0, {}),
    "rope.scaling": ({"name": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}, {}),
    "rope.pairs": ("neighbours", {}),
    "rope.pattern": (["rope", "none"], {}),
    "feed_forward.hidden_dim": (128, {}),
    "feed_forward.multiple_of": (64, {"feed_forward": {"hidden_dim": "auto"}}),
    "feed_forward.ffn_dim_multiplier": (2.0, {"feed_forward": {"hidden_dim": "auto"}}),
    "feed_forward.bias": (True, {}),
    "moe.num_experts": (4, WITH_EXPERTS),
    "moe.top_k": (2, WITH_EXPERTS),
    "moe.hidden_dim": (24, WITH_EXPERTS),
    "moe.num_shared_experts": (1, WITH_EXPERTS),
    "moe.score_func": ("sigmoid", WITH_EXPERTS),
    "moe.route_norm": (False, WITH_EXPERTS),
    "moe.route_scale": (2.0, WITH_EXPERTS),
    "moe.gate_bias": (True, WITH_EXPERTS),
    "moe.score_before_experts": (True, WITH_EXPERTS),
    "moe.num_expert_groups": (2, IN_GROUPS),
    "moe.num_limited_groups": (3, IN_GROUPS),
    "moe.load_balance_coeff": (None, WITH_EXPERTS),
    "moe.swiglu_limit": (0.5, WITH_EXPERTS),
    "moe.swiglu_alpha": (3.0, CLAMPED),
    "init.embedding_std": (0.5, {}),
    "init.linear_std": (0.1, {}),
    "init.depth_scaling": ("model", {}),
    "init.truncation": (0.3, {}),
    "init.output_std": (0.5, {}),
    "init.output_truncation_stds": (0.5, {}),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_another_value_gives_another_model(leaf, decoder):
    value, given = LEAVES[leaf]
    for step in reversed(leaf.split(".")):
        value = {step: value}
    changed = merge_sizes(given, value)
    before, after = (
        outcome(decoder(**standing_out(given))),
        outcome(decoder(**standing_out(changed))),
    )
    assert before["names"] != after["names"] or not torch.equal(before["logits"], after["logits"])


def test_the_product_that_runs_is_the_one_the_config_asks_for(decoder, monkeypatch):
    def refuse(*given: Any) -> None:
        raise AssertionError("a grouped product")

    monkeypatch.setattr("titanrun.models.shared.grouped_experts.kernel_grouped_mm", refuse)
    outcome(decoder(moe={**EXPERTS, "use_grouped_mm": False}))
    with pytest.raises(AssertionError, match="a grouped product"):
        outcome(decoder(moe=EXPERTS))


def standing_out(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with weights so large that attention and experts show in the logits."""
    return {**fields, "init": {"linear_std": 0.3, **fields.get("init", {})}}


def outcome(config: Any) -> dict[str, Any]:
    """Logits of a row, and the names in a checkpoint, which are those that the config tells."""
    model, generator = CustomDecoder(config, seq_len=32), Generator().manual_seed(0)
    model.init_weights(generator)
    assert {
        name: tuple(weight.shape) for name, weight in model.named_parameters()
    } == config.parameter_shapes()
    ids = torch.randint(96, (1, 24), generator=generator.manual_seed(1))
    with torch.no_grad():
        return {"logits": model(ids)[..., :96], "names": set(model.state_dict())}
