"""Adapters in the format of the `peft` package.

A folder holds adapter_config.json and adapter_model.safetensors.

Shapes: I and O input and output size of a linear module, R rank of its adapter: lora_A is [R, I]
and lora_B [O, R], as in titanrun.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import (
    LORA_A_SUFFIX,
    LORA_B_SUFFIX,
    MAGNITUDE_SUFFIX,
    list_adapted_expert_weights,
    list_adapted_modules,
)
from titanrun.components.checkpoints.spec.atomic_folder import atomic_folder
from titanrun.components.checkpoints.spec.storage_path import AnyPath, local_copy
from titanrun.components.converters.config import AdapterConfig
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.huggingface_weights import to_huggingface_name
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.resolving.hub_models import find_repository
from titanrun.worker.weights.peft_experts import (
    ExpertParameter,
    find_expert_parameters,
    get_adapter_locations,
    join_adapters,
    split_adapter,
)
from titanrun.worker.weights.peft_settings import (
    CONFIG_FILE,
    check_adapter_scale,
    compute_joint_alpha,
    load_peft_settings,
)

WEIGHTS_FILE = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
ADAPTER_SUFFIXES = {LORA_A_SUFFIX: ".lora_A.weight", LORA_B_SUFFIX: ".lora_B.weight"}
PEFT_MAGNITUDE_SUFFIX = ".lora_magnitude_vector"
WEIGHT_SUFFIX = ".weight"
# in models with experts peft takes linear modules of these names for experts of transformers 4,
# unless the parameter is listed
EXPERT_LINEAR_SUFFIXES = (".gate_proj", ".up_proj", ".down_proj")
NO_PEFT_FILES_HINT = "use --merge, or titanrun's own checkpoint with initial_load_path"
OTHER_MODULES_HINT = "set target_modules to the modules of that adapter"


@dataclass(frozen=True, slots=True)
class HFModuleNames:
    """Names and output order of a model's linear modules in transformers."""

    model: ModelConfig
    module: ModuleType

    def to_hf_name(self, name: str) -> str:
        """Return the name of the linear module `name` in transformers."""
        return to_huggingface_name(name + WEIGHT_SUFFIX, self.module.LAYER_NAMES).removesuffix(
            WEIGHT_SUFFIX
        )

    def permute_output_rows(self, name: str, matrix: Tensor, *, from_hf: bool) -> Tensor:
        """Permute the output rows of a matrix to transformers' order, or back with `from_hf`."""
        permute = getattr(
            self.module, "permute_halves_to_pairs" if from_hf else "permute_pairs_to_halves", None
        )
        return (
            matrix
            if permute is None
            else permute(
                matrix, self.module.get_rotated_head_count(self.model, name + WEIGHT_SUFFIX)
            )
        )

    def permute_magnitude(self, name: str, magnitude_O: Tensor, *, from_hf: bool) -> Tensor:
        """Permute the magnitudes of output rows like the rows."""
        rows_O1 = self.permute_output_rows(name, magnitude_O.unsqueeze(1), from_hf=from_hf)
        return rows_O1.squeeze(1).contiguous()


def get_hf_module_names(model: ModelConfig) -> HFModuleNames:
    """Return the module names of a model's family.

    Raises:
        ProblemsFound: the family does not define them.
    """
    module = load_family_module(type(model), "huggingface")
    if not hasattr(module, "LAYER_NAMES"):
        raise problem_error(
            "not-built",
            f"model family {model.name} does not define its module names in transformers",
            path=("model", "name"),
        )
    return HFModuleNames(model, module)


