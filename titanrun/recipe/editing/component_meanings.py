"""Names of other tools for what is a setting of a component here, and sections for components."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from titanrun.components.converters.config import QloraConfig
from titanrun.components.converters.spec.module_names import translate_module_names
from titanrun.config.problems import DataPath
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.type_introspection import find_annotation, find_value, is_slot
from titanrun.recipe.editing.model_names import TRANSFORMERS, describe_model_name
from titanrun.recipe.plugins import get_recipe_class

ADAPTERS = "adapters are {name: lora, rank: 8, alpha: 16}, or qlora for frozen weights in 4 bits"
QLORA = "write {name: qlora, rank: 8, alpha: 16}: the frozen weights have 4 bits (base: nf4)"
PAIRS = "write {name: preference, path: FILE}: records of prompt, chosen and rejected"
MESSAGES = "write {name: chat, path: FILE}: records of messages, a list of role and content"
TEXTS = "write {name: text, path: FILE} for texts, {name: chat, path: FILE} for conversations"
USUAL_ADAPTER = {"rank": 8, "alpha": 16}
ADAPTER_KEYS = {
    **dict.fromkeys(("r", "rank", "lora_r", "lora_rank"), "rank"),
    **dict.fromkeys(("alpha", "lora_alpha"), "alpha"),
    **dict.fromkeys(("dropout", "lora_dropout"), "dropout"),
    **dict.fromkeys(("use_dora", "peft_use_dora", "magnitude"), "magnitude"),
    **dict.fromkeys(("use_rslora", "peft_use_rslora", "rank_stabilized"), "rank_stabilized"),
    **dict.fromkeys(("lora_target_modules", "target_modules"), "target_modules"),
}
"""Settings of adapters by their names here and in other tools."""
ADAPTER_SECTIONS = ("adapter", "adapters", "dora", "lora", "lora_config", "peft", "peft_config")
ALL_LINEAR = "without target_modules all linear modules but the output head have adapters"
ALL_LINEAR_KEYS = ("lora_target", "lora_target_linear")
"""Keys that choose all linear modules with true, or by one of the words below."""
ALL_LINEAR_WORDS = (True, "all", "all-linear")
MODULE_KEYS = (*ALL_LINEAR_KEYS, "lora_target_modules", "target_modules")
"""Keys whose value names modules, in a list or as one text."""
MODEL = "model"
ALL_WEIGHTS = "remove it: without adapters all weights are trained"
NO_QUANTIZATION = "remove it: weights are quantized only by the converter qlora"
NO_CRITIC = "PPO with a critic is not available: write grpo, which compares completions of a prompt"
FOUR_BITS = "4 bits are nf4: write base: nf4"
EIGHT_BITS = "8 bits are int8: write base: int8"
BASE_MEANINGS = {
    **dict.fromkeys(("4", "4bit", "4_bit", "bnb_4bit", "fp4", "int4", "uint4"), FOUR_BITS),
    **dict.fromkeys(("8", "8bit", "8_bit", "bnb_8bit", "fp8", "uint8"), EIGHT_BITS),
}
"""What to write for a format of the frozen matrices of adapters."""
FLASH_WORDS = ("flash", "flash_attention", "flash_attention_2", "flash_attention_3", "fa2", "fa3")
ADAPTER_KIND = "write sft for conversations or pretrain for texts, and converters: "
VALUE_MEANINGS: Mapping[DataPath, Mapping[str, str]] = {
    ("kind",): {
        **dict.fromkeys(("adapter", "dora", "lora", "peft"), f"{ADAPTER_KIND}[lora]"),
        "qlora": f"{ADAPTER_KIND}[qlora]",
        **{
            word: f"remove kind, and write loss: {word}"
            for word in ("cpo", "dpo", "ipo", "kto", "orpo", "simpo")
        },
        **dict.fromkeys(
            ("reward", "reward_model", "reward_modeling", "rm"),
            "remove kind, and write loss: reward and model.head: scalar",
        ),
        **dict.fromkeys(
            ("causal_lm", "clm", "cpt", "continued_pretraining", "pt"), "write pretrain"
        ),
        **dict.fromkeys(
            ("chat", "finetune", "finetuning", "fine_tuning", "full", "instruct", "instruction"),
            "write sft",
        ),
        **dict.fromkeys(("train", "training"), "write pretrain, or sft for conversations"),
        **dict.fromkeys(
            ("dapo", "grpo", "ppo", "rlhf", "rlvr"), "write rl; rl.algorithm names its loss"
        ),
    },
    ("training", "dataset", "layout"): dict.fromkeys(
        ("chat", "chatml", "conversation", "conversations", "openai"), "write messages"
    ),
    ("training", "dataset", "train_on"): {
        **dict.fromkeys(
            ("assistant", "assistants", "completion", "completions", "reply", "response"),
            "write replies",
        ),
        **dict.fromkeys(("responses", "responses_only", "completions_only"), "write replies"),
        **dict.fromkeys(("last", "last_assistant", "last_turn"), "write last_reply"),
        **dict.fromkeys(("conversation", "everything", "full"), "write all"),
    },
    ("model", "attn_implementation"): {
        **dict.fromkeys(FLASH_WORDS, "write sdpa: torch takes its flash kernel where it can"),
        **dict.fromkeys(("flex", "flex_attention"), "write sdpa"),
    },
    ("model", "attention", "backend"): {
        **dict.fromkeys(
            FLASH_WORDS, "write auto: sdpa, which has a flash kernel, or flex for masks"
        ),
        "flex_attention": "write flex",
        "eager": "write sdpa",
    },
}
"""What to write for the value of a setting, by path."""
DEVICE: DataPath = ("device",)
DEVICE_WORD = re.compile(
    r"(?=.)(?:(?:cuda|gpus?|hip|hpu|mps|npu|nvidia|rocm|xpu):?)?(?P<number>\d+(,\d+)*)?"
)
NO_TPU = "write gpu or cpu: titanrun does not train on TPUs"
CROSS_ENTROPY = "write {name: cross_entropy}"
COSINE_DECAY = "write {name: cosine}"
LINEAR_DECAY = "write {name: polynomial, power: 1.0}"
PLAIN_ADAMW = "write {name: adamw}"
ADAMW_8BIT = "write {name: adamw_8bit}"


def describe_chat_layout(layout: str) -> str:
    """Return the hint for conversations in a layout."""
    return f"write {{name: chat, layout: {layout}, path: FILE}}"


LAYOUT_KEYS = ("format", "formatting", "type")
"""Keys of other tools for the layout of a dataset's records."""
CHAT_LAYOUTS = {
    **dict.fromkeys(("chatml", "chat_template", "messages", "openai"), "messages"),
    "alpaca": "alpaca",
    "sharegpt": "sharegpt",
    **dict.fromkeys(
        ("input_output", "instruct", "instruction", "prompt_completion"), "prompt_completion"
    ),
}
"""Layout of conversations for its name in other tools."""
NAME_MEANINGS: Mapping[str, Mapping[str, str]] = {
    "algorithm": dict.fromkeys(("ppo", "ppo_critic"), NO_CRITIC),
    "converters": {
        "dora": "write {name: lora, magnitude: true}",
        **dict.fromkeys(("rslora", "rs_lora"), "write {name: lora, rank_stabilized: true}"),
        **dict.fromkeys(
            ("lora_plus", "loraplus", "lora+"),
            "write {name: lora}, and optimizer.lora_plus_ratio: 16",
        ),
        **dict.fromkeys(("fp8", "fp8_linear"), "write {name: float8_linear}"),
        **dict.fromkeys(("adapter", "adapters", "peft"), ADAPTERS),
        **dict.fromkeys(("4bit", "bitsandbytes", "bnb", "load_in_4bit", "nf4"), QLORA),
    },
    "dataset": {
        "sft": MESSAGES,
        **{
            word: MESSAGES if layout == "messages" else describe_chat_layout(layout)
            for word, layout in CHAT_LAYOUTS.items()
        },
        **dict.fromkeys(("dpo", "pairs", "preferences", "rlhf"), PAIRS),
        "kto": "write {name: labelled, path: FILE}: records of prompt, completion and label",
        **dict.fromkeys(
            ("completion", "pretrain", "pretraining"), "write {name: text, path: FILE}"
        ),
        **dict.fromkeys(("csv", "json", "jsonl", "parquet"), TEXTS),
        **dict.fromkeys(
            ("hf", "huggingface"),
            "write {name: hub, repo: OWNER/NAME} for texts, {name: chat, repo: OWNER/NAME} for "
            "conversations",
        ),
    },
    "loss": {
        **dict.fromkeys(
            ("causal_lm", "ce", "ce_loss", "forcausallmloss", "lm", "nll", "sft", "sft_loss"),
            CROSS_ENTROPY,
        ),
        **dict.fromkeys(
            ("chunked_nll", "cut_cross_entropy", "cce", "fused_linear_cross_entropy", "liger"),
            "write {name: chunked_cross_entropy}",
        ),
        **dict.fromkeys(
            ("grpo", "grpo_loss", "ppo", "dapo"), "write kind: rl, where rl.algorithm has the loss"
        ),
        **{
            word: f"write {{name: dpo, variant: {word}}}"
            for word in ("apo_zero", "hinge", "robust", "sigmoid_norm")
        },
        **dict.fromkeys(("preference", "sigmoid"), "write {name: dpo}"),
        **dict.fromkeys(("reward_model", "rm"), "write {name: reward}, and model.head: scalar"),
    },
    "lr_scheduler": {
        **dict.fromkeys(("linear", "linear_schedule_with_warmup"), LINEAR_DECAY),
        "constant_with_warmup": "write {name: constant}",
        **dict.fromkeys(
            ("cosineannealinglr", "cosine_annealing", "cosine_schedule_with_warmup"), COSINE_DECAY
        ),
        "cosine_with_warmup": COSINE_DECAY,
        "wsd": "write {name: warmup_stable_decay}",
    },
    "optimizer": {
        **dict.fromkeys(
            ("adamw_apex_fused", "adamw_hf", "adamw_torch", "adamw_torch_fused"), PLAIN_ADAMW
        ),
        **dict.fromkeys(("paged_adamw", "paged_adamw_32bit"), PLAIN_ADAMW),
        **dict.fromkeys(
            ("adamw_bnb_8bit", "adamw_torch_8bit", "ao_adamw_8bit", "paged_adamw_8bit"), ADAMW_8BIT
        ),
        "ao_adamw_fp8": "write {name: adamw_fp8}",
    },
}
"""What to write for a name, by slot."""


