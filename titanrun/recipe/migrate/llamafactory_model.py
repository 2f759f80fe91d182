"""Conversion of LLaMA-Factory's models, adapters and losses."""

from typing import Any

from titanrun.components.converters.spec.module_names import translate_module_names
from titanrun.recipe.migrate.axolotl_model import (
    LINEAR,
    describe_family,
    detect_family_and_flavor,
    get_weights_folder,
    is_native_family,
)
from titanrun.recipe.migrate.key_mapping import (
    NO_DORA_DROPOUT,
    ConvertedValue,
    SourceKey,
    SourceValues,
)

PAIR_LOSSES = {
    "sigmoid": {"loss.name": "dpo"},
    "hinge": {"loss.name": "dpo", "loss.variant": "hinge"},
    "ipo": {"loss.name": "ipo"},
    "orpo": {"loss.name": "orpo", "loss.nll_on": "replies"},
    "simpo": {"loss.name": "simpo"},
}
DPO_LOSSES = ("sigmoid", "hinge")
MEAN_OVER_TOKENS = "the cross entropy is a mean over the tokens of a step, not of each reply"


def name_model(values: SourceValues) -> SourceValues:
    """Return the values with the model under the key that axolotl has for it."""
    return {"base_model": values.get("model_name_or_path")}


def is_native_model(values: SourceValues) -> bool:
    """Return whether titanrun's own model masks attention between conversations."""
    return is_native_family(name_model(values))


def get_adapter(values: SourceValues) -> str:
    """Return lora, qlora, or an empty text."""
    if values.get("finetuning_type") != "lora":
        return ""
    return "qlora" if values.get("quantization_bit") else "lora"


def convert_llamafactory_model(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Derive the family from config.json or the Hub name; use transformers for others."""
    if not isinstance(value, str) or not value:
        return ConvertedValue({}, refused="not the name of a model")
    named = name_model(values)
    name, flavor = detect_family_and_flavor(named)
    folder = get_weights_folder(named)
    targets = {
        "model.name": name,
        **({"model.flavor": flavor} if flavor else {}),
        "model.hf_assets_path": folder,
        "checkpoint.enable": True,
        "checkpoint.initial_load_in_hf": True,
        **({} if get_adapter(values) else {"checkpoint.last_save_in_hf": True}),
    }
    return ConvertedValue(targets, how=describe_family(name, flavor))


def convert_stage(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the loss; the dataset follows from the stage, too."""
    if value == "ppo":
        return ConvertedValue({}, refused="PPO with a value model is not built: kind: rl has GRPO")
    mask = {"model.attention.mask": "block_causal"} if is_native_model(values) else {}
    targets: dict[str, Any] = {
        "sft": {"kind": "sft"},
        "dpo": {**PAIR_LOSSES.get(str(values.get("pref_loss")), {}), **mask},
        "kto": {"loss.name": "kto", **mask},
        "rm": {"loss.name": "reward", "model.head": "scalar", **mask},
        "pt": {},
    }.get(str(value), {})
    how = MEAN_OVER_TOKENS if value == "dpo" and values.get("pref_loss") == "orpo" else ""
    return ConvertedValue(targets, how=how)


def convert_pair_loss(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept the losses that titanrun has."""
    is_read = values.get("stage") == "dpo"
    return ConvertedValue(
        {}, refused=f"no loss {value}" if is_read and value not in PAIR_LOSSES else ""
    )


def make_llamafactory_loss_conversion(field: str, *losses: str) -> Any:
    """Return a conversion to a field of the loss, with LLaMA-Factory's default written out."""

    def convert(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the loss if the stage has it."""
        stage, kind = values.get("stage"), values.get("pref_loss")
        name = kind if stage == "dpo" else stage
        meant = key.default if value is None else value
        how = MEAN_OVER_TOKENS if field == "nll_weight" and meant else ""
        is_set = name in losses and (meant != key.default or field in ("beta", "gamma"))
        return ConvertedValue({f"loss.{field}": meant}, how=how) if is_set else ConvertedValue({})

    return convert


def convert_finetuning_type(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Add the converter lora or qlora; full trains all weights."""
    if value == "full":
        return ConvertedValue({})
    name = get_adapter(values)
    if not name:
        return ConvertedValue({}, refused="supported: full and lora, also on a base in 4 or 8 bits")
    base = {"converters[qlora].base": "nf4" if values.get("quantization_bit") == 4 else "int8"}
    return ConvertedValue(
        {
            f"converters[{name}].name": name,
            **(base if name == "qlora" else {}),
            "checkpoint.adapters_only": True,
        }
    )


def convert_quantization(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Drop it, since the base of qlora sets it; refuse other widths, and it without adapters."""
    if not value:
        return ConvertedValue({})
    if value not in (4, 8) or not get_adapter(values):
        return ConvertedValue({}, refused="the base of adapters can have 4 or 8 bits")
    return ConvertedValue({}, how="left out: the converter qlora sets it")


def make_adapter_conversion(field: str) -> Any:
    """Return a conversion to a field of the adapter."""

    def convert(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the converter lora or qlora."""
        name = get_adapter(values)
        meant = key.default if value is None else value
        if field == "alpha" and value is None:
            # twice the rank
            meant = 2 * values["lora_rank"] if isinstance(values.get("lora_rank"), int) else None
        if name and field == "dropout" and meant and values.get("use_dora"):
            return ConvertedValue({}, refused=NO_DORA_DROPOUT)
        is_set = name and meant not in (None, False)
        return ConvertedValue({f"converters[{name}].{field}": meant} if is_set else {})

    return convert


def convert_target_modules(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the modules with adapters, in the family's names; all are the linear ones of a block."""
    name = get_adapter(values)
    if not name:
        return ConvertedValue({})
    parts = str(value or "all").split(",")
    modules = LINEAR if value in (None, "all") else [part.strip() for part in parts]
    if is_native_model(values):
        modules = translate_module_names(modules)
    return ConvertedValue({f"converters[{name}].target_modules": list(modules)})


def convert_precision(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep trained weights in fp32, and multiply in bf16 if set; pure_bf16 keeps them in bf16."""
    stored = "bfloat16" if values.get("pure_bf16") else "float32"
    computed = "bfloat16" if value or values.get("pure_bf16") else "float32"
    return ConvertedValue({"training.dtype": stored, "training.mixed_precision_param": computed})