def write_adapters(
    folder: Path,
    adapters: Mapping[str, Tensor],
    config: AdapterConfig,
    model: ModelConfig,
    extra_contents: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a folder for PeftModel.from_pretrained, atomically.

    Args:
        folder: the output folder, which must not exist.
        adapters: `<module>.lora_a` and `<module>.lora_b` of every adapted module, `<stack>_lora_a`
            and `<stack>_lora_b` of experts.
        config: the adapters' settings.
        model: the model of the modules.
        extra_contents: further files by name, such as the tokenizer's.
    """
    family, stacks, modules = (
        get_hf_module_names(model),
        list_adapted_expert_weights(adapters),
        list_adapted_modules(adapters),
    )
    check_expert_adapters(stacks, family)
    tensors = build_peft_tensors(adapters, family)
    parameters = find_expert_parameters(family.module, stacks)
    locations = get_adapter_locations(parameter.name for parameter in parameters)
    for parameter in parameters:
        theirs = PEFT_PREFIX + locations[parameter.name]
        (
            tensors[theirs + ADAPTER_SUFFIXES[LORA_A_SUFFIX]],
            tensors[theirs + ADAPTER_SUFFIXES[LORA_B_SUFFIX]],
        ) = join_adapters(parameter, adapters, model.parameter_shapes())
    settings = build_peft_config(
        config, [family.to_hf_name(name) for name in modules], parameters, model
    )
    with atomic_folder(folder) as temporary:
        for name, content in extra_contents.items():
            (temporary / name).write_bytes(content)
        (temporary / CONFIG_FILE).write_text(
            json.dumps(settings, indent=2) + "\n", encoding="utf-8"
        )
        safetensors.torch.save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})


def build_peft_tensors(adapters: Mapping[str, Tensor], family: HFModuleNames) -> dict[str, Tensor]:
    """Return the parameters of the adapters of linear modules by peft's names."""
    tensors = {}
    for name in list_adapted_modules(adapters):
        theirs = PEFT_PREFIX + family.to_hf_name(name)
        a_name, b_name, magnitude_name = (
            name + suffix for suffix in (LORA_A_SUFFIX, LORA_B_SUFFIX, MAGNITUDE_SUFFIX)
        )
        tensors[theirs + ADAPTER_SUFFIXES[LORA_A_SUFFIX]] = adapters[a_name].contiguous()
        tensors[theirs + ADAPTER_SUFFIXES[LORA_B_SUFFIX]] = family.permute_output_rows(
            name, adapters[b_name], from_hf=False
        ).contiguous()
        if magnitude_name in adapters:
            tensors[theirs + PEFT_MAGNITUDE_SUFFIX] = family.permute_magnitude(
                name, adapters[magnitude_name], from_hf=False
            )
    return tensors


def check_expert_adapters(stacks: Sequence[str], family: HFModuleNames) -> None:
    """Check that transformers has such experts and peft supports adapters for them.

    Raises:
        ProblemsFound: they do not.
    """
    if stacks and family.model.export_problems():
        raise ProblemsFound(family.model.export_problems())
    shapes, least = (
        family.model.parameter_shapes(),
        getattr(family.module, "PEFT_EXPERTS_AT_LEAST", 1),
    )
    if any(shapes[name][0] < least for name in stacks):
        message = (
            f"peft transposes the adapter of a single expert of {family.model.name}, "
            f"such as {stacks[0]}"
        )
        raise problem_error("usage", message, hint=NO_PEFT_FILES_HINT)


def build_peft_config(
    config: AdapterConfig, modules: list[str], parameters: list[ExpertParameter], model: ModelConfig
) -> dict[str, Any]:
    """Return the content of adapter_config.json."""
    mistaken = [
        name
        for name in modules
        if getattr(model, "moe", None) is not None and name.endswith(EXPERT_LINEAR_SUFFIXES)
    ]
    if mistaken and config.magnitude:
        raise problem_error(
            "usage",
            f"peft has no magnitudes for {mistaken[0]} of {model.name}",
            hint=NO_PEFT_FILES_HINT,
        )
    targeted = [parameter.name for parameter in parameters] + [
        name + WEIGHT_SUFFIX for name in mistaken
    ]
    joint = {
        parameter.name: len(parameter.adapted_matrices)
        for parameter in parameters
        if len(parameter.adapted_matrices) > 1
    }
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": find_repository(model.hf_assets_path) or model.hf_assets_path,
        "r": config.rank,
        "lora_alpha": config.alpha,
        # peft does not support dropout with target_parameters
        "lora_dropout": 0.0 if targeted else config.dropout,
        "target_modules": [name for name in modules if name not in mistaken],
        "target_parameters": targeted or None,
        "rank_pattern": {name: count * config.rank for name, count in joint.items()},
        "alpha_pattern": {
            name: compute_joint_alpha(config, count) for name, count in joint.items()
        },
        "use_rslora": config.rank_stabilized,
        "use_dora": config.magnitude,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def read_adapters(
    folder: AnyPath, config: AdapterConfig, model: ModelConfig, adapted_names: Iterable[str]
) -> dict[str, Tensor]:
    """Read the adapters of a peft folder, for exactly these modules and expert stacks.

    Raises:
        ProblemsFound: the folder has other adapters.
    """
    settings = load_peft_settings(folder, config)
    given = load_adapter_tensors(folder)
    adapters: dict[str, Tensor] = {}
    family, shapes = get_hf_module_names(model), model.parameter_shapes()
    adapted_names = list(adapted_names)
    for name in adapted_names:
        if name not in shapes:
            theirs = family.to_hf_name(name)
            check_adapter_scale(folder, settings, theirs, config, rank_multiples=(1,))
            a_RI, b_OR = pop_adapter_pair(
                folder, given, theirs, description=f"{theirs}, which is {name} here"
            )
            adapters |= {
                name + LORA_A_SUFFIX: a_RI,
                name + LORA_B_SUFFIX: family.permute_output_rows(name, b_OR, from_hf=True),
            }
            if config.magnitude:
                magnitude_O = pop_magnitude(folder, given, theirs)
                adapters[name + MAGNITUDE_SUFFIX] = family.permute_magnitude(
                    name, magnitude_O, from_hf=True
                )
    parameters = find_expert_parameters(
        family.module, [name for name in adapted_names if name in shapes]
    )
    locations = get_adapter_locations(find_target_parameters(settings, family, parameters))
    for parameter in parameters:
        description = f"{parameter.name}, which is {' and '.join(parameter.adapted_matrices)} here"
        check_adapter_scale(
            folder,
            settings,
            parameter.name,
            config,
            rank_multiples=(1, len(parameter.adapted_matrices)),
        )
        lora_a, lora_b = pop_adapter_pair(
            folder, given, locations.get(parameter.name, ""), description=description
        )
        adapters |= split_adapter(parameter, lora_a, lora_b, shapes, config.rank)
    if given:
        message = f"{folder} also adapts {sorted(given)[0].removeprefix(PEFT_PREFIX)}"
        raise problem_error("checkpoint", message, path=("converters",), hint=OTHER_MODULES_HINT)
    return adapters


def load_adapter_tensors(folder: AnyPath) -> dict[str, Tensor]:
    """Read the tensors of a peft folder by peft's names.

    Raises:
        ProblemsFound: the file cannot be read.
    """
    try:
        with (
            local_copy(folder / WEIGHTS_FILE) as copy,
            safetensors.safe_open(copy, framework="pt", device="cpu") as file,
        ):
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise problem_error(
            "checkpoint",
            f"cannot read {folder / WEIGHTS_FILE}: {error}",
            hint="use a folder that peft saved",
        ) from error


def pop_adapter_pair(
    folder: AnyPath, tensors: dict[str, Tensor], peft_name: str, *, description: str
) -> tuple[Tensor, Tensor]:
    """Remove and return the two matrices of one adapter.

    Raises:
        ProblemsFound: they are missing. The message contains `description`.
    """
    names = [PEFT_PREFIX + peft_name + ending for ending in ADAPTER_SUFFIXES.values()]
    if any(name not in tensors for name in names):
        raise problem_error(
            "checkpoint",
            f"{folder} has no adapter for {description}",
            path=("converters",),
            hint=OTHER_MODULES_HINT,
        )
    return tensors.pop(names[0]), tensors.pop(names[1])


def pop_magnitude(folder: AnyPath, tensors: dict[str, Tensor], peft_name: str) -> Tensor:
    """Remove and return the magnitudes of one adapter, [O].

    Raises:
        ProblemsFound: they are missing.
    """
    # earlier versions of peft wrote the second name
    for ending in (PEFT_MAGNITUDE_SUFFIX, PEFT_MAGNITUDE_SUFFIX + WEIGHT_SUFFIX):
        found = tensors.pop(PEFT_PREFIX + peft_name + ending, None)
        if found is not None:
            return found.flatten()
    raise problem_error(
        "checkpoint",
        f"{folder} has no magnitudes of {peft_name}",
        path=("converters",),
        hint=OTHER_MODULES_HINT,
    )


def find_target_parameters(
    settings: Mapping[str, Any], family: HFModuleNames, parameters: Sequence[ExpertParameter]
) -> list[str]:
    """Return the expert parameters with adapters in the folder, in transformers' order."""
    targets, names = settings.get("target_parameters") or [], []
    for holder in dict.fromkeys(parameter.module_name for parameter in parameters):
        every = [f"{holder}.{name.rpartition('.')[2]}" for name in family.module.EXPERT_PARAMETERS]
        names += [
            name for name in every if any(f".{name}".endswith(f".{target}") for target in targets)
        ]
    return names
