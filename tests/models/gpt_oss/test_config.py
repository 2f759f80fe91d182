"""Sizes, counts and layers of gpt-oss; what a config.json of OpenAI's says; and what contradicts
itself."""

import json

import pytest
import torch

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.models.gpt_oss.clamped_experts import (
    ClampedExperts,
    compute_slot_experts,
    scale_summed_bias,
)
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.gpt_oss.huggingface import to_huggingface_config
from titanrun.models.gpt_oss.model import GptOss
from titanrun.models.shared.spec.flavors import merge_sizes, resolve_model_sizes
from titanrun.models.shared.spec.flops import (
    count_active_parameters,
    count_parameters,
    flops_per_token,
)
from titanrun.recipe.resolving.resolve import resolve_recipe

# config.json of openai/gpt-oss-20b
PUBLISHED = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 201088,
}


@pytest.mark.parametrize(
    ("flavor", "parameters", "active", "seq_len", "flops"),
    [
        ("debugmodel", 183_397_920, 147_912_224, 2048, 981_255_360),
        ("20b", 20_914_757_184, 4_187_440_704, 8192, 31_313_520_000),
        ("120b", 116_829_156_672, 5_711_982_912, 8192, 45_292_611_456),
    ],
)
def test_counts_equal_the_worked_numbers_and_the_model(
    gpt_oss, flavor, parameters, active, seq_len, flops
):
    config = gpt_oss(flavor)
    assert count_parameters(config) == parameters
    assert count_active_parameters(config) == active
    assert flops_per_token(config, seq_len) == flops
    with torch.device("meta"):
        model = GptOss(config, seq_len=16)
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert list(found.items()) == list(config.parameter_shapes().items())


def test_the_sizes_of_the_published_model_are_those_of_its_flavor(gpt_oss):
    flavor = dump_config(gpt_oss("20b"))
    assert merge_sizes(flavor, GptOssConfig.read_huggingface_sizes(PUBLISHED)) == flavor


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sliding_window": None, "rope": {"scaling": None}},
        {"moe": {"swiglu_limit": 3.0, "top_k": 1}},
    ],
)
def test_the_sizes_of_an_export_are_read_back(gpt_oss, fields):
    config = gpt_oss(**fields)
    read = GptOssConfig.read_huggingface_sizes(
        json.loads(json.dumps(to_huggingface_config(config, "float32")))
    )
    expected = {name: value for name, value in dump_config(config).items() if name in read}
    if expected["rope"]["scaling"] is not None:
        assert read["rope"]["scaling"].pop("attention_factor") == pytest.approx(
            config.rope.scaling.cos_sin_scale()
        )
        del expected["rope"]["scaling"]["attention_factor"]
    del expected["moe"]["use_grouped_mm"]
    assert read == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention", "sliding_attention"] * 12),
        ("attention_bias", False),
        ("experts_per_token", 3),
        ("initial_context_length", 8192),
        ("hidden_act", "gelu"),
        ("num_attention_heads", "many"),
        ("no_such_switch", 1),
    ],
)
def test_a_config_json_of_another_model_is_refused(key, value):
    with pytest.raises(ProblemsFound, match=key):
        GptOssConfig.read_huggingface_sizes({**PUBLISHED, key: value})


def test_sizes_that_contradict_each_other_are_all_found():
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(
            GptOssConfig(flavor="debugmodel", n_heads=9, head_dim=15, moe={"top_k": 65})
        )
    assert [problem.path for problem in found.value.problems] == [
        ("model", "head_dim"),
        ("model", "n_kv_heads"),
        ("model", "moe", "top_k"),
    ]


@pytest.mark.parametrize(
    ("rope", "field"),
    [
        (
            {"scaling": {"name": "yarn", "beta_fast": 1.0, "beta_slow": 32.0}},
            "rope.scaling.beta_fast",
        ),
        ({"theta": 1.0}, "rope.theta"),
    ],
)
def test_a_ramp_that_cannot_be_is_refused(rope, field):
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(GptOssConfig(flavor="debugmodel", rope=rope))
    assert [problem.path for problem in found.value.problems] == [("model", *field.split("."))]


