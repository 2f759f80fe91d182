"""What models and adapters of axolotl become."""

import re
from pathlib import Path
from typing import Any

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.migrate.keys import Converted, Key, Values
from titanrun.recipe.of_huggingface import family_of, is_huggingface

OWN_NAMES = {
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "lm_head": "output",
}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DOWNLOAD = "weights come from a folder: titanrun download {} -o {}"
BY_CONFIG = "the sizes are read from config.json in that folder"
ITS_CLASS = "trained as the class of the transformers package computes it"
FLAVORS = (
    (re.compile(r"llama-?3\.[13]-(8|70|405)b", re.IGNORECASE), "llama3"),
    (re.compile(r"qwen3-(0\.6|1\.7|4|8|14|32)b", re.IGNORECASE), "qwen3"),
)
OWN_FAMILIES = ("llama3", "qwen3", "gpt_oss", "deepseek_v3", "llama4")


def folder_of(values: Values) -> str:
    """The folder of the weights: the one that is named, or a place for what the Hub has."""
    name = str(values.get("base_model") or "")
    if name.startswith((".", "/", "~")) or Path(name).is_dir() or name.count("/") != 1:
        return name
    return f"assets/{name.rpartition('/')[2]}"


def family_of_folder(folder: Path) -> str:
    """The family of a model that is there; empty where none is."""
    if not is_huggingface(folder):
        return ""
    try:
        return family_of(folder)
    except ProblemsFound:
        return "transformers"


def family(values: Values) -> tuple[str, str]:
    """The family, and its flavor: from the folder where it is there, else from the name on the Hub."""
    folder = folder_of(values)
    found = family_of_folder(Path(folder))
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


def is_own(values: Values) -> bool:
    """Whether one of titanrun's families with masks between conversations trains the model."""
    return family(values)[0] in OWN_FAMILIES


def model(_: Key, value: Any, values: Values) -> Converted:
    """The family of config.json, or of the name on the Hub; what titanrun has no family for is transformers."""
    if not isinstance(value, str) or not value:
        return Converted({}, refused="no name of a model")
    name, flavor = family(values)
    folder = folder_of(values)
    targets = {
        "model.name": name,
        **({"model.flavor": flavor} if flavor else {}),
        "model.hf_assets_path": folder,
    }
    start = {"checkpoint.enable": True, "checkpoint.initial_load_in_hf": True}
    start |= {} if adapter_of(values) else {"checkpoint.last_save_in_hf": True}
    how = [] if folder == value else [DOWNLOAD.format(value, folder)]
    how += [BY_CONFIG] if flavor == "auto" else [ITS_CLASS] if name == "transformers" else []
    return Converted({**targets, **start}, how="; ".join(how))


def adapter_of(values: Values) -> str:
    """lora, qlora, or empty; a base in 4 or 8 bits makes lora qlora."""
    name = values.get("adapter")
    if name == "lora" and (values.get("load_in_8bit") or values.get("load_in_4bit")):
        return "qlora"
    return str(name) if name in ("lora", "qlora") else ""


def adapter(_: Key, value: Any, values: Values) -> Converted:
    """lora, or qlora; lora on a base in 8 or 4 bits is qlora."""
    if value in (None, ""):
        return Converted({})
    name = adapter_of(values)
    if not name:
        return Converted({}, refused="adapters are lora or qlora")
    packed = {"checkpoint.adapters_only": True}
    if name == "lora":
        return Converted({"converters[lora].name": "lora", **packed})
    eight = values.get("adapter") == "lora" and values.get("load_in_8bit")
    how = (
        "whole numbers with a scale for 64 of them; in axolotl those of LLM.int8()" if eight else ""
    )
    return Converted(
        {
            "converters[qlora].name": "qlora",
            "converters[qlora].base": "int8" if eight else "nf4",
            **packed,
        },
        how=how,
    )


def packed_base(key: Key, value: Any, values: Values) -> Converted:
    """The base of qlora says it; without adapters it is refused."""
    return Converted(
        {},
        refused=""
        if not value or adapter_of(values)
        else "only the base of adapters is kept in few bits",
    )


def of_adapter(field: str, otherwise: Any = None) -> Any:
    """A conversion to a field of the adapter; `otherwise` is axolotl's default."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A field of the converter lora or qlora."""
        name = adapter_of(values)
        meant = otherwise if value is None else value
        return (
            Converted({f"converters[{name}].{field}": meant})
            if name and meant is not None
            else Converted({})
        )

    return convert


def targets(_: Key, value: Any, values: Values) -> Converted:
    """The modules that get adapters, in the family's names; lora_target_linear is all linear modules of a block."""
    name = adapter_of(values)
    listed = values.get("lora_target_modules")
    if not name or not value:
        return Converted({})
    modules = [
        *(LINEAR if values.get("lora_target_linear") else ()),
        *(listed if isinstance(listed, list) else [listed] if listed else []),
    ]
    if any(not isinstance(module, str) or not module.isidentifier() for module in modules):
        return Converted({}, refused="name the modules: patterns of PEFT are not read")
    names = [OWN_NAMES.get(module, module) for module in modules] if is_own(values) else modules
    return Converted({f"converters[{name}].target_modules": list(dict.fromkeys(names))})
