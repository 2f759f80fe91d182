"""Conversion of LLaMA-Factory's datasets, as its dataset_info.json describes them."""

import re
from pathlib import Path
from typing import Any

from titanrun.components.tokenizers.spec.named_templates import TEMPLATE_TOKENS
from titanrun.components.tokenizers.spec.tokenizer_files import (
    TOKENIZER_JSON,
    load_chat_template_text,
)
from titanrun.config.json_text import parse_json
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.recipe.migrate.key_mapping import (
    ONE_HELD_OUT,
    ConvertedValue,
    SourceKey,
    SourceValues,
    hold_out_dataset,
)
from titanrun.recipe.migrate.llamafactory_model import is_native_model
from titanrun.recipe.reference.source_weights import count_records, list_source_files

TARGET = "training.dataset"
INFO_FILE = "dataset_info.json"
CHECK_LAYOUT = "check path and layout, and the names of columns where they differ"
NOT_FOUND = f"{{}} was not found from here: {CHECK_LAYOUT}"
NOT_READ = f"{{}} is no JSON file with an entry for each dataset: {CHECK_LAYOUT}"
ALPACA_PAIRS = (
    "the prompt is the column {}, without the text of a column `input`: if there is some, append "
    "it to the prompts in the files"
)
FEWER_RECORDS = "take fewer records: remove the others from the files"
PART_OF_SPLIT = "take fewer records: set training.dataset.split: {}"
UNREAD = "{} of its entry in dataset_info.json {} not carried over: {}"
REWRITE = "write the files anew without them"
# columns and tags that dataset chat reads without being told
ALPACA_COLUMNS = {"prompt": "instruction", "query": "input", "response": "output"}
SHAREGPT_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}
MESSAGE_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}
ROLE_TAG, SYSTEM, TOOLS = "role_tag", "system", "tools"
UNREAD_COLUMNS = ("history", "images", "videos", "audios")
FIRST = "the first of several datasets"
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
# templates of the same format by other names, which may write other white space or system texts
SAME_NAMES = {"deepseek3": "deepseek_v3", "gemma": "gemma3", "gpt": "gpt_oss"}
TEMPLATE_TARGET = "tokenizer.chat_template"
NAMED_TEMPLATE = (
    "the model's folder has no template, so that titanrun's of that name is used: compare its text "
    "with LLaMA-Factory's"
)
NO_TEMPLATE = (
    "the model's folder has no template, and none here has that name: save LLaMA-Factory's as a "
    "file and name it in tokenizer.chat_template"
)
OWN_TEMPLATE = (
    "the template in the model's folder is used: if it differs from LLaMA-Factory's, save "
    "LLaMA-Factory's as a file and name it in tokenizer.chat_template"
)