def format_name_meaning(name: Any, path: DataPath, data: Any) -> str:
    """Return what to write for the name of a component of other tools, else an empty text."""
    place = path[:-1] if path[-1] == "name" else path
    annotation: Any = find_annotation(get_recipe_class(), data, place)
    if not isinstance(name, str) or not is_slot(annotation):
        return ""
    if annotation.slot == MODEL:
        return describe_model_name(name)
    return NAME_MEANINGS.get(annotation.slot, {}).get(to_word(name), "")


def format_value_word(path: DataPath, value: Any) -> str:
    """Return what to write for the value of a setting in other tools, else an empty text."""
    if path == DEVICE:
        return describe_device(value)
    is_base = path[:1] == ("converters",) and path[-1] == "base"
    meanings = BASE_MEANINGS if is_base else VALUE_MEANINGS.get(path, {})
    return meanings.get(to_word(str(value)), "")


def describe_device(value: Any) -> str:
    """Return the device for its name or number in PyTorch, else an empty text."""
    if isinstance(value, bool):
        return f"write {'gpu' if value else 'cpu'}"
    words = [to_word(str(one)) for one in (value if isinstance(value, list) else [value])]
    found = [DEVICE_WORD.fullmatch(word) for word in words]
    if not found or not all(found):
        kind = words[0].partition(":")[0] if len(words) == 1 else ""
        return NO_TPU if kind in ("tpu", "xla") else ""
    numbers = ",".join(match["number"] for match in found if match and match["number"])
    chosen = f"; CUDA_VISIBLE_DEVICES={numbers} chooses by number" if numbers else ""
    return f"write gpu, which is the accelerator that torch finds{chosen}"


