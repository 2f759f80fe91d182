"""Ingredients that exclude each other are problems; so are patterns of what is not there."""

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.models.decoder.config import CustomDecoderConfig
from titanrun.models.shared.spec.flavors import load_flavors, resolve_model_sizes
from titanrun.recipe.resolving.resolve import resolve_recipe

EXPERTS = {"num_experts": 8, "top_k": 2, "hidden_dim": 32}
LATENT_SIZES = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
LATENT = {"n_kv_heads": "auto", "head_dim": "auto", "attention": {"latent": LATENT_SIZES}}
# fields, where the problem stands, and what it says
CONFLICTS = {
    "heads": (
        {"n_heads": 6, "head_dim": "auto"},
        "n_heads",
        "dim 64 is not divisible by n_heads 6",
    ),
    "shared heads": (
        {"n_kv_heads": 3},
        "n_kv_heads",
        "n_heads 4 is not divisible by n_kv_heads 3",
    ),
    "odd head": ({"head_dim": 15}, "head_dim", "head_dim 15 is odd, but RoPE rotates pairs"),
    "long pattern": (
        {"rope": {"pattern": ["rope", "rope", "none"]}},
        "rope.pattern",
        "rope.pattern describes 3 layers, but n_layers is 2",
    ),
    "empty pattern": (
        {"rope": {"pattern": []}},
        "rope.pattern",
        "rope.pattern is empty",
    ),
    "no window": (
        {"attention": {"window_pattern": ["window", "full"]}},
        "attention.window_pattern",
        "attention.window_pattern contains window, but attention.window is null",
    ),
    "window nowhere": (
        {"attention": {"window": 8, "window_pattern": ["full"]}},
        "attention.window_pattern",
        "attention.window is set, but no layer uses it",
    ),
    "no experts": (
        {"hidden_pattern": ["dense", "experts"]},
        "hidden_pattern",
        "hidden_pattern contains experts, but moe is null",
    ),
    "experts nowhere": (
        {"hidden_pattern": ["dense"], "moe": EXPERTS},
        "hidden_pattern",
        "moe is set, but no layer uses it",
    ),
    "groups": (
        {"moe": {**EXPERTS, "num_expert_groups": 3, "num_limited_groups": 2}},
        "moe.num_expert_groups",
        "8 experts cannot be split into 3 groups of at least two",
    ),
    "half of clamped": (
        {"moe": {**EXPERTS, "swiglu_limit": None, "swiglu_alpha": 2.0}},
        "moe.swiglu_limit",
        "clamped SwiGLU needs both swiglu_limit and swiglu_alpha",
    ),
    "biases nowhere": (
        {"moe": EXPERTS, "feed_forward": {"bias": True}},
        "feed_forward.bias",
        "feed_forward.bias applies to dense layers, but every layer has experts",
    ),
    "latent norms": (
        {**LATENT, "attention": {"latent": LATENT_SIZES, "qk_norm": True}},
        "attention.qk_norm",
        "latent attention does not support qk_norm, but attention.qk_norm is true",
    ),
    "latent biases": (
        {**LATENT, "attention": {"latent": LATENT_SIZES, "bias": "qkv"}},
        "attention.bias",
        "latent attention does not support bias, but attention.bias is 'qkv'",
    ),
    "latent shared heads": (
        {**LATENT, "n_kv_heads": 2},
        "n_kv_heads",
        "latent attention has n_kv_heads 4 by its other sizes, but n_kv_heads is 2",
    ),
    "latent head width": (
        {**LATENT, "head_dim": 32},
        "head_dim",
        "latent attention has head_dim 16 by its other sizes, but head_dim is 32",
    ),
    "latent odd part": (
        {**LATENT, "attention": {"latent": {**LATENT_SIZES, "qk_rope_head_dim": 7}}},
        "attention.latent.qk_rope_head_dim",
        "qk_rope_head_dim 7 is odd, but RoPE rotates pairs",
    ),
    "varlen sinks": (
        {"attention": {"backend": "varlen", "sinks": True}},
        "attention.backend",
        "varlen attention does not support attention.sinks",
    ),
    "varlen cap": (
        {"attention": {"backend": "varlen", "soft_cap": 30.0}},
        "attention.backend",
        "varlen attention does not support attention.soft_cap",
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_ingredients_that_exclude_each_other_are_a_problem(case, decoder):
    fields, place, message = CONFLICTS[case]
    with pytest.raises(ProblemsFound) as found:
        decoder(**fields)
    (problem,) = found.value.problems
    assert (problem.code, ".".join(problem.path[1:]), problem.message) == (
        "conflict",
        place,
        message,
    )
    assert problem.hint


def test_layers_follow_patterns_over_and_over(decoder):
    attention = {"window": 8, "window_pattern": ["window", "window", "full"]}
    config = decoder(
        n_layers=5,
        attention=attention,
        rope={"pattern": ["rope", "none"]},
        hidden_pattern=["dense", "experts"],
        moe=EXPERTS,
    )
    assert [config.get_window(layer) for layer in range(5)] == [8, 8, None, 8, 8]
    assert [config.uses_rope(layer) for layer in range(5)] == [True, False, True, False, True]
    assert [config.has_experts(layer) for layer in range(5)] == [False, True, False, True, False]
    assert config.expert_layer_count() == 2


def test_experts_that_nobody_describes_are_the_plainest(decoder):
    moe = decoder(moe=EXPERTS).moe
    assert (moe.score_func, moe.route_norm, moe.swiglu_limit, moe.swiglu_alpha) == (
        "softmax",
        True,
        None,
        None,
    )
    assert decoder(moe={**EXPERTS, "swiglu_limit": 7.0}).moe.swiglu_alpha == 1.702


def test_what_is_spelled_out_stays_as_it_is(decoder):
    sizes = load_flavors("decoder")["debugmodel"]
    spelled = resolve_model_sizes(CustomDecoderConfig.model_validate({"flavor": "debugmodel"}))
    assert (spelled["dim"], spelled["feed_forward"]["hidden_dim"]) == (sizes["dim"], 768)
    assert resolve_model_sizes(CustomDecoderConfig.model_validate(spelled)) == spelled


def test_rows_longer_than_the_context_are_refused():
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(
            "recipes/decoder_llama3_debug.yaml", ["model.max_seq_len=64"], environment={}
        )
    assert {problem.rule for problem in found.value.problems} == {"rows-fit-context"}
