"""Names of models in transformers: what is told about them is valid when it is obeyed."""

import json
from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.config.registry import load_choices
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.editing.model_names import (
    NO_FAMILY,
    OTHER_MASKS,
    OWN_KERNELS,
    list_types,
)
from titanrun.recipe.resolving.validation_levels import validate_file

RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training: {dataset: tiny, steps: 4}
"""
REST = "version: 1\ntokenizer: tiny\ntraining: {dataset: tiny, seq_len: 64, steps: 4}\n"
CONFIG = {"model_type": "llama", "vocab_size": 300, "max_position_embeddings": 4096}
FAMILIES = {
    "LlamaForCausalLM": "llama3",
    "LlamaForSequenceClassification": "llama3",
    "llama": "llama3",
    "llama2": "llama3",
    "Llama4ForConditionalGeneration": "llama4",
    "llama4_text": "llama4",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3",
    "qwen3_moe": "qwen3",
    "GptOssForCausalLM": "gpt_oss",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}


def problems_of(folder: Path, text: str) -> list[Problem]:
    file = folder / "mine.yaml"
    file.write_text(text)
    return list(validate_file(str(file), [], level="rules", environment={}).problems)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_class_or_type_of_transformers_is_told_its_family(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    (found,) = problems_of(tmp_path, RECIPE.replace("llama3", name))
    assert found.hint == f"write {family}"
    assert family in load_choices(ModelConfig)


@pytest.mark.parametrize("name", ["MistralForCausalLM", "gemma3", "Qwen2ForCausalLM", "phi3"])
def test_a_class_without_a_family_is_one_of_transformers(name: str, tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, RECIPE.replace("llama3", name))
    assert found.hint == NO_FAMILY
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = f"{{name: transformers, hf_assets_path: {tmp_path}}}"
    assert problems_of(tmp_path, f"{REST}model: {model}\n") == []


def test_a_class_that_finds_the_family_is_told_all(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, RECIPE.replace("llama3", "AutoModelForCausalLM"))
    assert found.hint == f"{NO_FAMILY}; those with one are {', '.join(list_types())}"


def test_a_spelling_of_a_family_keeps_its_fix(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, RECIPE.replace("llama3", "gpt-oss"))
    assert (found.suggestion, found.fix is not None) == ("gpt_oss", True)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "./nowhere/Qwen3"])
def test_a_folder_or_name_on_the_hub_is_no_family(name: str, tmp_path: Path) -> None:
    (whole,) = problems_of(tmp_path, f"{REST}model: {name}\n")
    (inner,) = problems_of(tmp_path, f"{REST}model: {{name: {name}}}\n")
    hint = str(whole.hint)
    assert hint.startswith("write model: {name: ") and "hf_assets_path: " in hint
    assert str(inner.hint) == hint.replace("model: {", "").removesuffix("}")


def test_attention_of_other_programs_is_told_without_a_loop(tmp_path: Path) -> None:
    """The key belongs to model transformers only, which has none of llama3's."""
    key = "attn_implementation: flash_attention_2"
    (found,) = problems_of(tmp_path, RECIPE.replace("flavor", f"{key}, flavor"))
    assert found.hint == f"{OWN_KERNELS}; {OTHER_MASKS}"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = f"{{name: transformers, hf_assets_path: {tmp_path}, {key}}}"
    (found,) = problems_of(tmp_path, f"{REST}model: {model}\n")
    assert str(found.hint).startswith("write sdpa: ")
    (found,) = problems_of(
        tmp_path, RECIPE.replace("mask: block_causal", "backend: flash_attention_2")
    )
    assert str(found.hint).startswith("write auto: ")


def test_a_key_of_another_family_is_to_be_removed(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, RECIPE.replace("flavor", "config_json: x, flavor"))
    assert found.hint == "remove it: a key of model 'transformers'"
