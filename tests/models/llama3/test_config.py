"""Reading config.json of transformers 4 and 5: what is taken over, and what is refused by name."""

import json

import pytest
from transformers import LlamaConfig

from titanrun.config.problems import ProblemsFound
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.llama3.huggingface import to_huggingface_config
from titanrun.models.shared.spec.flavors import resolve_model_sizes

# Llama 3.2 1B as transformers 4 wrote it
VERSION_4 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
VERSION_5 = {
    **{key: value for key, value in VERSION_4.items() if key not in ("rope_scaling", "rope_theta")},
    "rope_parameters": {**VERSION_4["rope_scaling"], "rope_theta": 500000.0},
}


def spelled(folder, written, **fields):
    (folder / "config.json").write_text(json.dumps(written))
    return resolve_model_sizes(
        Llama3Config.model_validate({"flavor": "auto", "hf_assets_path": str(folder), **fields})
    )


def problems_of(folder, written):
    with pytest.raises(ProblemsFound) as found:
        spelled(folder, written)
    assert {(problem.code, problem.path) for problem in found.value.problems} == {
        ("file", ("model", "hf_assets_path"))
    }
    return [problem.message for problem in found.value.problems]


@pytest.mark.parametrize(
    "written", [VERSION_4, VERSION_5], ids=["transformers 4", "transformers 5"]
)
def test_both_spellings_give_the_same_sizes(tmp_path, written):
    sizes = spelled(tmp_path, written)
    known = resolve_model_sizes(Llama3Config.model_validate({"flavor": "1B"}))
    known["rope"]["scaling"]["factor"] = 32.0
    # the width is a number of the file: the rule is not asked
    known["feed_forward"] = {"hidden_dim": 8192, "multiple_of": 256, "ffn_dim_multiplier": None}
    assert sizes == {**known, "flavor": None, "hf_assets_path": str(tmp_path)}


def test_what_this_transformers_saves_is_read(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 2.0,
    }
    LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=24, rope_parameters=scaling
    ).save_pretrained(tmp_path)
    sizes = spelled(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert (sizes["dim"], sizes["head_dim"], sizes["n_kv_heads"], sizes["norm_eps"]) == (
        64,
        24,
        4,
        1e-6,
    )
    assert sizes["rope"]["scaling"]["original_max_position_embeddings"] == 2048


def test_absent_keys_have_transformers_defaults(tmp_path):
    written = {
        "vocab_size": 96,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    sizes = spelled(tmp_path, written)
    default = LlamaConfig(**written)
    assert (sizes["norm_eps"], sizes["max_seq_len"]) == (
        default.rms_norm_eps,
        default.max_position_embeddings,
    )
    assert (sizes["n_kv_heads"], sizes["head_dim"]) == (
        default.num_key_value_heads,
        default.head_dim,
    )
    assert sizes["rope"] == {"theta": default.rope_parameters["rope_theta"], "scaling": None}
    assert sizes["tie_word_embeddings"] is False


def test_written_fields_override_the_file(tmp_path):
    sizes = spelled(tmp_path, VERSION_4, n_layers=2, rope={"theta": 10000.0})
    assert (sizes["n_layers"], sizes["rope"]["theta"], sizes["rope"]["scaling"]["factor"]) == (
        2,
        10000.0,
        32.0,
    )


def test_what_is_exported_is_read_back(tmp_path, llama3):
    config = llama3(
        n_kv_heads=2, head_dim=24, tie_word_embeddings=True, feed_forward={"hidden_dim": 100}
    )
    sizes = spelled(tmp_path, to_huggingface_config(config, "float32"))
    assert Llama3Config.model_validate({**sizes, "hf_assets_path": None}) == config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"model_type": "qwen2"}, 'model_type is "qwen2"'),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            'rope_scaling.rope_type is "yarn"',
        ),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 'rope_scaling.rope_type is "linear"'),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"logit_scale": 2.0}, "logit_scale is not supported by llama3"),
        ({"hidden_size": "2048"}, 'hidden_size is "2048", expected a positive whole number'),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, expected a positive number"),
    ],
)
def test_a_switch_that_cannot_be_honoured_is_refused_by_name(tmp_path, change, named):
    messages = problems_of(tmp_path, {**VERSION_4, **change})
    assert any(named in message for message in messages), messages


def test_everything_refused_is_said_at_once(tmp_path):
    messages = problems_of(
        tmp_path, {**VERSION_4, "attention_bias": True, "logit_scale": 2.0, "vocab_size": 0}
    )
    assert len(messages) == 3


def test_a_missing_or_broken_file_is_one_problem(tmp_path):
    config = Llama3Config.model_validate({"flavor": "auto", "hf_assets_path": str(tmp_path)})
    for content in (None, "", "{", "[1]", "\ud800"):
        if content is not None:
            (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
        with pytest.raises(ProblemsFound) as found:
            resolve_model_sizes(config)
        (problem,) = found.value.problems
        assert (problem.code, problem.path) == ("file", ("model", "hf_assets_path"))


def test_flavor_auto_without_a_folder_is_a_problem():
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(Llama3Config.model_validate({"flavor": "auto"}))
    assert [(problem.code, problem.path) for problem in found.value.problems] == [
        ("missing-key", ("model", "hf_assets_path"))
    ]