def format_layout_meaning(path: DataPath, data: Any) -> str:
    """Return what to write for a key that chooses the layout of conversations, else empty text.

    The keys are those of axolotl and LLaMA-Factory, in a dataset with or without a name.
    """
    if path[-1] not in LAYOUT_KEYS or "dataset" not in path[-2:-1]:
        return ""
    name, word = find_value(data, (*path[:-1], "name")), to_word(str(find_value(data, path)))
    if name is None:
        return NAME_MEANINGS["dataset"].get(word, "")
    return f"write layout: {CHAT_LAYOUTS[word]}" if name == "chat" and word in CHAT_LAYOUTS else ""


def format_section_meaning(key: str, data: Any) -> str:
    """Return what to write for a key that stands for a component, else an empty text.

    `data` is the mapping with the key: the recipe or its section training.
    """
    word, value = to_word(key), data[key]
    if word in ADAPTER_KEYS or word in ALL_LINEAR_KEYS:
        return describe_adapter_key(word, value, data)
    described = SECTION_MEANINGS.get(word)
    return "" if described is None else described(value, data)


def list_native_modules(data: Any) -> Any:
    """Return a recipe in which modules with adapters are listed by the names of its model."""
    place = (MODEL,) if isinstance(find_value(data, (MODEL,)), str) else (MODEL, "name")
    return list_modules(data, find_value(data, place) != TRANSFORMERS)


def list_modules(data: Any, is_native: bool) -> Any:
    """Return data with the modules that its keys name as lists, in names of titanrun if native."""
    if isinstance(data, list):
        return [list_modules(item, is_native) for item in data]
    if not isinstance(data, dict):
        return data
    return {
        key: list_named_modules(value, is_native)
        if to_word(str(key)) in MODULE_KEYS
        else list_modules(value, is_native)
        for key, value in data.items()
    }


