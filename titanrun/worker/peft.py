"""Adapters as the `peft` package reads and writes them: adapter_config.json beside adapter_model.safetensors.

Shapes: I and O width before and after a linear module, R rank of its adapter: lora_A is [R, I] and lora_B [O, R], as in titanrun.
"""

import json
import re
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
from titanrun.config.problems import ProblemsFound, fail
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.family import family_module
from titanrun.models.shared.huggingface_weights import huggingface_name
from titanrun.worker.peft_experts import Parameter, joined, keys, parameters_of, parted

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BEFORE = "base_model.model."
PARTS = {A: ".lora_A.weight", B: ".lora_B.weight"}
WEIGHT = ".weight"
# peft holds linear modules of these names for experts of transformers 4, in models with experts, but not where it is told the parameter
TAKEN_FOR_EXPERTS = (".gate_proj", ".up_proj", ".down_proj")
OTHER_MODULES = "let target_modules name the modules of that adapter"
OTHER_SCALE = "rank and alpha of the recipe must be those of the adapter"
# settings of peft that make other mathematics than LoRA's
ONLY: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
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
        return (
            matrix
            if turn is None
            else turn(matrix, self.module.heads_of(self.model, name + WEIGHT))
        )


def family_of(model: ModelConfig) -> Family:
    """The names of a model's family. Raises a problem where it has none."""
    module = family_module(type(model), "huggingface")
    if not hasattr(module, "LAYER_NAMES"):
        raise fail(
            "not-built",
            f"model family {model.name} does not say what transformers calls its modules",
            path=("model", "name"),
        )
    return Family(model, module)


def write_adapters(
    folder: Path, adapters: Mapping[str, Tensor], config: AdapterConfig, model: ModelConfig
) -> None:
    """Write a folder that PeftModel.from_pretrained opens; it is there whole or not at all.

    Args:
        folder: where; must not exist.
        adapters: `<module>.lora_a` and `<module>.lora_b` of every adapted module, `<stack>_lora_a` and `<stack>_lora_b` of experts.
        config: how they were made.
        model: whose modules they are.
    """
    family, stacks, modules = family_of(model), adapted_stacks(adapters), adapted_modules(adapters)
    refuse_experts(stacks, family)
    tensors = {}
    for name in modules:
        theirs = BEFORE + family.theirs(name)
        tensors[theirs + PARTS[A]] = adapters[name + A].contiguous()
        tensors[theirs + PARTS[B]] = family.rows(name, adapters[name + B], back=False).contiguous()
    parameters = parameters_of(family.module, stacks)
    places = keys(parameter.name for parameter in parameters)
    for parameter in parameters:
        theirs = BEFORE + places[parameter.name]
        tensors[theirs + PARTS[A]], tensors[theirs + PARTS[B]] = joined(
            parameter, adapters, model.parameter_shapes()
        )
    about = peft_config(config, [family.theirs(name) for name in modules], parameters, model)
    with written_whole(folder) as temporary:
        (temporary / CONFIG_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        safetensors.torch.save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})


def refuse_experts(stacks: Sequence[str], family: Family) -> None:
    """Raises a problem where transformers has no such experts, or peft no adapters for them."""
    if stacks and family.model.export_problems():
        raise ProblemsFound(family.model.export_problems())
    shapes, least = (
        family.model.parameter_shapes(),
        getattr(family.module, "PEFT_EXPERTS_AT_LEAST", 1),
    )
    if any(shapes[name][0] < least for name in stacks):
        message = f"peft adds the adapter of a single expert of {family.model.name} turned, as that of {stacks[0]}"
        raise fail(
            "usage",
            message,
            help="give --merge, or keep titanrun's own checkpoint: initial_load_path takes it",
        )


