"""Conversion of torchtune's model builders and adapters."""

from typing import Any

from titanrun.recipe.migrate.key_mapping import (
    NO_DORA_DROPOUT,
    ConvertedValue,
    SourceKey,
    SourceValues,
)

SAME_FLAVORS = {
    "llama3_8b": ("8B", True),
    "llama3_70b": ("70B", True),
    "llama3_1_8b": ("8B", False),
    "llama3_1_70b": ("70B", False),
    "llama3_1_405b": ("405B", False),
    "llama3_3_70b": ("70B", False),
}
"""Flavor of a builder, and whether it is Llama 3.0, whose frequencies are not scaled."""
FROM_CONFIG = ("llama3_2_1b", "llama3_2_3b")
CUSTOM = ("llama3", "llama3_1")
QWEN3 = "qwen3"
OTHER_FAMILIES = (
    "qwen2",
    "qwen2_5",
    "llama2",
    "code_llama2",
    "mistral",
    "gemma",
    "gemma2",
    "phi3",
    "phi4",
)
ITS_CLASS = (
    "a model family that titanrun trains with the model class of transformers, from config.json"
)
NATIVE_MODULE_NAMES = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "output_proj": "wo"}
CLASS_NAMES = {"output_proj": "o_proj"}
OWN_MLP, CLASS_MLP = ("w1", "w2", "w3"), ("gate_proj", "up_proj", "down_proj")
IN_ONE = "the transformers model has these projections in one matrix: set target_modules by hand"


def get_model_builder(values: SourceValues) -> tuple[str, str]:
    """Return the last word of the builder without lora_ and qlora_, and its module.

    For example llama3_1_8b and llama3_1.
    """
    path = str(values.get("model._component_") or "").split(".")
    name = (
        path[-1].removeprefix("q").removeprefix("lora_")
        if path[-1].startswith(("lora_", "qlora_"))
        else path[-1]
    )
    return name, path[-2] if len(path) > 1 else ""


def get_torchtune_adapter(values: SourceValues) -> str:
    """Return lora, qlora, or an empty text for full fine-tuning."""
    name = str(values.get("model._component_") or "").rpartition(".")[2]
    if name.startswith("qlora_") or (
        name.startswith("lora_") and values.get("model.quantize_base")
    ):
        return "qlora"
    return "lora" if name.startswith("lora_") else ""


def has_native_family(values: SourceValues) -> bool:
    """Return whether titanrun's llama3 or qwen3 trains the model."""
    name, module = get_model_builder(values)
    return name in SAME_FLAVORS or name in FROM_CONFIG or name in CUSTOM or module == QWEN3


def convert_torchtune_model(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map builders of Llama 3 to 3.3 to llama3, of Qwen3 to qwen3, others to transformers.

    A prefix lora_ or qlora_ becomes a converter.
    """
    name, module = get_model_builder(values)
    kind = get_torchtune_adapter(values)
    targets: dict[str, Any] = {f"converters[{kind}].name": kind} if kind else {}
    if kind == "qlora":
        targets["checkpoint.adapters_only"] = True
    if name in SAME_FLAVORS:
        flavor, unscaled = SAME_FLAVORS[name]
        scaling = {"model.rope.scaling": None} if unscaled else {}
        return ConvertedValue(
            {"model.name": "llama3", "model.flavor": flavor, **scaling, **targets}
        )
    if name in FROM_CONFIG or module == QWEN3:
        family = QWEN3 if module == QWEN3 else "llama3"
        return ConvertedValue(
            {"model.name": family, "model.flavor": "auto", **targets},
            how="the sizes are read from config.json",
        )
    if name in CUSTOM:
        scaling = {"model.rope.scaling": None} if name == "llama3" else {}
        return ConvertedValue({"model.name": "llama3", **scaling, **targets})
    if module in OTHER_FAMILIES and not any(word in name for word in ("reward", "classifier")):
        return ConvertedValue({"model.name": "transformers", **targets}, how=ITS_CLASS)
    return ConvertedValue({}, refused="titanrun has no such model family")


def make_torchtune_adapter_conversion(field: str, otherwise: Any) -> Any:
    """Return a conversion to a field of the adapter; `otherwise` is torchtune's default."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the converter lora or qlora."""
        name = get_torchtune_adapter(values)
        meant = otherwise if value is None else value
        if not name:
            return ConvertedValue({}, how="left out: the model has no adapters")
        if field == "dropout" and meant and values.get("model.use_dora"):
            return ConvertedValue({}, refused=NO_DORA_DROPOUT)
        return ConvertedValue({} if meant is None else {f"converters[{name}].{field}": meant})

    return convert


def convert_quantize_base(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Use qlora instead of lora: a frozen base in 4 bits."""
    return ConvertedValue(
        {"converters[qlora].name": "qlora"} if value and get_torchtune_adapter(values) else {}
    )


def convert_torchtune_target_modules(
    key: SourceKey, value: Any, values: SourceValues
) -> ConvertedValue:
    """Add the projections with adapters to target_modules, in the family's names."""
    name = get_torchtune_adapter(values)
    if not name or not value:
        return ConvertedValue({})
    listed = values.get("model.lora_attn_modules")
    attention = listed if isinstance(listed, list) else []
    own = has_native_family(values)
    if not own and get_model_builder(values)[1] in ("phi3", "phi4"):
        return ConvertedValue({}, refused=IN_ONE)
    names = [
        (NATIVE_MODULE_NAMES if own else CLASS_NAMES).get(str(module), str(module))
        for module in attention
    ]
    names += (OWN_MLP if own else CLASS_MLP) if values.get("model.apply_lora_to_mlp") else ()
    names += ["output" if own else "lm_head"] if values.get("model.apply_lora_to_output") else []
    return ConvertedValue({f"converters[{name}].target_modules": names})


def convert_model_size(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set a size of a model that is built from its sizes."""
    assert key.target is not None
    return (
        ConvertedValue({key.target: value})
        if get_model_builder(values)[0] in CUSTOM and value is not None
        else ConvertedValue({})
    )


def convert_hidden_dim(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the width of the hidden layer.

    If unset, use torchtune's rule: 8/3 of embed_dim rounded up to a multiple of 256.
    """
    if get_model_builder(values)[0] not in CUSTOM:
        return ConvertedValue({})
    dim = values.get("model.embed_dim")
    if value is None and isinstance(dim, int):
        value = -(-4 * int(2 * dim / 3) // 256) * 256
    return ConvertedValue({"model.feed_forward.hidden_dim": value} if value else {})


def convert_rope_scale(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep a factor other than 8, that of Llama 3.1, for a model built from its sizes."""
    if get_model_builder(values)[0] != "llama3_1" or value in (None, 8):
        return ConvertedValue({})
    return ConvertedValue({"model.rope.scaling.name": "llama3", "model.rope.scaling.factor": value})