def list_named_modules(value: Any, is_native: bool) -> Any:
    """Return modules as a list; words for all linear modules are unchanged."""
    if value in ALL_LINEAR_WORDS or not isinstance(value, str | list):
        return value
    names = value.split(",") if isinstance(value, str) else value
    listed = [str(name).strip() for name in names]
    return translate_module_names(listed) if is_native else listed


def describe_adapter_key(word: str, value: Any, data: Any) -> str:
    """Return the converter of all settings of adapters that stand at the top level."""
    is_all = value in ALL_LINEAR_WORDS
    if word in ALL_LINEAR_KEYS and not is_all:
        data = {**data, "target_modules": value if isinstance(value, list) else []}
    hint = describe_adapters(data.get("adapter"), data)
    return f"{hint}; {ALL_LINEAR}" if word in ALL_LINEAR_KEYS and is_all else hint


def describe_adapters(value: Any, data: Any) -> str:
    """Return the converter that stands for a section of adapters, or for the name of some."""
    known = collect_adapter_settings(value) or collect_adapter_settings(data)
    is_quantized = value == "qlora" or any(data.get(key) for key in QUANTIZED)
    return format_converter(known, "qlora" if is_quantized else "lora")


def collect_adapter_settings(data: Any) -> dict[str, Any]:
    """Return the settings of adapters in a mapping by their names here."""
    written = data if isinstance(data, dict) else {}
    known = {to_word(str(key)): value for key, value in written.items()}
    found = {ADAPTER_KEYS[key]: value for key, value in known.items() if key in ADAPTER_KEYS}
    if found.get("target_modules") in ALL_LINEAR_WORDS:
        del found["target_modules"]  # the default
    return found


def format_converter(settings: Mapping[str, Any], name: str = "lora") -> str:
    """Return the hint that names a converter of adapters."""
    known = dict(settings or USUAL_ADAPTER)
    also = "; with magnitude there is no dropout" if known.get("magnitude") else ""
    dropped = also and known.pop("dropout", None)
    converter = to_flow_yaml({"name": name, **known})
    return f"adapters are a converter: write converters: [{converter}]{also if dropped else ''}"


def format_listed_adapters(path: DataPath, data: Any) -> str:
    """Return the list of one converter for a mapping of adapters in its place, else empty text."""
    value = find_value(data, path)
    if path != ("converters",) or not isinstance(value, dict):
        return ""
    named, settings = value.get("name"), value
    if len(value) == 1 and "name" not in value:
        named, inside = next(iter(value.items()))
        settings = inside if isinstance(inside, dict) else {}
    if named not in ("qlora", *ADAPTER_SECTIONS):
        return ""
    own = {key: one for key, one in settings.items() if key in QloraConfig.model_fields}
    converter = {"name": named, **own, **collect_adapter_settings(settings)}
    converter["name"] = named if named == "qlora" else "lora"
    return f"write [{to_flow_yaml(converter)}]"


def describe_quantized(value: Any, data: Any) -> str:
    """Return the converter of adapters with weights in 4 bits."""
    return describe_adapters("qlora", data) if value is not False else NO_QUANTIZATION


def describe_eight_bits(value: Any, data: Any) -> str:
    """Return the converter of adapters with weights in 8 bits."""
    if value is False:
        return NO_QUANTIZATION
    settings = collect_adapter_settings(data) or USUAL_ADAPTER
    return format_converter({**settings, "base": "int8"}, "qlora")


def describe_bits(value: Any, data: Any) -> str:
    """Return the converter of adapters with weights of a width."""
    return describe_eight_bits(value, data) if value == 8 else describe_quantized(True, data)


def describe_finetuning(value: Any, data: Any) -> str:
    """Return what trains adapters, or all weights."""
    return ALL_WEIGHTS if value == "full" else describe_adapters(value, data)


def describe_dora(value: Any, _: Any) -> str:
    """Return the converter of adapters with magnitudes."""
    return format_converter({**USUAL_ADAPTER, **collect_adapter_settings(value), "magnitude": True})


QUANTIZED = ("load_in_4bit", "qlora")
SECTION_MEANINGS: Mapping[str, Callable[[Any, Any], str]] = {
    **dict.fromkeys((*ADAPTER_SECTIONS, "use_peft"), describe_adapters),
    **dict.fromkeys(QUANTIZED, describe_quantized),
    "dora": describe_dora,
    "finetuning_type": describe_finetuning,
    "load_in_8bit": describe_eight_bits,
    "quantization_bit": describe_bits,
}


def to_word(name: str) -> str:
    """Return a name in the spelling of the tables."""
    return name.lower().replace("-", "_")
