"""Sizes, counts and layers of Llama 4; what a config.json of Meta's says; and what contradicts
itself."""

import json

import pytest
import torch
from transformers import Llama4TextConfig

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.models.llama4.config import Llama4Config
from titanrun.models.llama4.huggingface import to_huggingface_config
from titanrun.models.llama4.model import Llama4
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.models.shared.spec.flops import (
    count_active_parameters,
    count_parameters,
    flops_per_token,
)
from titanrun.recipe.resolving.resolve import resolve_recipe

STRETCHED = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
# Scout's text model, with the keys of its first release
RELEASED = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attention_dropout": 0.0,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "bos_token_id": 200000,
    "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "moe_layers": list(range(48)),
    "no_rope_layers": [1, 1, 1, 0] * 12,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "output_router_logits": False,
    "pad_token_id": 200018,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {**STRETCHED, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
WHOLE = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "boi_token_index": 200080,
    "eoi_token_index": 200081,
    "image_token_index": 200092,
    "model_type": "llama4",
    "text_config": RELEASED,
    "tie_word_embeddings": False,
    "transformers_version": "4.51.0",
    "vision_config": {"hidden_size": 1408},
}
OF_META = {
    "every_n_layers_nope": 4,
    "first_nope_layer": 3,
    "fixed_attn_block_size": 8192,
    "qk_norm": True,
    "attn_scale": 0.1,
}


@pytest.mark.parametrize(
    ("flavor", "parameters", "active", "seq_len", "flops"),
    [
        ("debugmodel", 15_017_216, 6_759_680, 2048, 75_161_088),
        ("debugmodel_irope", 15_017_216, 6_759_680, 2048, 75_161_088),
        ("17bx16e", 107_769_861_120, 17_172_894_720, 8192, 120_989_644_800),
        ("17bx16e_irope", 107_769_861_120, 17_172_894_720, 8192, 120_989_644_800),
        ("17bx128e", 400_711_848_960, 17_184_691_200, 8192, 121_060_423_680),
        ("17bx128e_irope", 400_711_848_960, 17_184_691_200, 8192, 121_060_423_680),
    ],
)
def test_counts_equal_the_worked_numbers_and_the_model(
    llama4, flavor, parameters, active, seq_len, flops
):
    config = llama4(flavor)
    assert count_parameters(config) == parameters
    assert count_active_parameters(config) == active
    assert flops_per_token(config, seq_len) == flops
    with torch.device("meta"):
        model = Llama4(config, seq_len=16)
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert list(found.items()) == list(config.parameter_shapes().items())


def test_experts_cost_together_what_a_dense_layer_costs(llama4):
    large, small = llama4("17bx128e"), llama4("debugmodel")
    assert (large.feed_forward.hidden_dim, large.moe.hidden_dim) == (16384, 8192)
    assert (small.feed_forward.hidden_dim, small.moe.hidden_dim) == (768, 512)
    assert llama4("debugmodel", moe={"top_k": 2, "num_experts": 8}).moe.hidden_dim == 256
    assert llama4("debugmodel", feed_forward={"multiple_of": 32}).moe.hidden_dim == 352


def test_layers_of_a_torchtitan_flavor(llama4):
    model = Llama4(llama4("debugmodel_irope", n_layers=6, vocab_size=8), seq_len=16)
    layers = model.layers.values()
    assert [layer.has_experts for layer in layers] == [False, True] * 3
    assert [layer.attention.uses_rope for layer in layers] == [False, True, True, True, False, True]
    assert [layer.attention.backend.mask.block for layer in layers] == [
        None,
        256,
        256,
        256,
        None,
        256,
    ]
    assert all(layer.attention.backend.mask.separates_documents for layer in layers)


@pytest.mark.parametrize("written", [RELEASED, WHOLE], ids=["text model", "model that sees"])
def test_flavor_auto_reads_the_folder_that_the_recipe_names(written, tmp_path, llama4):
    (tmp_path / "config.json").write_text(json.dumps(written))
    read = resolve_model_sizes(Llama4Config(flavor="auto", hf_assets_path=str(tmp_path)))
    widths = {"hidden_dim": 16384, "multiple_of": 256, "ffn_dim_multiplier": None}
    rope = {"scaling": {"name": "llama3", **STRETCHED}}
    expected = llama4(
        "17bx16e", **OF_META, feed_forward=widths, moe={"hidden_dim": 8192}, rope=rope
    )
    assert read == {**dump_config(expected), "flavor": None, "hf_assets_path": str(tmp_path)}


