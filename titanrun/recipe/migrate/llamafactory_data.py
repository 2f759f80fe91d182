"""Conversion of LLaMA-Factory's datasets, as its dataset_info.json describes them."""

from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.recipe.migrate.key_mapping import ConvertedValue, SourceKey, SourceValues
from titanrun.recipe.migrate.llamafactory_model import is_native_model

TARGET = "training.dataset"
INFO_FILE = "dataset_info.json"
NOT_FOUND = (
    "{} was not found from here: check path and layout, and the names of columns where they differ"
)
ALPACA_PAIRS = "the prompt is the column {}; text of a column `input` belongs into it"
FIRST = "of several datasets the first is carried over; write the others under a dataset: mixture"
# templates that write the same text
SAME_TEMPLATES = {
    "llama3": "llama3",
    "qwen": "qwen2_5",
    "qwen3_nothink": "qwen3_instruct",
}
OTHER_TEMPLATES = {
    "qwen3": ("qwen3", "with a block of thoughts, also an empty one, in every reply"),
    "gemma3": ("gemma3", "texts are trimmed"),
    "phi": ("phi3", "with an end token after the last turn"),
}
OWN_TEMPLATE = (
    "the template in the model's folder is used: if it differs from LLaMA-Factory's, save "
    "LLaMA-Factory's as a file and name it in tokenizer.chat_template"
)


def list_datasets(values: SourceValues) -> list[str]:
    """Return the names of the datasets."""
    named = values.get("dataset")
    parts = named if isinstance(named, list) else str(named or "").split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def read_dataset_info(values: SourceValues) -> dict[str, Any] | None:
    """Return what dataset_info.json says of the first dataset; None if it cannot be read."""
    names = list_datasets(values)
    try:
        data = parse_json(get_info_path(values).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = data.get(names[0]) if isinstance(data, dict) and names else None
    return found if isinstance(found, dict) else None


def get_info_path(values: SourceValues) -> Path:
    """Return the path of the file that describes the datasets."""
    return Path(str(values.get("dataset_dir") or "data")) / INFO_FILE


def convert_dataset(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map the first dataset by the stage and by its entry in dataset_info.json."""
    names = list_datasets(values)
    if not names:
        return ConvertedValue({}, refused="no dataset is named")
    info = read_dataset_info(values)
    how = [FIRST] if len(names) > 1 else []
    how += [NOT_FOUND.format(get_info_path(values))] if info is None else []
    targets, note = build_dataset_values(names[0], info or {}, values)
    return ConvertedValue(
        {f"{TARGET}.{key}": meant for key, meant in targets.items()},
        how="; ".join([*how, *([note] if note else [])]),
    )


def build_dataset_values(
    name: str, info: dict[str, Any], values: SourceValues
) -> tuple[dict[str, Any], str]:
    """Return the dataset section for an entry, and what changes in meaning."""
    columns = info.get("columns") or {}
    is_chat = info.get("formatting") == "sharegpt"
    first = "messages" if is_chat else "prompt"
    asked = columns.get(first, "conversations" if is_chat else "instruction")
    place = locate_dataset(name, info, values)
    stage = values.get("stage")
    how = "" if is_chat or stage in ("pt", "sft") else ALPACA_PAIRS.format(asked)
    if stage == "pt":
        return {"name": "text", "column": columns.get("prompt", "text"), **place}, how
    if stage in ("dpo", "rm"):
        sides = {side: columns.get(side, side) for side in ("chosen", "rejected")}
        pairs = {f"{side}_column": column for side, column in sides.items()}
        return {"name": "preference", "prompt_column": asked, **pairs, **place}, how
    if stage == "kto":
        labels = {
            "completion_column": columns.get("response", "output"),
            "label_column": columns.get("kto_tag", "kto_tag"),
        }
        return {"name": "labelled", "prompt_column": asked, **labels, **place}, how
    if not is_chat:
        return {"name": "chat", "layout": "alpaca", **place}, how
    is_messages = (info.get("tags") or {}).get("role_tag") == "role"
    layout = "messages" if is_messages else "sharegpt"
    return {"name": "chat", "layout": layout, "column": asked, **place}, how


def locate_dataset(name: str, info: dict[str, Any], values: SourceValues) -> dict[str, Any]:
    """Return the keys that say where a dataset is: a file, or a repository of the Hub."""
    if "hf_hub_url" in info:
        subset = {"subset": info["subset"]} if info.get("subset") else {}
        split = {"split": info["split"]} if info.get("split") else {}
        return {"repo": info["hf_hub_url"], **subset, **split}
    folder = str(values.get("dataset_dir") or "data")
    return {"path": f"{folder}/{info.get('file_name', f'{name}.json')}"}


def convert_template(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Name the template of the same format; else use the one in the model's folder."""
    if str(value) in SAME_TEMPLATES:
        return ConvertedValue({"tokenizer.chat_template": SAME_TEMPLATES[str(value)]})
    if str(value) in OTHER_TEMPLATES:
        name, how = OTHER_TEMPLATES[str(value)]
        return ConvertedValue({"tokenizer.chat_template": name}, how=how)
    return ConvertedValue({}, how="" if value is None else f"left out: {OWN_TEMPLATE}")


def convert_llamafactory_packing(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Pack conversations into sequences in which they do not attend to each other."""
    if not value or values.get("stage") != "sft":
        return ConvertedValue({})
    if not is_native_model(values):
        return ConvertedValue(
            {},
            refused="a transformers model attends to the whole sequence: each conversation is a "
            "separate sequence",
        )
    how = "" if values.get("neat_packing") else "conversations do not attend to each other"
    return ConvertedValue(
        {f"{TARGET}.packing": "best_fit", "model.attention.mask": "block_causal"}, how=how
    )


def convert_cutoff(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the length of sequences; longer conversations are cut, longer pairs dropped."""
    targets = {"training.seq_len": value}
    if values.get("stage") == "sft":
        return ConvertedValue({**targets, f"{TARGET}.too_long": "cut"})
    how = "" if values.get("stage") == "pt" else "what is longer is dropped, not cut"
    return ConvertedValue(targets, how=how)


def make_trained_turns_conversion(meant: str) -> Any:
    """Return a conversion of a switch to what is trained on."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set what the loss counts if the switch is on."""
        is_read = value and values.get("stage") == "sft"
        return ConvertedValue({f"{TARGET}.train_on": meant} if is_read else {})

    return convert
