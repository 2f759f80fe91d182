"""Sizes of qwen3: worked numbers, config.json of transformers, and what is refused by name."""

import json

import pytest
import torch
from transformers import Qwen3Config as TheirDense
from transformers import Qwen3MoeConfig as TheirMoe

from titanrun.config.problems import ProblemsFound
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.qwen3.huggingface import to_huggingface_config
from titanrun.models.qwen3.model import Qwen3
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.models.shared.spec.flops import (
    count_active_parameters,
    count_parameters,
    flops_per_token,
)
from titanrun.recipe.resolving.resolve import resolve_recipe


@pytest.mark.parametrize(
    ("flavor", "parameters", "active", "flops"),
    [
        ("debugmodel", 31_987_968, None, None),
        ("0.6B", 596_049_920, None, None),
        ("1.7B", 1_720_574_976, None, None),
        ("4B", 4_022_468_096, None, None),
        ("8B", 8_190_735_360, None, 52_658_190_336),
        ("14B", 14_768_307_200, None, 94_008_698_880),
        ("32B", 32_762_123_264, None, 217_675_069_440),
        ("debugmodel_moe", 315_758_848, 51_517_696, 1_111_266_816),
        ("30B-A3B", 30_532_122_624, 3_353_032_704, 27_914_883_072),
        ("235B-A22B", 235_093_634_560, 22_190_763_520, 167_260_001_280),
    ],
)
def test_counts_equal_the_worked_numbers(qwen3, flavor, parameters, active, flops):
    config = qwen3(flavor)
    assert count_parameters(config) == parameters
    assert count_active_parameters(config) == (active or parameters)
    # the worked numbers leave a tied head out, which is multiplied by all the same
    assert flops is None or flops_per_token(config, 4096) == flops


@pytest.mark.parametrize("flavor", ["debugmodel", "debugmodel_moe"])
def test_the_shapes_are_those_of_the_model(qwen3, flavor):
    config = qwen3(flavor)
    with torch.device("meta"):
        model = Qwen3(config, seq_len=8)
    assert {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    } == config.parameter_shapes()


@pytest.mark.parametrize("theirs", [TheirDense(), TheirMoe()], ids=["dense", "experts"])
def test_config_json_of_transformers_is_read_and_written_back(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    config = Qwen3Config.model_validate(
        resolve_model_sizes(Qwen3Config(flavor="auto", hf_assets_path=str(tmp_path)))
    )
    (tmp_path / "config.json").write_text(json.dumps(to_huggingface_config(config, "float32")))
    again = Qwen3Config.model_validate(
        resolve_model_sizes(Qwen3Config(flavor="auto", hf_assets_path=str(tmp_path)))
    )
    assert again == config
    assert config.n_layers == theirs.num_hidden_layers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "attention_bias is true, but qwen3 supports only false"),
        (
            {"mlp_only_layers": [0], "model_type": "qwen3_moe"},
            "mlp_only_layers is [0], but qwen3 supports only []",
        ),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"hidden_flavour": 1}, "hidden_flavour is not supported by qwen3"),
    ],
    ids=str,
)
def test_mathematics_that_qwen3_does_not_have_is_refused_by_name(change, message, tmp_path, qwen3):
    written = to_huggingface_config(qwen3(), "float32") | change
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(Qwen3Config(flavor="auto", hf_assets_path=str(tmp_path)))
    assert any(message in problem.message for problem in found.value.problems)


def test_sizes_that_exclude_each_other_are_named():
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(
            Qwen3Config(flavor="debugmodel_moe", n_heads=9, head_dim=15, moe={"top_k": 65})
        )
    assert [problem.path for problem in found.value.problems] == [
        ("model", "head_dim"),
        ("model", "n_kv_heads"),
        ("model", "moe", "top_k"),
    ]


def test_experts_of_a_dense_flavor_must_be_written_whole():
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(Qwen3Config(flavor="0.6B", moe={"top_k": 2}))
    assert ("model", "moe", "num_experts") in {problem.path for problem in found.value.problems}


def test_rows_longer_than_the_context_are_refused(qwen3, tmp_path):
    problems = problems_of(tmp_path, "model.max_seq_len=128", "training.seq_len=256")
    assert [problem.rule for problem in problems] == ["rows-fit-context"]


@pytest.mark.parametrize(
    "change",
    [
        "score_func=sigmoid",
        "num_shared_experts=1",
        "gate_bias=true",
        "score_before_experts=true",
        "route_scale=2.0",
    ],
)
def test_experts_that_transformers_does_not_have_are_not_exported_by_half(change, tmp_path):
    asked = [
        "checkpoint.enable=true",
        "checkpoint.last_save_in_hf=true",
        "model.flavor=debugmodel_moe",
        f"model.moe.{change}",
    ]
    (problem,) = problems_of(tmp_path, *asked)
    assert problem.rule == "export-fits-transformers"
    assert problem.path == ("model", "moe", change.partition("=")[0])


def problems_of(folder, *overrides):
    """What is wrong with a recipe of the debug flavor and `overrides`."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: qwen3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(recipe), list(overrides), environment={})
    return found.value.problems
