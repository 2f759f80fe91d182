"""Settings of adapters in peft's adapter_config.json, and whether they fit a recipe."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.converters.config import AdapterConfig
from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.models.shared.huggingface_config import CONFIG
from titanrun.recipe.rundir.peft_folder import build_converter_overrides

CONFIG_FILE = "adapter_config.json"
OTHER_SCALE_HINT = (
    "set rank, alpha, rank_stabilized and magnitude in the recipe to those of the adapter"
)
# supported values of peft settings that change LoRA's computation
SUPPORTED_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": ([], None),
}
# settings that files of earlier versions of peft do not have
DEFAULT_SETTINGS = {"use_rslora": False, "use_dora": False}


def compute_joint_alpha(config: AdapterConfig, count: int) -> float:
    """Return the alpha of adapters that peft joins into one of `count` times the rank.

    It keeps the scale.
    """
    return config.alpha * (math.sqrt(count) if config.rank_stabilized else count)


def load_peft_settings(folder: AnyPath, config: AdapterConfig) -> dict[str, Any]:
    """Read the folder's adapter_config.json.

    Raises:
        ProblemsFound: its settings differ from the recipe's.
    """
    try:
        settings: dict[str, Any] = parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and (folder / CONFIG).is_file():
            raise problem_error(
                "checkpoint",
                f"'{folder}' is a model, not an adapter: it has {CONFIG}, but no {CONFIG_FILE}",
                hint=f"titanrun checkpoint import {folder} out --from hf reads the weights of a "
                "model; or name a folder that peft saved",
            ) from error
        raise problem_error(
            "checkpoint",
            f"cannot read {folder / CONFIG_FILE}: {error}",
            hint="use a folder that peft saved",
        ) from error
    forms = {"rank_pattern": dict, "alpha_pattern": dict, "target_parameters": list}
    if not isinstance(settings, dict) or any(
        not isinstance(settings.get(key) or form(), form) for key, form in forms.items()
    ):
        raise problem_error(
            "checkpoint",
            f"{folder / CONFIG_FILE} is not in peft's format",
            hint="use a folder that peft saved",
        )
    wanted = {
        **SUPPORTED_SETTINGS,
        "r": (config.rank,),
        "lora_alpha": (config.alpha,),
        "use_rslora": (True,) if config.rank_stabilized else (False, None),
        "use_dora": (True,) if config.magnitude else (False, None),
    }
    for key, values in wanted.items():
        if settings.get(key, DEFAULT_SETTINGS.get(key, values[0])) not in values:
            message = (
                f"{folder / CONFIG_FILE} has {key}: {json.dumps(settings.get(key))}, "
                f"but the run's adapters have {json.dumps(values[0])}"
            )
            same = build_converter_overrides(settings)
            hint = f"add {shlex.quote(same[0])}" if same else OTHER_SCALE_HINT
            raise problem_error("checkpoint", message, path=("converters",), hint=hint)
    return settings


def check_adapter_scale(
    folder: AnyPath,
    settings: Mapping[str, Any],
    name: str,
    config: AdapterConfig,
    *,
    rank_multiples: Sequence[int],
) -> None:
    """Check the rank and scale that the patterns set for a module.

    Raises:
        ProblemsFound: the rank is not one of `rank_multiples` times the run's, or alpha differs.
    """
    rank = get_pattern_value(settings.get("rank_pattern") or {}, name, config.rank)
    alpha = get_pattern_value(settings.get("alpha_pattern") or {}, name, config.alpha)
    if (rank, alpha) not in [
        (count * config.rank, compute_joint_alpha(config, count)) for count in rank_multiples
    ]:
        message = f"{folder / CONFIG_FILE} has rank {rank} and alpha {alpha} for {name}"
        message += f", but the run's adapters have {config.rank} and {config.alpha}"
        raise problem_error("checkpoint", message, path=("converters",), hint=OTHER_SCALE_HINT)


def get_pattern_value(pattern: Mapping[str, Any], name: str, default: float) -> Any:
    """Return a module's value of rank_pattern or alpha_pattern, as peft selects it.

    It is that of the first key that, as a regular expression, matches the end of the name.
    """
    try:
        return next(
            (value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", name)),
            default,
        )
    except re.error as error:
        raise problem_error(
            "checkpoint",
            f"rank_pattern or alpha_pattern of the adapter: {error}",
            hint="use a folder that peft saved",
        ) from error
