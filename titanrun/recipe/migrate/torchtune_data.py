"""Conversion of torchtune's datasets."""

import re
from typing import Any

from titanrun.recipe.migrate.key_mapping import (
    FILES_HAVE_NONE,
    OTHER_RECORDS,
    ConvertedValue,
    KeyCondition,
    SourceKey,
    SourceValues,
    is_hub_name,
)
from titanrun.recipe.migrate.torchtune_model import has_native_family

ALPACA = (
    "without torchtune's Alpaca prompt text: the model's chat template formats instruction and "
    "input"
)
TEMPLATED = "without torchtune's own prompt: the model's chat template formats the user's text"
CHATS: dict[str, tuple[str, str, bool, str]] = {
    "alpaca_dataset": ("alpaca", "tatsu-lab/alpaca", True, ALPACA),
    "alpaca_cleaned_dataset": ("alpaca", "yahma/alpaca-cleaned", True, ALPACA),
    "chat_dataset": ("messages", "", False, ""),
    "instruct_dataset": ("prompt_completion", "", False, ""),
    "slimorca_dataset": ("sharegpt", "Open-Orca/SlimOrca-Dedup", False, ""),
    "grammar_dataset": ("prompt_completion", "liweili/c4_200m", False, TEMPLATED),
    "samsum_dataset": ("prompt_completion", "Samsung/samsum", False, TEMPLATED),
}
"""Default layout, source and train_on_input of each builder, and what changes."""
TEXTS = {
    "text_completion_dataset": ("", "text"),
    "cnn_dailymail_articles_dataset": ("ccdv/cnn_dailymail", "article"),
    "wikitext_dataset": ("EleutherAI/wikitext_document_level", "page"),
}
PAIRS = {
    "preference_dataset": ("", {}),
    "stack_exchange_paired_dataset": (
        "lvwerra/stack-exchange-paired",
        {"prompt": "question", "chosen": "response_j", "rejected": "response_k"},
    ),
    "hh_rlhf_helpful_dataset": ("RLHFlow/HH-RLHF-Helpful-standard", {}),
}
COLUMNS = {
    "instruct_dataset": {"input": "prompt", "output": "completion"},
    "grammar_dataset": {"input": "input", "output": "output"},
    "samsum_dataset": {"input": "dialogue", "output": "summary"},
}
STYLES = {"sharegpt": "sharegpt", "openai": "messages"}
FILE_TYPES = ("json", "csv", "parquet", "arrow", "text")
DATASET_TARGET = "training.dataset"
NO_CHAT = "titanrun has no such dataset: provide conversations or text in files"
MANY_FILES = "several files: move them to one folder, or name them with a glob"
ONE_SAMPLE_PER_SEQUENCE = (
    "a transformers model attends to the whole sequence: each conversation is a separate sequence"
)
BLOCKS = {"model.attention.mask": "block_causal"}

TEXT = KeyCondition(
    "dataset._component_",
    lambda value: str(value).rpartition(".")[2] in TEXTS,
    "torchtune.datasets.text_completion_dataset",
    "for texts",
)


def get_dataset_builder(values: SourceValues) -> str:
    """Return the last word of the builder of the dataset."""
    return str(values.get("dataset._component_") or "").rpartition(".")[2]