def test_absent_keys_have_the_defaults_of_transformers():
    said = Llama4TextConfig().to_dict()
    silent = {
        key: said[key]
        for key in (
            "model_type",
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
    }
    assert Llama4Config.read_huggingface_sizes(silent) == Llama4Config.read_huggingface_sizes(said)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "every_n_layers_nope": None,
            "first_nope_layer": 0,
            "attn_scale": 0.0,
            "fixed_attn_block_size": None,
        },
        {
            "n_layers": 5,
            "every_n_layers_nope": 3,
            "first_nope_layer": 0,
            "rope": {"scaling": None},
            "moe": {"top_k": 2},
        },
        {
            "interleave_moe_layer_step": 1,
            "every_n_layers_nope": 2,
            "first_nope_layer": 1,
            "qk_norm": False,
            "attn_scale": 0.0,
        },
    ],
)
def test_the_sizes_of_an_export_are_read_back(llama4, fields):
    config = llama4(**fields)
    read = Llama4Config.read_huggingface_sizes(
        json.loads(json.dumps(to_huggingface_config(config, "float32")))
    )
    expected = {name: value for name, value in dump_config(config).items() if name in read}
    del (
        expected["moe"]["use_grouped_mm"],
        expected["feed_forward"]["multiple_of"],
        expected["feed_forward"]["ffn_dim_multiplier"],
    )
    if config.fixed_attn_block_size is None:
        assert (
            read["fixed_attn_block_size"] == config.max_seq_len
            or read["fixed_attn_block_size"] is None
        )
        expected["fixed_attn_block_size"] = read["fixed_attn_block_size"]
    assert read == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_rope_layers", [0] * 48),
        ("no_rope_layers", [1, 1, 0, 0] * 12),
        ("no_rope_layers", [1, 0]),
        ("no_rope_layers", "all"),
        ("no_rope_layer_interval", 1),
        ("moe_layers", [0, 1, 3]),
        ("layer_types", ["full_attention", "chunked_attention"] * 24),
        ("attention_bias", True),
        ("hidden_act", "gelu"),
        ("num_attention_heads", "many"),
        ("no_such_switch", 1),
    ],
)
def test_a_config_json_of_another_model_is_refused(key, value):
    other = {**RELEASED, "no_rope_layers": [], key: value}
    with pytest.raises(ProblemsFound, match=key):
        Llama4Config.read_huggingface_sizes(other)
    with pytest.raises(ProblemsFound, match=rf"text_config\.{key}"):
        Llama4Config.read_huggingface_sizes({**WHOLE, "text_config": other})


def test_experts_are_in_the_layers_that_the_list_names():
    listed = {**RELEASED, "moe_layers": list(range(1, 48, 2)), "interleave_moe_layer_step": 1}
    assert Llama4Config.read_huggingface_sizes(listed)["interleave_moe_layer_step"] == 2


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        (
            {"n_heads": 9, "n_kv_heads": 2, "head_dim": 15, "moe": {"top_k": 65}},
            ["head_dim", "n_kv_heads", "moe.top_k"],
        ),
        ({"dim": 250}, ["n_heads"]),
        ({"interleave_moe_layer_step": 7}, ["interleave_moe_layer_step"]),
        ({"every_n_layers_nope": 1}, ["every_n_layers_nope"]),
        ({"every_n_layers_nope": 4, "first_nope_layer": 4}, ["first_nope_layer"]),
        ({"every_n_layers_nope": 8, "first_nope_layer": 7}, ["first_nope_layer"]),
        ({"attn_scale": 0.1}, ["attn_scale"]),
        (
            {
                "rope": {
                    "scaling": {"name": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0}
                }
            },
            ["rope.scaling.high_freq_factor"],
        ),
    ],
)
def test_sizes_that_contradict_each_other_are_found(fields, paths):
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(Llama4Config(flavor="debugmodel", **fields))
    assert [problem.path for problem in found.value.problems] == [
        ("model", *path.split(".")) for path in paths
    ]


def test_attention_sharpens_in_steps_of_floor_scale(llama4):
    model = Llama4(llama4(attn_scale=0.5, floor_scale=4), seq_len=12)
    model.init_weights()
    expected = (
        [1.0] * 3
        + [1 + 0.5 * torch.tensor(2.0).log().item()] * 4
        + [1 + 0.5 * torch.tensor(3.0).log().item()] * 4
    )
    assert model.rope_table[:11, -1].real.tolist() == pytest.approx(expected)


def test_every_weight_is_drawn_as_it_should_be(llama4):
    model = Llama4(
        llama4(
            n_layers=2, dim=128, every_n_layers_nope=2, first_nope_layer=1, moe={"hidden_dim": 128}
        ),
        seq_len=16,
    )
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    model.init_weights(torch.Generator().manual_seed(0))
    into_stream = ("wo.weight", "w2", "w2.weight", "w3", "w3.weight", "gate.weight")
    for name, parameter in model.named_parameters():
        assert not parameter.isnan().any(), name
        if name.startswith("layers.") and "norm" not in name:
            expected = (
                0.02 / (2 * (int(name.split(".")[1]) + 1)) ** 0.5
                if name.endswith(into_stream)
                else 0.02
            )
            assert parameter.std().item() == pytest.approx(expected, rel=0.1), name


@pytest.mark.parametrize(
    "change",
    [
        "score_func=softmax",
        "num_shared_experts=2",
        "gate_bias=true",
        "score_before_experts=false",
        "route_scale=2.0",
        "route_norm=true",
    ],
)
def test_experts_that_transformers_does_not_have_are_not_exported_by_half(change, tmp_path):
    asked = ["checkpoint.enable=true", "checkpoint.last_save_in_hf=true", f"model.moe.{change}"]
    (problem,) = problems_of(tmp_path, *asked)
    assert problem.rule == "export-fits-transformers"
    assert problem.path == ("model", "moe", change.partition("=")[0])


def test_rows_longer_than_the_context_are_refused(tmp_path):
    (problem,) = problems_of(tmp_path, "model.max_seq_len=128", "training.seq_len=256")
    assert problem.rule == "rows-fit-context"


def problems_of(folder, *overrides):
    """What is wrong with a recipe of the debug flavor and `overrides`."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: llama4, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(recipe), list(overrides), environment={})
    return found.value.problems
