"""Sizes of deepseek_v3: worked numbers, config.json of transformers, what is refused by name, and
that every size reaches the model."""

import json

import pytest
import torch
from torch import Generator
from transformers import DeepseekV3Config as TheirConfig

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.huggingface import to_huggingface_config
from titanrun.models.deepseek_v3.model import DeepseekV3
from titanrun.models.shared.latent_config import compute_attention_scale
from titanrun.models.shared.spec.flavors import load_flavors, resolve_model_sizes
from titanrun.models.shared.spec.flops import (
    count_active_parameters,
    count_parameters,
    flops_per_token,
)
from titanrun.recipe.resolving.resolve import resolve_recipe

# DeepSeek-V3 as it was released, for transformers 4
RELEASED = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("flavor", "seq_len", "parameters", "active", "flops"),
    [
        ("debugmodel", 2048, 33_014_016, 28_098_816, 542_934_528),
        ("debugmodel_flex_attn", 2048, 33_014_016, 28_098_816, 542_934_528),
        ("16B", 4096, 15_706_484_224, 2_661_150_208, 18_105_996_288),
        ("236B", 4096, 235_741_434_880, 21_375_800_320, 185_507_051_520),
        ("671B", 4096, 671_026_404_352, 37_552_282_624, 281_158_232_064),
    ],
)
def test_counts_equal_the_worked_numbers(deepseek_v3, flavor, seq_len, parameters, active, flops):
    config = deepseek_v3(flavor)
    assert count_parameters(config) == parameters
    assert count_active_parameters(config) == active
    assert flops_per_token(config, seq_len) == flops


@pytest.mark.parametrize("flavor", load_flavors("deepseek_v3"))
def test_the_shapes_are_those_of_the_model(deepseek_v3, flavor):
    config = deepseek_v3(flavor)
    with torch.device("meta"):
        model = DeepseekV3(config, seq_len=8)
    assert {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    } == config.parameter_shapes()
    buffers = {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name not in config.parameter_shapes()
    }
    assert buffers == config.buffer_shapes()


@pytest.mark.parametrize("flavor", load_flavors("deepseek_v3"))
def test_what_is_spelled_out_is_the_dump_of_a_config_and_stays_as_it_is(deepseek_v3, flavor):
    sizes = resolve_model_sizes(DeepseekV3Config(flavor=flavor), seq_len=8192)
    sizes["attention"]["documents"] = None
    config = DeepseekV3Config.model_validate(sizes)
    assert dump_config(config) == sizes
    assert resolve_model_sizes(config, seq_len=64) == sizes


@pytest.mark.parametrize(("rows", "scaled"), [(4096, False), (4097, True)])
def test_a_flavor_has_yarn_where_rows_outgrow_its_original_context(rows, scaled):
    assert (
        resolve_model_sizes(DeepseekV3Config(flavor="671B"), seq_len=rows)["rope"]["scaling"]
        is not None
    ) == scaled
    written = DeepseekV3Config(flavor="671B", rope={"scaling": {"name": "yarn"}})
    assert resolve_model_sizes(written, seq_len=rows)["rope"]["scaling"]["factor"] == 40.0


def read(folder, written):
    (folder / "config.json").write_text(json.dumps(written))
    return DeepseekV3Config.model_validate(
        resolve_model_sizes(
            DeepseekV3Config(flavor="auto", hf_assets_path=str(folder)), seq_len=128
        )
    )


def test_the_released_config_json_gives_the_flavor_with_yarn(tmp_path, deepseek_v3):
    released, flavor = read(tmp_path, RELEASED), deepseek_v3("671B")
    assert released.parameter_shapes() == flavor.parameter_shapes()
    assert (released.moe, released.rope.theta) == (flavor.moe, flavor.rope.theta)
    assert (released.norm_eps, released.latent_norm_eps) == (1e-6, 1e-6)
    assert released.rope.scaling.cos_sin_scale() == 1.0
    # (0.1 ln 40 + 1)^2 / sqrt(192)
    assert compute_attention_scale(released, released.rope.scaling) == pytest.approx(
        1.8738542070926265 / 13.856406460551018, rel=1e-12
    )