def test_every_second_layer_has_a_window_beginning_with_the_first(gpt_oss):
    model = GptOss(gpt_oss(n_layers=3), seq_len=16)
    assert [layer.attention.backend.mask.window for layer in model.layers.values()] == [5, None, 5]


def test_every_weight_and_bias_is_drawn(gpt_oss):
    model = GptOss(gpt_oss(n_layers=1, dim=128, moe={"hidden_dim": 128}), seq_len=16)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    model.init_weights(torch.Generator().manual_seed(0))
    into_stream = 0.02 / 2**0.5
    for name, parameter in model.named_parameters():
        assert not parameter.isnan().any(), name
        if (".attention." in name or ".experts." in name) and parameter.numel() > 100:
            assert parameter.std().item() == pytest.approx(into_stream, rel=0.15), name
    assert (model.layers["0"].moe.router.gate.bias == 0).all()
    assert 0 < model.layers["0"].attention.sinks.abs().max() < 5 * into_stream


def test_experts_equal_the_formula_in_float64(gpt_oss):
    config = gpt_oss(moe={"swiglu_limit": 0.5, "num_experts": 4}).moe
    experts, generator = ClampedExperts(config, dim=64), torch.Generator().manual_seed(0)
    for parameter in experts.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    x, counts = torch.randn(10, 64, generator=generator), torch.tensor([3, 0, 6, 1])
    expected = []
    for row, expert in zip(x.double(), [0] * 3 + [2] * 6 + [3], strict=True):
        w1, b1, w2, b2 = (parameter[expert].double() for parameter in experts.parameters())
        hidden = w1 @ row + b1
        gate, value = hidden[::2].clamp(max=0.5), hidden[1::2].clamp(-0.5, 0.5)
        expected.append(w2 @ (gate / (1 + torch.exp(-1.702 * gate)) * (value + 1)) + b2)
    torch.testing.assert_close(
        experts(x, counts).double(), torch.stack(expected), atol=1e-5, rtol=1e-5
    )


def test_slots_know_their_expert_and_padding_counts_as_the_last_ones():
    assert compute_slot_experts(torch.tensor([2, 0, 1]), 5).tolist() == [0, 0, 2, 2, 2]


def test_ranks_that_share_a_bias_add_it_up_once_and_have_its_whole_gradient():
    bias = torch.tensor([1.0, 2.0], requires_grad=True)
    parts = [scale_summed_bias(bias, 0.25) for _ in range(4)]
    assert torch.equal(sum(parts), bias)
    assert torch.autograd.grad(parts[0].sum(), bias)[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        "score_func=sigmoid",
        "num_shared_experts=1",
        "gate_bias=false",
        "score_before_experts=true",
        "route_scale=2.0",
        "route_norm=false",
    ],
)
def test_experts_that_transformers_does_not_have_are_not_exported_by_half(change, tmp_path):
    asked = ["checkpoint.enable=true", "checkpoint.last_save_in_hf=true", f"model.moe.{change}"]
    (problem,) = problems_of(tmp_path, *asked)
    assert problem.rule == "export-fits-transformers"
    assert problem.path == ("model", "moe", change.partition("=")[0])


def test_varlen_attention_has_no_sinks(tmp_path):
    (problem,) = problems_of(tmp_path, "model.attention.backend=varlen")
    assert (problem.rule, problem.path) == ("family-has-feature", ("model", "attention", "backend"))


def test_flavor_auto_reads_the_folder_that_the_recipe_names(tmp_path, gpt_oss):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    read = resolve_model_sizes(GptOssConfig(flavor="auto", hf_assets_path=str(tmp_path)))
    assert dump_config(GptOssConfig.model_validate(read)) == {
        **dump_config(gpt_oss("20b")),
        "flavor": None,
        "hf_assets_path": str(tmp_path),
    }


def test_rows_longer_than_the_context_are_refused(tmp_path):
    (problem,) = problems_of(tmp_path, "model.max_seq_len=128", "training.seq_len=256")
    assert problem.rule == "rows-fit-context"


def problems_of(folder, *overrides):
    """What is wrong with a recipe of the debug flavor and `overrides`."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: gpt_oss, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(recipe), list(overrides), environment={})
    return found.value.problems