def convert_torchtune_dataset(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map conversations to chat, texts to text, pairs to preference.

    Sequences that are too long are cut, as in torchtune.
    """
    kind = get_dataset_builder(values)
    if kind in CHATS:
        layout, source, _trained, how = CHATS[kind]
        style = values.get("dataset.conversation_style")
        layout = STYLES.get(str(style), layout) if kind == "chat_dataset" else layout
        named = {
            f"{DATASET_TARGET}.name": "chat",
            f"{DATASET_TARGET}.layout": layout,
            f"{DATASET_TARGET}.too_long": "cut",
            **get_torchtune_columns(kind, values),
        }
        return set_data_path(named | {"kind": "sft"}, values, source, how)
    if kind in TEXTS:
        source, column = TEXTS[kind]
        column = values.get("dataset.column") or column
        return set_data_path(
            {
                f"{DATASET_TARGET}.name": "text",
                f"{DATASET_TARGET}.column": column,
                f"{DATASET_TARGET}.add_bos": True,
            },
            values,
            source,
            "",
        )
    if kind in PAIRS:
        targets = {f"{DATASET_TARGET}.name": "preference", **get_torchtune_columns(kind, values)}
        return set_data_path(
            targets, values, PAIRS[kind][0], "a pair longer than a sequence is dropped, not cut"
        )
    return ConvertedValue(
        {f"{DATASET_TARGET}.name": "chat", f"{DATASET_TARGET}.path": "data"}, refused=NO_CHAT
    )


def get_torchtune_columns(kind: str, values: SourceValues) -> dict[str, Any]:
    """Return the columns whose names differ from titanrun's defaults."""
    written = values.get("dataset.column_map")
    renamed = written if isinstance(written, dict) else {}
    if kind in COLUMNS:
        known = {**COLUMNS[kind], **renamed}
        return {
            f"{DATASET_TARGET}.prompt_column": known["input"],
            f"{DATASET_TARGET}.completion_column": known["output"],
        }
    if kind in PAIRS:
        return {
            f"{DATASET_TARGET}.{name}_column": column
            for name, column in {**PAIRS[kind][1], **renamed}.items()
        }
    column = values.get("dataset.conversation_column")
    return {f"{DATASET_TARGET}.column": column} if kind == "chat_dataset" and column else {}


def set_data_path(
    targets: dict[str, Any], values: SourceValues, source: str, how: str
) -> ConvertedValue:
    """Return the targets with the place of the data."""
    return ConvertedValue({**targets, **locate_torchtune_data(values, source)}, how=how)


def locate_torchtune_data(values: SourceValues, otherwise: str) -> dict[str, str]:
    """Return the setting that says where the data are: files, or a dataset on the Hub."""
    source, files = values.get("dataset.source") or otherwise, values.get("dataset.data_files")
    if source in FILE_TYPES and isinstance(files, list) and len(files) == 1:
        files = files[0]
    if source in FILE_TYPES and isinstance(files, str):
        return {f"{DATASET_TARGET}.path": files}
    return {f"{DATASET_TARGET}.{'repo' if is_hub_name(str(source)) else 'path'}": str(source)}


def convert_dataset_source(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the name of a dataset on the Hub. json, csv and parquet leave it to data_files."""
    is_named = value is not None and value not in FILE_TYPES
    return ConvertedValue(locate_torchtune_data(values, "") if is_named else {})


def convert_torchtune_data_files(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the path of the data."""
    if isinstance(value, list) and len(value) > 1:
        return ConvertedValue({}, refused=MANY_FILES)
    return ConvertedValue(locate_torchtune_data(values, "") if value else {})


def convert_conversation_style(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep sharegpt; map openai to messages."""
    if value is not None and str(value) not in STYLES:
        return ConvertedValue({}, refused="supported conversation layouts: messages and sharegpt")
    return ConvertedValue(
        {f"{DATASET_TARGET}.layout": STYLES[value]}
        if value and get_dataset_builder(values) == "chat_dataset"
        else {}
    )


def convert_column_map(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the columns of prompt and completion, or of a pair."""
    kind = get_dataset_builder(values)
    if not value:
        return ConvertedValue({})
    if kind in COLUMNS or kind in PAIRS:
        return ConvertedValue(get_torchtune_columns(kind, values))
    return ConvertedValue(
        {}, refused="the columns of this layout have fixed names: rename yours in the files"
    )


def convert_torchtune_column(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the column of the text, or of the conversation."""
    return ConvertedValue({f"{DATASET_TARGET}.column": value} if value else {})


def convert_train_on(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map true to train_on: all, false to train_on: replies.

    If unset, use the builder's default.
    """
    kind = get_dataset_builder(values)
    if kind in PAIRS:
        return ConvertedValue(
            {}, refused="only the replies of a pair are compared" if value else ""
        )
    if kind not in CHATS:
        return ConvertedValue({})
    return ConvertedValue(
        {
            f"{DATASET_TARGET}.train_on": "all"
            if (CHATS[kind][2] if value is None else value)
            else "replies"
        }
    )


def convert_packing(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Pack conversations into sequences in which they do not attend to each other.

    best_fit leaves less padding than torchtune's order.
    """
    kind = get_dataset_builder(values)
    if value and not has_native_family(values):
        return ConvertedValue({}, refused=ONE_SAMPLE_PER_SEQUENCE)
    if kind in TEXTS:
        whole = values.get("dataset.split_across_pack") is False
        packing = ("best_fit" if whole else "documents") if value else None
        cut = {f"{DATASET_TARGET}.too_long": "cut"} if packing != "documents" else {}
        return ConvertedValue(
            {f"{DATASET_TARGET}.packing": packing, **cut, **(BLOCKS if value else {})}
        )
    if not value:
        return ConvertedValue({})
    return ConvertedValue(
        {f"{DATASET_TARGET}.packing": "best_fit", **BLOCKS},
        how="a sequence is filled with what fits best, in torchtune with what comes next",
    )


def convert_max_seq_len(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the length of every sequence; use 4096 if unset."""
    if value is None:
        return ConvertedValue(
            {"training.seq_len": 4096},
            how="all sequences have one length; in torchtune each batch has that of its longest",
        )
    return ConvertedValue({"training.seq_len": value})


def convert_subset(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the subset of a dataset on the Hub; files have none."""
    if value is None:
        return ConvertedValue({})
    if not is_on_hub(values):
        return ConvertedValue({}, how=FILES_HAVE_NONE)
    return ConvertedValue({f"{DATASET_TARGET}.subset": value})


def is_on_hub(values: SourceValues) -> bool:
    """Return whether the data are a dataset on the Hub; some builders name it themselves."""
    kind = get_dataset_builder(values)
    own = CHATS[kind][1] if kind in CHATS else {**PAIRS, **TEXTS}.get(kind, ("",))[0]
    return f"{DATASET_TARGET}.repo" in locate_torchtune_data(values, own)


def convert_split(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept train, and hold out what a first part of it leaves over.

    Another split, or another part of one, is one of a dataset on the Hub.
    """
    if value in (None, "train"):
        return ConvertedValue({})
    part = re.fullmatch(r"train\[:([0-9]+)%\]", str(value))
    if part is not None and 50 <= int(part[1]) < 100:
        return ConvertedValue(
            {"validation.holdout": round(1 - int(part[1]) / 100, 2)}, how=OTHER_RECORDS
        )
    if is_on_hub(values):
        return ConvertedValue({f"{DATASET_TARGET}.split": value})
    return ConvertedValue({}, refused="keep only these records in the files")