@pytest.mark.parametrize(
    "theirs",
    [TheirConfig(), TheirConfig(q_lora_rank=None, n_group=1, topk_group=1)],
    ids=["default", "no groups"],
)
def test_config_json_of_transformers_is_read_and_written_back(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    config = read(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert read(tmp_path, to_huggingface_config(config, "float32")) == config
    assert (config.n_layers, config.n_dense_layers, config.q_lora_rank) == (
        61,
        3,
        theirs.q_lora_rank,
    )
    assert config.moe.num_expert_groups == (None if theirs.n_group == 1 else 8)


@pytest.mark.parametrize(
    ("scaling", "magnitude", "score_factor"),
    [
        ({"factor": 16}, 1.2772588722239782, 1.0),
        ({"factor": 16, "mscale": 0.7}, 1.2772588722239782, 1.0),
        ({"factor": 16, "mscale_all_dim": 1.0}, 1.2772588722239782, 1.2772588722239782**2),
        ({"factor": 16, "attention_factor": 1.5}, 1.5, 1.0),
        ({}, 1.3688879454113937, 1.0),
    ],
)
def test_what_config_json_leaves_unsaid_of_yarn_is_what_transformers_infers(
    scaling, magnitude, score_factor, tmp_path
):
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 4096, **scaling}
    config = read(tmp_path, {**RELEASED, "rope_scaling": yarn})
    assert config.rope.scaling.cos_sin_scale() == pytest.approx(magnitude, rel=1e-12)
    assert config.rope.scaling.attention_score_scale() == pytest.approx(score_factor, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"scoring_func": "softmax"},
            'scoring_func is "softmax", but deepseek_v3 supports only "sigmoid"',
        ),
        ({"topk_method": "greedy"}, 'topk_method is "greedy"'),
        ({"rope_interleave": False}, "rope_interleave is false"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, but deepseek_v3 supports only 128"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"model_type": "deepseek_v2"}, 'model_type is "deepseek_v2"'),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            'rope_scaling.rope_type is "linear"',
        ),
        (
            {"rope_scaling": {**RELEASED["rope_scaling"], "mscale": -1}},
            "rope_scaling.mscale is -1, expected a non-negative number",
        ),
        ({"index_topk": 2048}, "index_topk is not supported by deepseek_v3"),
    ],
    ids=str,
)
def test_mathematics_that_deepseek_v3_does_not_have_is_refused_by_name(change, message, tmp_path):
    with pytest.raises(ProblemsFound) as found:
        read(tmp_path, RELEASED | change)
    assert any(message in problem.message for problem in found.value.problems)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ({"n_dense_layers": 7}, "n_dense_layers"),
        ({"moe": {"top_k": 9}}, "moe.top_k"),
        ({"moe": {"num_expert_groups": 3, "num_limited_groups": 1}}, "moe.num_expert_groups"),
        ({"moe": {"num_expert_groups": 4, "num_limited_groups": 1}}, "moe.num_limited_groups"),
        ({"moe": {"num_expert_groups": 4, "num_limited_groups": 5}}, "moe.num_limited_groups"),
        ({"moe": {"num_limited_groups": 1}}, "moe.num_limited_groups"),
        (
            {"rope": {"scaling": {"name": "yarn", "beta_fast": 1.0, "beta_slow": 2.0}}},
            "rope.scaling.beta_fast",
        ),
        ({"rope": {"theta": 1.0, "scaling": {"name": "yarn"}}}, "rope.theta"),
    ],
    ids=str,
)
def test_sizes_that_exclude_each_other_are_named(change, path):
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(DeepseekV3Config.model_validate({"flavor": "debugmodel", **change}))
    assert [".".join(problem.path) for problem in found.value.problems] == [f"model.{path}"]


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(
            DeepseekV3Config(
                flavor="debugmodel", qk_rope_head_dim=7, n_dense_layers=7, moe={"top_k": 9}
            )
        )
    assert len(found.value.problems) == 3


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("moe.score_func=softmax", "moe.score_func"),
        ("moe.score_before_experts=true", "moe.score_before_experts"),
        ("moe.gate_bias=true", "moe.gate_bias"),
        ("moe.num_shared_experts=0", "moe.num_shared_experts"),
        ("latent_norm_eps=auto", "latent_norm_eps"),
    ],
)
def test_what_transformers_does_not_have_is_not_exported_by_half(change, path, tmp_path):
    exportable = ["moe.score_func=sigmoid", "latent_norm_eps=1e-6"]
    asked = ["checkpoint.enable=true", "checkpoint.last_save_in_hf=true"]
    resolved(tmp_path, *asked, *(f"model.{setting}" for setting in exportable))
    with pytest.raises(ProblemsFound) as found:
        resolved(
            tmp_path,
            *asked,
            *(f"model.{setting}" for setting in exportable if not setting.startswith(path)),
            f"model.{change}",
        )
    assert [(problem.rule, ".".join(problem.path)) for problem in found.value.problems] == [
        ("export-fits-transformers", f"model.{path}")
    ]


