"""Names of other tools for components: what is told about them is valid when it is obeyed."""

import re
from pathlib import Path

import pytest
import yaml

from titanrun.cli.init import OTHER_KINDS
from titanrun.components.converters.config import ConverterConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.losses.config import LossConfig
from titanrun.components.lr_schedulers.config import LRSchedulerConfig
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config.problems import Problem
from titanrun.config.registry import load_choices, validate_choice
from titanrun.recipe.editing.component_meanings import NAME_MEANINGS, format_section_meaning
from titanrun.recipe.reference.finetuning_template import KINDS
from titanrun.recipe.reference.shipped_recipes import get_shipped_recipe
from titanrun.recipe.resolving.validation_levels import validate_file
from titanrun.rl.algorithms.config import AlgorithmConfig

RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny, steps: 4}
"""
SLOTS = {
    "algorithm": AlgorithmConfig,
    "converters": ConverterConfig,
    "dataset": DatasetConfig,
    "loss": LossConfig,
    "lr_scheduler": LRSchedulerConfig,
    "optimizer": OptimizerConfig,
}
MAPPING = re.compile(r"\{[^}]*\}")
NAMES = [(slot, name) for slot, meanings in NAME_MEANINGS.items() for name in meanings]


def problems_of(folder: Path, text: str) -> list[Problem]:
    file = folder / "mine.yaml"
    file.write_text(text)
    return list(validate_file(str(file), [], level="rules", environment={}).problems)


@pytest.mark.parametrize(("slot", "name"), NAMES)
def test_a_name_of_another_tool_is_told_valid_settings(
    slot: str, name: str, tmp_path: Path
) -> None:
    hint = NAME_MEANINGS[slot][name]
    assert name not in load_choices(SLOTS[slot])
    for written in MAPPING.findall(hint):
        validate_choice(SLOTS[slot], yaml.safe_load(written))
    text = RECIPE.replace("dataset: tiny", f'dataset: {{name: "{name}"}}')
    if slot != "dataset":
        text = f'{RECIPE}{slot}: {{name: "{name}"}}\n'
    if slot == "algorithm":
        text = f"{RECIPE}rl: {{algorithm: {name}}}\n"
    if slot == "converters":
        text = f'{RECIPE}converters: ["{name}"]\n'
    (found,) = [one for one in problems_of(tmp_path, text) if one.code == "unknown-name"]
    assert found.hint == hint
    assert (found.fix is not None) == bool(re.fullmatch(r"write \{name: \w+\}", hint))


@pytest.mark.parametrize(
    ("entry", "converter"),
    [
        ("lora: {r: 8, lora_alpha: 16}", {"name": "lora", "rank": 8, "alpha": 16}),
        ("peft: {r: 8, bias: none}", {"name": "lora", "rank": 8}),
        ("adapter: lora", {"name": "lora", "rank": 8, "alpha": 16}),
        ("adapter: qlora", {"name": "qlora", "rank": 8, "alpha": 16}),
        ("load_in_4bit: true", {"name": "qlora", "rank": 8, "alpha": 16}),
        ("lora_r: 32", {"name": "lora", "rank": 32}),
        ("lora_dropout: 0.1", {"name": "lora", "dropout": 0.1}),
        ("dora: {r: 4}", {"name": "lora", "rank": 4, "alpha": 16, "magnitude": True}),
    ],
)
def test_a_section_of_adapters_is_told_the_converter(
    entry: str, converter: dict[str, object], tmp_path: Path
) -> None:
    (found,) = problems_of(tmp_path, RECIPE + entry + "\n")
    hint = found.hint or ""
    assert hint.startswith("adapters are a converter: write converters: [")
    assert yaml.safe_load(hint.rpartition("converters: ")[2]) == [converter]
    validate_choice(ConverterConfig, converter)


NATIVE_MODULES = [
    ("peft: {r: 8, target_modules: [q_proj, v_proj]}", ["wq", "wv"]),
    ("lora: {target_modules: 'q_proj, o_proj'}", ["wq", "wo"]),
    ("lora_target: 'gate_proj,up_proj'", ["w1", "w3"]),
    ("lora_target_modules: down_proj", ["w2"]),
    ("optimizer: {lora_target_modules: [k_proj]}", ["wk"]),
    ("lora: {target_modules: all-linear}", None),
]


@pytest.mark.parametrize(("entry", "modules"), NATIVE_MODULES)
def test_modules_of_transformers_are_told_by_the_names_of_the_family(
    entry: str, modules: list[str] | None, tmp_path: Path
) -> None:
    (found,) = problems_of(tmp_path, RECIPE + entry + "\n")
    written = (found.hint or "").partition("write ")[2]
    (converter,) = yaml.safe_load(written)["converters"]
    assert converter.get("target_modules") == modules
    assert problems_of(tmp_path, f"{RECIPE}{written}\n") == []


def test_modules_of_a_model_of_transformers_keep_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    text = RECIPE.replace("llama3, flavor: debugmodel", f"transformers, hf_assets_path: {folder}")
    found = problems_of(tmp_path, text + "peft: {target_modules: [q_proj]}\n")
    hints = [one.hint or "" for one in found if one.path == ("peft",)]
    assert hints == [
        "adapters are a converter: write converters: [{name: lora, target_modules: [q_proj]}]"
    ]


def test_dropout_beside_magnitude_is_left_out(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, RECIPE + "lora: {r: 4, lora_dropout: 0.1, use_dora: true}\n")
    written = (found.hint or "").partition("write ")[2].partition(";")[0]
    assert written == "converters: [{name: lora, rank: 4, magnitude: true}]"
    assert problems_of(tmp_path, f"{RECIPE}{written}\n") == []


def test_keys_of_adapters_within_the_converter_are_corrected(tmp_path: Path) -> None:
    text = RECIPE + "converters: [{name: lora, r: 8, lora_alpha: 16, use_dora: true}]\n"
    found = problems_of(tmp_path, text)
    assert [one.suggestion for one in found] == ["rank", "alpha", "magnitude"]
    assert all(one.fix is not None for one in found)


def test_short_names_of_adapter_options_are_corrected(tmp_path: Path) -> None:
    text = RECIPE + "converters: [{name: lora, dora: true, rslora: true}]\n"
    found = problems_of(tmp_path, text)
    assert [one.suggestion for one in found] == ["magnitude", "rank_stabilized"]
    assert all(one.fix is not None for one in found)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("int4", "nf4"), ("4bit", "nf4"), ("4", "nf4"), ("8bit", "int8"), ("8", "int8")],
)
def test_a_number_of_bits_is_told_its_format(written: str, meant: str, tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{RECIPE}converters: [{{name: qlora, base: {written}}}]\n")
    assert (found.hint or "").endswith(f"write base: {meant}")
    assert found.suggestion is None


GPU = "write gpu, which is the accelerator that torch finds"
DEVICES = [
    *((name, GPU) for name in ("cuda", "CUDA", "hip", "rocm", "xpu", "mps", "npu", "gpus")),
    ("cuda:1", f"{GPU}; CUDA_VISIBLE_DEVICES=1 chooses by number"),
    ("0", f"{GPU}; CUDA_VISIBLE_DEVICES=0 chooses by number"),
    ("'0,1'", f"{GPU}; CUDA_VISIBLE_DEVICES=0,1 chooses by number"),
    ("[0, 1]", f"{GPU}; CUDA_VISIBLE_DEVICES=0,1 chooses by number"),
    ("true", "write gpu"),
    ("tpu", "write gpu or cpu: titanrun does not train on TPUs"),
]


@pytest.mark.parametrize(("written", "hint"), DEVICES)
def test_a_device_of_pytorch_is_told_the_one_here(written: str, hint: str, tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{RECIPE}device: {written}\n")
    assert found.hint == hint


def test_a_length_of_axolotl_has_no_second_problem(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, RECIPE.replace("steps", "sequence_len: 64, steps"))
    assert (found.suggestion, found.fix is not None) == ("seq_len", True)


def test_unknown_sections_have_no_meaning() -> None:
    assert format_section_meaning("deepspeed", {"deepspeed": {}}) == ""


def test_other_kinds_of_init_name_recipes_and_kinds_that_exist() -> None:
    for hint in OTHER_KINDS.values():
        for recipe in re.findall(r"titanrun cp (\S+)", hint):
            get_shipped_recipe(recipe)
        for kind in re.findall(r"--kind (\w+)", hint):
            assert kind in KINDS
    assert not OTHER_KINDS.keys() & KINDS.keys()
