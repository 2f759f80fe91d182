"""Names of models in other programs: classes and types of transformers, and words for attention."""

import re
from typing import Any

from titanrun.config.registry import load_choices
from titanrun.config.suggest import normalize_spelling
from titanrun.config.type_introspection import find_value
from titanrun.models.shared.config import ModelConfig

TRANSFORMERS = "transformers"
CLASS_SUFFIX = re.compile(
    "(Text)?(ForCausalLM|ForConditionalGeneration|ForSequenceClassification|LMHeadModel|Model)$"
)
AUTO_CLASS = re.compile("auto(model.*)?|hf|huggingface", re.IGNORECASE)
OTHER_TYPES = re.compile(
    "(bloom|cohere|deepseek_?v2|falcon|gemma|glm|gpt2|gpt_neox|granite|mistral|mixtral|mpt|olmo|opt|phi|qwen2|"
    r"smollm|starcoder|yi)[\w.-]*",
    re.IGNORECASE,
)
"""Types of models of transformers that have no family here."""
OLDER_LLAMA = re.compile(r"llama-?_?[12](?!\d)\w*", re.IGNORECASE)
NO_FAMILY = (
    "write transformers, which trains models that have no family here by their config.json in "
    "model.hf_assets_path"
)
OTHER_MASKS = "model.attention.backend takes sdpa, flex or varlen"
OWN_KERNELS = "remove it: each model family chooses its kernels"
CLASS_KERNELS = "remove it: attn_implementation of model transformers is sdpa, with flash kernels"


def describe_model_name(name: str) -> str:
    """Return what to write for a class or type of transformers, an empty text for other names."""
    families = {normalize_spelling(known) for known in load_choices(ModelConfig)}
    if normalize_spelling(name) in families:
        return ""
    if AUTO_CLASS.fullmatch(name):
        return f"{NO_FAMILY}; those with one are {', '.join(list_types())}"
    family = find_model_family(CLASS_SUFFIX.sub("", name))
    if family is not None:
        return f"write {family}"
    is_other = CLASS_SUFFIX.search(name) or OTHER_TYPES.fullmatch(name)
    return NO_FAMILY if is_other else ""


def find_model_family(kind: str) -> str | None:
    """Return the family of a type of models, in any spelling."""
    families = {
        normalize_spelling(own): name for name, types in list_types().items() for own in types
    }
    if OLDER_LLAMA.fullmatch(kind):
        return families.get("llama")
    return families.get(normalize_spelling(kind))


def list_types() -> dict[str, tuple[str, ...]]:
    """Return the types of transformers' models that each family reads, if it reads any."""
    return {
        name: choice.huggingface_types
        for name, choice in load_choices(ModelConfig).items()
        if issubclass(choice, ModelConfig) and choice.huggingface_types
    }


def describe_attention(value: Any, data: Any) -> str:
    """Return what chooses the kernels of attention in the model of a recipe."""
    model = find_value(data, ("model",))
    name = model.get("name") if isinstance(model, dict) else model
    if name == TRANSFORMERS:
        return CLASS_KERNELS
    word = str(value).lower().removesuffix("_attention")
    if word in ("flex", "varlen"):
        return f"write model.attention.backend: {word}"
    return OWN_KERNELS if name == "flux" else f"{OWN_KERNELS}; {OTHER_MASKS}"
