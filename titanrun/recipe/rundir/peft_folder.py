"""Adapters in the layout of peft that a recipe or a command names in place of a model."""

import shlex
from pathlib import Path
from typing import Any

from titanrun.components.converters.spec.module_names import translate_module_names
from titanrun.config.json_text import parse_json
from titanrun.config.problems import DataPath, Problem, ProblemCode
from titanrun.config.serialize import to_flow_yaml
from titanrun.models.shared.huggingface_config import find_named_repository

PEFT_CONFIG = "adapter_config.json"
LORA = "LORA"
STARTS_THERE = ("checkpoint.initial_load_path=null", "checkpoint.initial_load_in_hf=true")
"""Overrides by which any recipe starts from the weights of model.hf_assets_path."""
ALL_LINEAR = {"wq", "wk", "wv", "wo", "w1", "w2", "w3"}
"""Modules of a decoder that have adapters where target_modules is not written."""


def has_only_adapters(folder: Path) -> bool:
    """Return whether a folder has adapters in the layout of peft, and no model beside them."""
    return (folder / PEFT_CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def build_lone_adapters_problem(named: Path, code: ProblemCode, path: DataPath = ()) -> Problem:
    """Build the problem of a folder of adapters in the layout of peft, without their model.

    Args:
        named: the folder.
        code: code of the problem.
        path: the setting that names the folder, empty for a command.
    """
    settings = read_settings(named)
    base = settings.get("base_model_name_or_path")
    model = find_model_name(base) if isinstance(base, str) and base else None
    whose = "" if model is None else f", '{base}'"
    message = f"'{named}' holds adapters without the model that they belong to{whose}"
    kind = settings.get("peft_type", LORA)
    if kind != LORA:
        hint = f"titanrun reads {LORA}, not {kind}: merge them in peft with merge_and_unload"
        return Problem(code, message, path, hint=f"{hint}, save that and name its folder")
    words = ["titanrun", "checkpoint", "import", str(named), "RECIPE" if path else "mine.yaml"]
    start = model or "MODEL"
    starts = (f"model.hf_assets_path={start}", *STARTS_THERE) if path else ()
    same = build_converter_overrides(settings)
    importing = shlex.join([*words, "out", "--from", "peft", *starts, *same])
    prepare = f"titanrun init --kind lora --model {shlex.quote(start)} --data FILE -o mine.yaml"
    hint = f"{importing} ends with the command that trains"
    return Problem(code, message, path, hint=hint if path else f"{prepare}; then {hint}")


def read_settings(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json, empty if it cannot be read: importing it says why."""
    try:
        read = parse_json((folder / PEFT_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def find_model_name(base: str) -> str:
    """Return how a recipe names the model of an adapter: a folder, or hub:OWNER/NAME."""
    repository = find_named_repository(base)
    return base if repository is None or Path(base).is_dir() else f"hub:{repository}"


def build_converter_overrides(settings: dict[str, Any]) -> list[str]:
    """Return the override with the converter of the same adapters, none if their rank is unknown.

    Modules have the names of titanrun's families.
    """
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float):
        return []
    converter = {"name": "lora", "rank": rank, "alpha": alpha}
    if settings.get("use_rslora"):
        converter["rank_stabilized"] = True
    if settings.get("use_dora"):
        converter["magnitude"] = True
    named = settings.get("target_modules")
    last = {str(one).rpartition(".")[2] for one in named} if isinstance(named, list) else set()
    modules = sorted(translate_module_names(last))
    if modules and set(modules) != ALL_LINEAR:
        converter["target_modules"] = modules
    return [f"converters={to_flow_yaml([converter])}"]