def list_datasets(values: SourceValues) -> list[str]:
    """Return the names of the datasets."""
    named = values.get("dataset")
    parts = named if isinstance(named, list) else str(named or "").split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def read_info_file(values: SourceValues) -> dict[str, Any] | None:
    """Return the entries of dataset_info.json by name; None if it cannot be read."""
    try:
        data = parse_json(get_info_path(values).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def read_dataset_info(values: SourceValues) -> dict[str, Any] | None:
    """Return what dataset_info.json says of the first dataset; None if it says nothing."""
    names = list_datasets(values)
    found = (read_info_file(values) or {}).get(names[0]) if names else None
    return found if isinstance(found, dict) else None


def describe_unread_file(values: SourceValues) -> str:
    """Return that dataset_info.json is not there, or has another form."""
    path = get_info_path(values)
    return (NOT_READ if path.exists() else NOT_FOUND).format(path)


def describe_missing_name(name: str, entries: dict[str, Any], values: SourceValues) -> str:
    """Return that dataset_info.json has no such dataset, with a near name or those it has."""
    near = find_closest(name, entries)
    names = f"it has {format_word_list(sorted(entries), conjunction='and') or 'none'}"
    hint = f"did you mean '{near}'?" if near else names
    return f"{get_info_path(values)} has no dataset '{name}': {hint}"


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
    entries = read_info_file(values)
    how += [describe_unread_file(values)] if entries is None else []
    targets, note = build_dataset_values(names[0], info or {}, values)
    unread = list_unread_keys(info or {}, values.get("stage"))
    said = UNREAD.format(", ".join(unread), "is" if len(unread) == 1 else "are", REWRITE)
    is_missing = info is None and entries is not None
    missing = describe_missing_name(names[0], entries or {}, values) if is_missing else ""
    return ConvertedValue(
        {f"{TARGET}.{key}": meant for key, meant in targets.items()},
        how="; ".join([*how, *([note] if note else [])]),
        refused=missing or (said if unread else ""),
    )


def convert_evaluation_dataset(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Name the held-out records of one dataset, in the format of the stage."""
    own = {**values, "dataset": value}
    if not value:
        return ConvertedValue({})
    if len(list_datasets(own)) > 1:
        return ConvertedValue({}, refused=ONE_HELD_OUT)
    return hold_out_dataset(convert_dataset(key, value, own), TARGET)


def list_unread_keys(info: dict[str, Any], stage: Any) -> list[str]:
    """Return the keys of an entry of dataset_info.json whose records would be read otherwise."""
    columns, tags = info.get("columns") or {}, info.get("tags") or {}
    is_chat = info.get("formatting") == "sharegpt"
    unread = [key for key in UNREAD_COLUMNS if columns.get(key)]
    # conversations have their tools in a column of this name
    if columns.get(TOOLS) and not (is_chat and columns[TOOLS] == TOOLS):
        unread.append(TOOLS)
    if columns.get(SYSTEM) and not is_system_read(stage, columns):
        unread.insert(0, SYSTEM)
    if not is_chat and stage not in ("pt", "dpo", "rm", "kto"):
        unread += [key for key, name in ALPACA_COLUMNS.items() if columns.get(key, name) != name]
    usual = MESSAGE_TAGS if tags.get(ROLE_TAG) == MESSAGE_TAGS[ROLE_TAG] else SHAREGPT_TAGS
    other_tags = [key for key, tag in usual.items() if is_chat and tags.get(key, tag) != tag]
    return [
        *(f"columns.{key}" for key in unread),
        *(f"tags.{key}" for key in other_tags),
        *(["num_samples"] if info.get("num_samples") else []),
    ]


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
    place |= {"system_column": columns["system"]} if is_system_read(stage, columns) else {}
    how = "" if is_chat or stage in ("pt", "sft") else ALPACA_PAIRS.format(asked)
    if stage == "pt":
        return {"name": "text", "column": columns.get("prompt", "text"), **place}, how
    if stage in ("dpo", "rm"):
        sides = {side: columns.get(side, side) for side in ("chosen", "rejected")}
        pairs = {f"{side}_column": column for side, column in sides.items()}
        return {"name": "preference", "prompt_column": asked, **pairs, **place}, how
    if stage == "kto":
        label = {"label_column": columns.get("kto_tag", "kto_tag")}
        if is_chat:  # the last message is the reply
            return {"name": "labelled", "completion_column": asked, **label, **place}, how
        reply = {"completion_column": columns.get("response", "output")}
        return {"name": "labelled", "prompt_column": asked, **reply, **label, **place}, how
    if not is_chat:
        return {"name": "chat", "layout": "alpaca", **place}, how
    is_messages = (info.get("tags") or {}).get("role_tag") == "role"
    layout = "messages" if is_messages else "sharegpt"
    return {"name": "chat", "layout": layout, "column": asked, **place}, how


def is_system_read(stage: Any, columns: dict[str, Any]) -> bool:
    """Return whether a system text has a column of its own which the dataset of a stage reads."""
    return stage != "pt" and bool(columns.get("system"))


def locate_dataset(name: str, info: dict[str, Any], values: SourceValues) -> dict[str, Any]:
    """Return the keys that say where a dataset is: a file, or a repository of the Hub."""
    if "hf_hub_url" in info:
        subset = {"subset": info["subset"]} if info.get("subset") else {}
        split = {"split": info["split"]} if info.get("split") else {}
        return {"repo": info["hf_hub_url"], **subset, **split}
    # an absolute file_name stays, as in LLaMA-Factory
    file = Path(
        str(values.get("dataset_dir") or "data"), str(info.get("file_name", f"{name}.json"))
    )
    return {"path": file.as_posix()}


def convert_template(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Name the template of the same format; else use the one in the model's folder.

    A folder without one takes the template of the same name, if there is one.
    """
    written = str(value)
    if written in SAME_TEMPLATES:
        return ConvertedValue({TEMPLATE_TARGET: SAME_TEMPLATES[written]})
    if written in OTHER_TEMPLATES:
        name, how = OTHER_TEMPLATES[written]
        return ConvertedValue({TEMPLATE_TARGET: name}, how=how)
    if value is None:
        return ConvertedValue({})
    if not lacks_template(Path(str(values.get("model_name_or_path") or ""))):
        return ConvertedValue({}, how=f"left out: {OWN_TEMPLATE}")
    name = SAME_NAMES.get(written, written)
    if name in TEMPLATE_TOKENS:
        return ConvertedValue({TEMPLATE_TARGET: name}, how=NAMED_TEMPLATE)
    return ConvertedValue({}, refused=NO_TEMPLATE)


def lacks_template(folder: Path) -> bool:
    """Return whether a folder is here and has a tokenizer without a chat template."""
    if not (folder / TOKENIZER_JSON).is_file():
        return False
    try:
        load_chat_template_text(folder)
    except ProblemsFound:
        return True
    return False


def convert_sample_limit(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set max_rows of each dataset as a source of a mixture; refuse it if they cannot be one."""
    if not value:
        return ConvertedValue({})
    info, names = read_dataset_info(values) or {}, list_datasets(values)
    if "hf_hub_url" not in info:
        place = locate_dataset(names[0], info, values) if names else {}
        found = count_records(list_source_files(place))
        if isinstance(value, int) and 0 < found <= value:
            return ConvertedValue({}, how=f"left out: the data have {pluralize(found, 'record')}")
        return ConvertedValue({}, refused=FEWER_RECORDS)
    split = re.split(r"[\[+]", str(info.get("split") or "train"))[0]
    part = to_flow_yaml(f"{split}[:{value}]")
    return ConvertedValue({}, refused=PART_OF_SPLIT.format(part))


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