def resolved(folder, *overrides):
    """A recipe of the debug flavor and `overrides`, resolved."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: deepseek_v3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    return resolve_recipe(str(recipe), list(overrides), environment={}).run


def test_rows_longer_than_the_context_are_refused(tmp_path):
    with pytest.raises(ProblemsFound) as found:
        resolved(tmp_path, "model.max_seq_len=128", "training.seq_len=256")
    assert [problem.rule for problem in found.value.problems] == ["rows-fit-context"]


YARN = {
    "rope": {
        "theta": 100.0,
        "scaling": {"name": "yarn", "original_max_position_embeddings": 64, "beta_fast": 4.0},
    }
}
GROUPED = {"moe": {"num_expert_groups": 4, "num_limited_groups": 2}}
# for each setting that moves the logits another value than `deepseek_v3` has, and what must be so
# for it to be read
MOVES = {
    "vocab_size": ({"vocab_size": 100}, {}),
    "dim": ({"dim": 48}, {}),
    "n_layers": ({"n_layers": 4}, {}),
    "n_heads": ({"n_heads": 2}, {}),
    "norm_eps": ({"norm_eps": 0.1}, {}),
    "latent_norm_eps": ({"latent_norm_eps": 0.1}, {}),
    "n_dense_layers": ({"n_dense_layers": 2}, {}),
    "q_lora_rank": ({"q_lora_rank": None}, {}),
    "kv_lora_rank": ({"kv_lora_rank": 16}, {}),
    "qk_nope_head_dim": ({"qk_nope_head_dim": 8}, {}),
    "qk_rope_head_dim": ({"qk_rope_head_dim": 16}, {}),
    "v_head_dim": ({"v_head_dim": 16}, {}),
    "tie_word_embeddings": ({"tie_word_embeddings": True}, {}),
    "rope.theta": ({"rope": {"theta": 100.0}}, {}),
    "rope.scaling": (YARN, {}),
    "feed_forward.hidden_dim": ({"feed_forward": {"hidden_dim": 64}}, {}),
    "moe.num_experts": ({"moe": {"num_experts": 4}}, {}),
    "moe.top_k": ({"moe": {"top_k": 2}}, {}),
    "moe.hidden_dim": ({"moe": {"hidden_dim": 16}}, {}),
    "moe.num_shared_experts": ({"moe": {"num_shared_experts": 1}}, {}),
    "moe.score_func": ({"moe": {"score_func": "sigmoid"}}, {}),
    "moe.route_norm": ({"moe": {"route_norm": True}}, {}),
    "moe.route_scale": ({"moe": {"route_scale": 2.0}}, {}),
    "moe.gate_bias": ({"moe": {"gate_bias": True}}, {}),
    "moe.score_before_experts": ({"moe": {"score_before_experts": True}}, {}),
    "moe.num_expert_groups": (
        {"moe": {"num_expert_groups": 2}},
        {"moe": {"num_expert_groups": 4, "num_limited_groups": 2}},
    ),
    "moe.num_limited_groups": ({"moe": {"num_limited_groups": 3}}, GROUPED),
    "moe.load_balance_coeff": ({"moe": {"load_balance_coeff": None}}, {}),
    "init.embedding_std": ({"init": {"embedding_std": 0.5}}, {}),
    "init.linear_std": ({"init": {"linear_std": 0.05}}, {}),
    "init.depth_scaling": ({"init": {"depth_scaling": "model"}}, {}),
    "init.truncation": ({"init": {"truncation": 0.02}}, {}),
    "init.output_std": ({"init": {"output_std": 0.5}}, {}),
    "init.output_truncation_stds": ({"init": {"output_truncation_stds": 0.5}}, {}),
    "yarn.factor": ({"rope": {"scaling": {"factor": 2.0}}}, YARN),
    "yarn.beta_fast": ({"rope": {"scaling": {"beta_fast": 1.5}}}, YARN),
    "yarn.beta_slow": ({"rope": {"scaling": {"beta_slow": 0.25}}}, YARN),
    "yarn.original_max_position_embeddings": (
        {"rope": {"scaling": {"original_max_position_embeddings": 256}}},
        YARN,
    ),
    "yarn.truncate": ({"rope": {"scaling": {"truncate": False}}}, YARN),
    "yarn.mscale": ({"rope": {"scaling": {"mscale": 0.5}}}, YARN),
    "yarn.mscale_all_dim": ({"rope": {"scaling": {"mscale_all_dim": 0.5}}}, YARN),
    "yarn.attention_factor": ({"rope": {"scaling": {"attention_factor": 2.0}}}, YARN),
}
LARGE = {"init": {"linear_std": 0.1}}


@pytest.mark.parametrize("setting", MOVES)
def test_another_value_gives_another_model(setting, deepseek_v3):
    change, given = MOVES[setting]
    given = nested(LARGE, given)
    before, after = (logits(deepseek_v3(**fields)) for fields in (given, nested(given, change)))
    assert before.shape != after.shape or not torch.equal(before, after)


def nested(base, top):
    """`base` with the values of `top`, key by key, also within a component."""
    both = {
        key: nested(base[key], top[key])
        for key in base.keys() & top.keys()
        if isinstance(base[key], dict)
    }
    return {**base, **top, **both}


def logits(config):
    """Of a freshly drawn model whose experts were out of balance before."""
    model = DeepseekV3(config, seq_len=32)
    model.init_weights(Generator().manual_seed(0))
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer += torch.linspace(0, 0.02, buffer.numel())
    for name, parameter in model.named_parameters():
        if name.endswith("gate.bias"):
            parameter.data += torch.linspace(0, 0.1, parameter.numel())
    tokens = torch.arange(32).remainder(7)[None]
    with torch.no_grad():
        return model(tokens)
