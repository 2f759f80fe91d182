"""Conversion of axolotl's models and adapters."""

import re
from pathlib import Path
from typing import Any

from titanrun.components.converters.spec.module_names import translate_module_names
from titanrun.config.problems import ProblemsFound
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.recipe.migrate.key_mapping import (
    NO_DORA_DROPOUT,
    ConvertedValue,
    SourceKey,
    SourceValues,
    is_hub_name,
)
from titanrun.recipe.resolving.hub_models import HUB_PREFIX
from titanrun.recipe.resolving.recipe_from_hf import get_model_family

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BY_CONFIG = "the sizes are read from its config.json"
ITS_CLASS = "trained with the model class of transformers"
FLAVORS = (
    (re.compile(r"llama-?3\.[13]-(8|70|405)b", re.IGNORECASE), "llama3"),
    (re.compile(r"qwen3-(0\.6|1\.7|4|8|14|32)b", re.IGNORECASE), "qwen3"),
)
KERNEL_PLUGINS = ("LigerPlugin", "CutCrossEntropyPlugin")
OTHER_PLUGINS = "recipes import nothing: an installed plug-in, listed in plugins, adds components"
NATIVE_FAMILIES = ("llama3", "qwen3", "gpt_oss", "deepseek_v3", "llama4")


def get_weights_folder(values: SourceValues) -> str:
    """Return where the weights are: the folder named, or `hub:` and the name on the Hub."""
    name = str(values.get("base_model") or "")
    revision = values.get("revision_of_model")
    version = f"@{revision}" if revision else ""
    return f"{HUB_PREFIX}{name}{version}" if is_hub_name(name) else name


def detect_folder_family(folder: Path) -> str:
    """Return the family of the model in a folder; empty if there is none."""
    if not is_huggingface_folder(folder):
        return ""
    try:
        return get_model_family(folder)
    except ProblemsFound:
        return "transformers"


def detect_family_and_flavor(values: SourceValues) -> tuple[str, str]:
    """Return family and flavor: from the folder if it exists, else from the Hub name."""
    folder = get_weights_folder(values)
    found = detect_folder_family(Path(folder))
    if found:
        return found, "" if found == "transformers" else "auto"
    name = str(values.get("base_model") or "").rpartition("/")[2]
    for pattern, known in FLAVORS:
        match = pattern.search(name)
        if match:
            return known, f"{match[1]}B"
    if re.search(r"llama-?3(\.[0-3])?-\d+b", name, re.IGNORECASE):
        return "llama3", "auto"
    return "transformers", ""


def convert_plugins(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Leave out plug-ins that only bring kernels; refuse others, which change what is trained."""
    names = value if isinstance(value, list) else [value]
    if not value or all(str(name).rpartition(".")[2] in KERNEL_PLUGINS for name in names):
        return ConvertedValue({}, how="left out: each model family chooses its kernels")
    return ConvertedValue({}, refused=OTHER_PLUGINS)


def is_native_family(values: SourceValues) -> bool:
    """Return whether titanrun's own model masks attention between conversations."""
    return detect_family_and_flavor(values)[0] in NATIVE_FAMILIES


def convert_axolotl_model(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Derive the family from config.json or the Hub name; use transformers for others."""
    if not isinstance(value, str) or not value:
        return ConvertedValue({}, refused="not the name of a model")
    name, flavor = detect_family_and_flavor(values)
    folder = get_weights_folder(values)
    targets = {
        "model.name": name,
        **({"model.flavor": flavor} if flavor else {}),
        "model.hf_assets_path": folder,
    }
    start = {"checkpoint.enable": True, "checkpoint.initial_load_in_hf": True}
    start |= {} if get_axolotl_adapter(values) else {"checkpoint.last_save_in_hf": True}
    return ConvertedValue({**targets, **start}, how=describe_family(name, flavor))


def convert_model_revision(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the revision of a model on the Hub in its name; a folder has none."""
    if value is None:
        return ConvertedValue({})
    folder = get_weights_folder(values)
    if not folder.startswith(HUB_PREFIX):
        return ConvertedValue({}, how="left out: a folder has no revisions")
    return ConvertedValue({"model.hf_assets_path": folder})


def describe_family(name: str, flavor: str) -> str:
    """Return what a family that the name of the model does not tell means."""
    return BY_CONFIG if flavor == "auto" else ITS_CLASS if name == "transformers" else ""


def get_axolotl_adapter(values: SourceValues) -> str:
    """Return lora, qlora, or an empty text; lora on a base in 4 or 8 bits is qlora."""
    name = values.get("adapter")
    if name == "lora" and (values.get("load_in_8bit") or values.get("load_in_4bit")):
        return "qlora"
    return str(name) if name in ("lora", "qlora") else ""


def convert_axolotl_adapter(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep lora or qlora; map lora on a base in 8 or 4 bits to qlora."""
    if value in (None, ""):
        return ConvertedValue({})
    name = get_axolotl_adapter(values)
    if not name:
        return ConvertedValue({}, refused="supported adapters: lora and qlora")
    packed = {"checkpoint.adapters_only": True}
    if name == "lora":
        return ConvertedValue({"converters[lora].name": "lora", **packed})
    eight = values.get("adapter") == "lora" and values.get("load_in_8bit")
    how = "int8 with one scale per 64 values; axolotl uses LLM.int8()" if eight else ""
    return ConvertedValue(
        {
            "converters[qlora].name": "qlora",
            "converters[qlora].base": "int8" if eight else "nf4",
            **packed,
        },
        how=how,
    )


def convert_quantized_base(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Drop it, since the base of qlora sets it; refuse it without adapters."""
    return ConvertedValue(
        {},
        refused=""
        if not value or get_axolotl_adapter(values)
        else "only the base of adapters can be quantized",
    )


def make_axolotl_adapter_conversion(field: str, otherwise: Any = None) -> Any:
    """Return a conversion to a field of the adapter; `otherwise` is axolotl's default."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the converter lora or qlora."""
        name = get_axolotl_adapter(values)
        meant = otherwise if value is None else value
        if name and field == "dropout" and meant and values.get("peft_use_dora"):
            return ConvertedValue({}, refused=NO_DORA_DROPOUT)
        return (
            ConvertedValue({f"converters[{name}].{field}": meant})
            if name and meant is not None
            else ConvertedValue({})
        )

    return convert


def convert_axolotl_target_modules(
    _: SourceKey, value: Any, values: SourceValues
) -> ConvertedValue:
    """Set the modules with adapters, in the family's names.

    lora_target_linear stands for all linear modules of a block.
    """
    name = get_axolotl_adapter(values)
    listed = values.get("lora_target_modules")
    if not name or not value:
        return ConvertedValue({})
    modules = [
        *(LINEAR if values.get("lora_target_linear") else ()),
        *(listed if isinstance(listed, list) else [listed] if listed else []),
    ]
    if any(not isinstance(module, str) or not module.isidentifier() for module in modules):
        return ConvertedValue({}, refused="name the modules: patterns of PEFT are not supported")
    names = translate_module_names(modules) if is_native_family(values) else modules
    return ConvertedValue({f"converters[{name}].target_modules": list(dict.fromkeys(names))})
