"""Every setting of Llama 4 reaches the model: with another value it says something else, or is made
of other parts."""

from typing import Any

import pytest
import torch
from torch import Generator

from titanrun.models.llama4.model import Llama4

IN_GROUPS = {"moe": {"num_expert_groups": 4, "num_limited_groups": 1}}
TWO = {"moe": {"top_k": 2}}
BY_RULE = {"feed_forward": {"hidden_dim": "auto", "multiple_of": 8}}
# each leaf with another value than the tiny model has, and what must be so for it to be read
LEAVES: dict[str, tuple[Any, dict[str, Any]]] = {
    "vocab_size": (128, {}),
    "dim": (48, {}),
    "n_layers": (5, {}),
    "n_heads": (8, {}),
    "n_kv_heads": (4, {}),
    "head_dim": (8, {}),
    "norm_eps": (0.01, {}),
    "tie_word_embeddings": (True, {}),
    "interleave_moe_layer_step": (1, {}),
    "every_n_layers_nope": (2, {"first_nope_layer": 1}),
    "first_nope_layer": (2, {}),
    "fixed_attn_block_size": (None, {}),
    "qk_norm": (False, {}),
    "attn_scale": (0.6, {}),
    "floor_scale": (3, {}),
    "rope.theta": (100.0, {}),
    "rope.scaling": ({"name": "yarn", "original_max_position_embeddings": 4}, {}),
    "feed_forward.hidden_dim": (48, {}),
    "feed_forward.multiple_of": (32, BY_RULE),
    "feed_forward.ffn_dim_multiplier": (0.5, BY_RULE),
    "moe.num_experts": (4, {}),
    "moe.top_k": (2, {}),
    "moe.hidden_dim": (24, {}),
    "moe.num_shared_experts": (0, {}),
    "moe.score_func": ("softmax", {}),
    "moe.route_norm": (True, TWO),
    "moe.route_scale": (2.0, {}),
    "moe.gate_bias": (True, {}),
    "moe.score_before_experts": (False, {}),
    "moe.num_expert_groups": (2, IN_GROUPS),
    "moe.num_limited_groups": (2, IN_GROUPS),
    "moe.load_balance_coeff": (None, {}),
    "init.embedding_std": (0.5, {}),
    "init.linear_std": (0.1, {}),
    "init.depth_scaling": ("model", {}),
    "init.truncation": (0.3, {}),
    "init.output_std": (0.5, {}),
    "init.output_truncation_stds": (0.5, {}),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_another_value_gives_another_model(leaf, llama4):
    value, given = LEAVES[leaf]
    first, last = leaf.rpartition(".")[::2]
    section = {**given.get(first, {}), last: value}
    changed = {**given, first: section} if first else {**given, last: value}
    before, after = outcome(llama4(**standing_out(given))), outcome(llama4(**standing_out(changed)))
    assert before["names"] != after["names"] or not torch.equal(before["logits"], after["logits"])


def test_the_product_that_runs_is_the_one_the_config_asks_for(llama4, monkeypatch):
    def refuse(*given: Any) -> None:
        raise AssertionError("a grouped product")

    monkeypatch.setattr("titanrun.models.shared.grouped_experts.kernel_grouped_mm", refuse)
    outcome(llama4(moe={"use_grouped_mm": False}))
    with pytest.raises(AssertionError, match="a grouped product"):
        outcome(llama4())


def standing_out(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with weights so large that attention and experts show in the logits."""
    return {**fields, "init": {"linear_std": 0.3, **fields.get("init", {})}}


def outcome(config: Any) -> dict[str, Any]:
    """Logits of a row, and the names in a checkpoint."""
    model, generator = Llama4(config, seq_len=32), Generator().manual_seed(0)
    model.init_weights(generator)
    ids = torch.randint(96, (1, 32), generator=generator.manual_seed(1))
    with torch.no_grad():
        return {"logits": model(ids)[..., :96], "names": set(model.state_dict())}
