"""Adapters as the `peft` package reads and writes them: adapter_config.json beside adapter_model.safetensors.

Shapes: I and O width before and after a linear module, R rank of its adapter: lora_A is [R, I] and lora_B [O, R], as in titanrun.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.adapters import A, B, adapted_modules, adapted_stacks
from titanrun.components.checkpoints.addresses import Place, local_copy
from titanrun.components.checkpoints.whole_folder import written_whole
from titanrun.components.converters.config import AdapterConfig
from titanrun.config.problems import fail
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.family import family_module
from titanrun.models.shared.huggingface_weights import huggingface_name

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BEFORE = "base_model.model."
PARTS = {A: ".lora_A.weight", B: ".lora_B.weight"}
WEIGHT = ".weight"
# settings of peft that make other mathematics than LoRA's
ONLY: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
}


@dataclass(frozen=True, slots=True)
class Family:
    """How transformers calls the linear modules of a model, and orders what they give."""

    model: ModelConfig
    module: ModuleType

    def theirs(self, name: str) -> str:
        """The name that transformers gives the linear module `name`."""
        return huggingface_name(name + WEIGHT, self.module.LAYER_NAMES).removesuffix(WEIGHT)

    def rows(self, name: str, matrix: Tensor, *, back: bool) -> Tensor:
        """The rows of a matrix that makes what the module gives in transformers' order, or `back` in titanrun's."""
        turn = getattr(self.module, "halves_to_pairs" if back else "pairs_to_halves", None)
        return matrix if turn is None else turn(matrix, self.module.heads_of(self.model, name + WEIGHT))


def family_of(model: ModelConfig) -> Family:
    """The names of a model's family. Raises a problem where it has none."""
    module = family_module(type(model), "huggingface")
    if not hasattr(module, "LAYER_NAMES"):
        raise fail("not-built", f"model family {model.name} does not say what transformers calls its modules", path=("model", "name"))
    return Family(model, module)


def write_adapters(folder: Path, adapters: Mapping[str, Tensor], config: AdapterConfig, model: ModelConfig) -> None:
    """Write a folder that PeftModel.from_pretrained opens; it is there whole or not at all.

    Args:
        folder: where; must not exist.
        adapters: `<module>.lora_a` and `<module>.lora_b` of every adapted module.
        config: how they were made.
        model: whose modules they are.
    """
    refuse_stacks(adapted_stacks(adapters))
    refuse_stacks(adapted_stacks(adapters))
    family = family_of(model)
    modules = adapted_modules(adapters)
    tensors = {}
    for name in modules:
        theirs = BEFORE + family.theirs(name)
        tensors[theirs + PARTS[A]] = adapters[name + A].contiguous()
        tensors[theirs + PARTS[B]] = family.rows(name, adapters[name + B], back=False).contiguous()
    about = peft_config(config, [family.theirs(name) for name in modules], model)
    with written_whole(folder) as temporary:
        (temporary / CONFIG_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        safetensors.torch.save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})


def refuse_stacks(stacks: Sequence[str]) -> None:
    """Raises a problem where stacked experts have adapters: peft has one for gates and values together, titanrun one for each."""
    if stacks:
        message = f"peft has no form for these adapters of stacked experts, as those of {stacks[0]}"
        raise fail("usage", message, help="give --merge, or keep titanrun's own checkpoint: initial_load_path takes it")


def peft_config(config: AdapterConfig, modules: list[str], model: ModelConfig) -> dict[str, Any]:
    """The content of adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.hf_assets_path,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def read_adapters(folder: Place, config: AdapterConfig, model: ModelConfig, modules: Iterable[str]) -> dict[str, Tensor]:
    """The adapters of a folder that peft wrote, for exactly these modules of the model. Raises a problem for any others."""
    refuse_others(folder, config)
    try:
        with local_copy(folder / WEIGHTS_FILE) as copy, safetensors.safe_open(copy, framework="pt", device="cpu") as file:
            given = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise fail("checkpoint", f"cannot read {folder / WEIGHTS_FILE}: {error}", help="name a folder that peft saved") from error
    family, adapters = family_of(model), {}
    for name in modules:
        theirs = BEFORE + family.theirs(name)
        for part, ending in PARTS.items():
            if theirs + ending not in given:
                message = f"{folder} has no adapter for {theirs.removeprefix(BEFORE)}, which is {name} here"
                raise fail("checkpoint", message, path=("converters",), help="let target_modules name the modules of that adapter")
            matrix = given.pop(theirs + ending)
            adapters[name + part] = matrix if part == A else family.rows(name, matrix, back=True)
    if given:
        message = f"{folder} also adapts {sorted(given)[0].removeprefix(BEFORE)}"
        raise fail("checkpoint", message, path=("converters",), help="let target_modules name the modules of that adapter")
    return adapters


def refuse_others(folder: Place, config: AdapterConfig) -> None:
    """Raises a problem where the folder's settings are not those of the recipe."""
    try:
        about = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fail("checkpoint", f"cannot read {folder / CONFIG_FILE}: {error}", help="name a folder that peft saved") from error
    wanted = {**ONLY, "r": (config.rank,), "lora_alpha": (config.alpha,)}
    for key, values in wanted.items():
        if about.get(key, values[0]) not in values:
            message = f"{folder / CONFIG_FILE} says {key}: {json.dumps(about[key])}, and the run's adapters have {json.dumps(values[0])}"
            raise fail("checkpoint", message, path=("converters",), help="rank and alpha of the recipe must be those of the adapter")
