"""Folders of peft: which model they belong to, and the commands that start from both."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.finetuning_template import open_model_folder
from titanrun.recipe.resolving.resolve import resolve_recipe

ADAPTER = {
    "peft_type": "LORA",
    "base_model_name_or_path": "Qwen/Qwen3-0.6B",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["v_proj", "model.layers.0.self_attn.q_proj"],
}
CONVERTERS = "'converters=[{name: lora, rank: 8, alpha: 16, target_modules: [wq, wv]}]'"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").touch()
    return tmp_path / "adapter"


def find_hint(folder: Path, **changes: Any) -> str:
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER | changes))
    with pytest.raises(ProblemsFound) as caught:
        open_model_folder("adapter")
    (problem,) = caught.value.problems
    assert problem.message.startswith("'adapter' holds adapters without the model that they")
    return str(problem.hint)


def test_init_says_what_starts_from_an_adapter_and_its_model(folder: Path) -> None:
    assert find_hint(folder) == (
        "titanrun init --kind lora --model hub:Qwen/Qwen3-0.6B --data FILE -o mine.yaml; then "
        f"titanrun checkpoint import adapter mine.yaml out --from peft {CONVERTERS} ends with the "
        "command that trains"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"use_rslora": True, "target_modules": ALL}, "alpha: 16, rank_stabilized: true}]"),
        ({"use_dora": True, "target_modules": "all-linear"}, "alpha: 16, magnitude: true}]"),
        ({"base_model_name_or_path": None}, "--model MODEL --data"),
        ({"base_model_name_or_path": "./base"}, "--model ./base --data"),
        ({"r": None}, "mine.yaml out --from peft ends"),
        ({"peft_type": "IA3"}, "titanrun reads LORA, not IA3: merge them in peft"),
    ],
)
def test_the_commands_have_the_settings_of_the_adapter(
    folder: Path, changes: dict[str, Any], told: str
) -> None:
    assert told in find_hint(folder, **changes)


@pytest.mark.parametrize("flavor", ["auto", "debugmodel"])
def test_a_recipe_with_an_adapter_for_its_model_is_told_the_command_once(
    folder: Path, flavor: str
) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    recipe = folder.parent / "r.yaml"
    recipe.write_text(
        f"version: 1\nkind: sft\nmodel: {{name: llama3, flavor: {flavor}, "
        "hf_assets_path: adapter}\ntraining: {dataset: tiny_chat, steps: 2, seq_len: 64}\n"
        "converters: [lora]\n"
    )
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(str(recipe), environment={}, should_check_inputs=True)
    (problem,) = caught.value.problems
    assert problem.path == ("model", "hf_assets_path")
    assert str(problem.hint).startswith(
        "titanrun checkpoint import adapter RECIPE out --from peft "
        "model.hf_assets_path=hub:Qwen/Qwen3-0.6B checkpoint.initial_load_path=null "
        f"checkpoint.initial_load_in_hf=true {CONVERTERS} ends with"
    )