def peft_config(
    config: AdapterConfig, modules: list[str], parameters: list[Parameter], model: ModelConfig
) -> dict[str, Any]:
    """The content of adapter_config.json."""
    mistaken = [
        name
        for name in modules
        if getattr(model, "moe", None) is not None and name.endswith(TAKEN_FOR_EXPERTS)
    ]
    targeted = [parameter.name for parameter in parameters] + [name + WEIGHT for name in mistaken]
    joint = {
        parameter.name: len(parameter.adapted)
        for parameter in parameters
        if len(parameter.adapted) > 1
    }
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.hf_assets_path,
        "r": config.rank,
        "lora_alpha": config.alpha,
        # peft refuses any beside parameters
        "lora_dropout": 0.0 if targeted else config.dropout,
        "target_modules": [name for name in modules if name not in mistaken],
        "target_parameters": targeted or None,
        "rank_pattern": {name: count * config.rank for name, count in joint.items()},
        "alpha_pattern": {name: count * config.alpha for name, count in joint.items()},
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def read_adapters(
    folder: Place, config: AdapterConfig, model: ModelConfig, taken: Iterable[str]
) -> dict[str, Tensor]:
    """The adapters of a folder that peft wrote, for exactly these modules and stacks of experts. Raises a problem for any others."""
    about = settings_of(folder, config)
    try:
        with (
            local_copy(folder / WEIGHTS_FILE) as copy,
            safetensors.safe_open(copy, framework="pt", device="cpu") as file,
        ):
            given = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise fail(
            "checkpoint",
            f"cannot read {folder / WEIGHTS_FILE}: {error}",
            help="name a folder that peft saved",
        ) from error
    family, adapters, shapes = family_of(model), {}, model.parameter_shapes()
    taken = list(taken)
    for name in taken:
        if name not in shapes:
            theirs = family.theirs(name)
            check_scale(folder, about, theirs, config, ranks=(1,))
            a_RI, b_OR = parts_of(folder, given, theirs, said=f"{theirs}, which is {name} here")
            adapters |= {name + A: a_RI, name + B: family.rows(name, b_OR, back=True)}
    parameters = parameters_of(family.module, [name for name in taken if name in shapes])
    places = keys(wrapped(about, family, parameters))
    for parameter in parameters:
        said = f"{parameter.name}, which is {' and '.join(parameter.adapted)} here"
        check_scale(folder, about, parameter.name, config, ranks=(1, len(parameter.adapted)))
        lora_a, lora_b = parts_of(folder, given, places.get(parameter.name, ""), said=said)
        adapters |= parted(parameter, lora_a, lora_b, shapes, config.rank)
    if given:
        message = f"{folder} also adapts {sorted(given)[0].removeprefix(BEFORE)}"
        raise fail("checkpoint", message, path=("converters",), help=OTHER_MODULES)
    return adapters


def parts_of(
    folder: Place, given: dict[str, Tensor], place: str, *, said: str
) -> tuple[Tensor, Tensor]:
    """Takes the two matrices of one adapter out of those given. Raises a problem, with what is `said` of it, where they are not there."""
    names = [BEFORE + place + ending for ending in PARTS.values()]
    if any(name not in given for name in names):
        raise fail(
            "checkpoint",
            f"{folder} has no adapter for {said}",
            path=("converters",),
            help=OTHER_MODULES,
        )
    return given.pop(names[0]), given.pop(names[1])


def wrapped(about: Mapping[str, Any], family: Family, parameters: Sequence[Parameter]) -> list[str]:
    """The parameters that the folder's adapters are of, among those of the experts that hold these, in transformers' order."""
    targets, names = about.get("target_parameters") or [], []
    for holder in dict.fromkeys(parameter.holder for parameter in parameters):
        every = [f"{holder}.{name.rpartition('.')[2]}" for name in family.module.EXPERT_PARAMETERS]
        names += [
            name for name in every if any(f".{name}".endswith(f".{target}") for target in targets)
        ]
    return names


def settings_of(folder: Place, config: AdapterConfig) -> dict[str, Any]:
    """The folder's adapter_config.json. Raises a problem where its settings are not those of the recipe."""
    try:
        about: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fail(
            "checkpoint",
            f"cannot read {folder / CONFIG_FILE}: {error}",
            help="name a folder that peft saved",
        ) from error
    forms = {"rank_pattern": dict, "alpha_pattern": dict, "target_parameters": list}
    if not isinstance(about, dict) or any(
        not isinstance(about.get(key) or form(), form) for key, form in forms.items()
    ):
        raise fail(
            "checkpoint",
            f"{folder / CONFIG_FILE} has another form than peft gives it",
            help="name a folder that peft saved",
        )
    wanted = {**ONLY, "r": (config.rank,), "lora_alpha": (config.alpha,)}
    for key, values in wanted.items():
        if about.get(key, values[0]) not in values:
            message = f"{folder / CONFIG_FILE} says {key}: {json.dumps(about[key])}, and the run's adapters have {json.dumps(values[0])}"
            raise fail("checkpoint", message, path=("converters",), help=OTHER_SCALE)
    return about


def check_scale(
    folder: Place,
    about: Mapping[str, Any],
    name: str,
    config: AdapterConfig,
    *,
    ranks: Sequence[int],
) -> None:
    """Raises a problem where the patterns give a module another rank than one of so many times the run's, or another scale."""
    rank = said_of(about.get("rank_pattern") or {}, name, config.rank)
    alpha = said_of(about.get("alpha_pattern") or {}, name, config.alpha)
    if (rank, alpha) not in [(count * config.rank, count * config.alpha) for count in ranks]:
        message = f"{folder / CONFIG_FILE} says rank {rank} and alpha {alpha} of {name}"
        message += f", and the run's adapters have {config.rank} and {config.alpha}"
        raise fail("checkpoint", message, path=("converters",), help=OTHER_SCALE)


def said_of(pattern: Mapping[str, Any], name: str, other: float) -> Any:
    """What peft takes from rank_pattern or alpha_pattern for a module: of the first key that is the end of its name, as an expression."""
    try:
        return next(
            (value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", name)), other
        )
    except re.error as error:
        raise fail(
            "checkpoint",
            f"rank_pattern or alpha_pattern of the adapter: {error}",
            help="name a folder that peft saved",
        ) from error
