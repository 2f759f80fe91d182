"""Conversion of axolotl's formats of preference pairs, such as chatml.intel."""

from pathlib import Path
from typing import Any

from titanrun.components.data.spec.data_files import get_data_suffix
from titanrun.recipe.migrate.key_mapping import (
    DATA_SUFFIXES,
    ConvertedValue,
    SourceValues,
)
from titanrun.recipe.reference.data_columns import COLUMN_READERS, read_columns

DATASET_TARGET = "training.dataset"
MESSAGE_FORMATS = ("chat_template", "chat_template.default")
WHOLE_CONVERSATIONS = "argilla_chat"
"""Format in which both replies are whole conversations, without a system text beside them."""
ORPO_FORMAT = "chat_template.argilla"
"""Such a format by its name for orpo."""
PROMPTED_FORMATS: dict[str, dict[str, str]] = {
    "argilla": {
        "prompt": "instruction",
        "chosen": "chosen_response",
        "rejected": "rejected_response",
    },
    "icr": {"prompt": "input"},
    "intel": {"prompt": "question"},
    "prompt_pairs": {},
    "ultra": {},
}
"""Columns of each format of prompted replies, where they are not prompt, chosen and rejected."""
TEMPLATES = ("chatml", "llama3")
"""Templates that a format may begin with, by the same names here."""
UNKNOWN_PAIRS = (
    "not a supported format of pairs: use chat_template.default, or chatml or llama3 with "
    f"{', '.join((*PROMPTED_FORMATS, WHOLE_CONVERSATIONS))}, such as chatml.intel"
)
UNKNOWN_LABELLED = (
    "not a supported format of labelled replies: use chatml or llama3 with "
    f"{', '.join(one for one in PROMPTED_FORMATS if one != 'icr')}, such as chatml.ultra"
)
SYSTEM = "system"
"""Column of a system text, which axolotl reads if there is one."""


def convert_axolotl_pairs(kind: str, values: SourceValues, place: dict[str, Any]) -> ConvertedValue:
    """Return the columns of pairs, and the chat template that their format implies.

    Args:
        kind: Format of the dataset in axolotl.
        values: All keys of the configuration.
        place: Settings that say where the data are.
    """
    named = {f"{DATASET_TARGET}.name": "preference", **place}
    if kind in MESSAGE_FORMATS:
        columns = {"prompt": "messages", "chosen": "chosen", "rejected": "rejected"}
        return ConvertedValue({**named, **name_pair_columns(columns, values)})
    template, _, style = kind.partition(".")
    is_whole = style == WHOLE_CONVERSATIONS or (kind == ORPO_FORMAT and values.get("rl") == "orpo")
    is_known = template in TEMPLATES and style in PROMPTED_FORMATS
    if not is_known and not (is_whole and template in (*TEMPLATES, "chat_template")):
        return ConvertedValue(named, refused=UNKNOWN_PAIRS)
    columns = {} if is_whole else PROMPTED_FORMATS.get(style, {})
    named |= {f"{DATASET_TARGET}.{column}_column": name for column, name in columns.items()}
    if not is_whole and has_system_column(place) is not False:
        named[f"{DATASET_TARGET}.system_column"] = SYSTEM
    return add_template(template, values, named)


def convert_axolotl_labelled(
    kind: str, values: SourceValues, place: dict[str, Any]
) -> ConvertedValue:
    """Return the columns of labelled replies, and the chat template that their format implies."""
    named = {f"{DATASET_TARGET}.name": "labelled", **place}
    template, _, style = kind.partition(".")
    if template not in TEMPLATES or style not in PROMPTED_FORMATS or style == "icr":
        return ConvertedValue(named, refused=UNKNOWN_LABELLED)
    prompt = PROMPTED_FORMATS[style].get("prompt")
    named |= {f"{DATASET_TARGET}.prompt_column": prompt} if prompt else {}
    if has_system_column(place) is not False:
        named[f"{DATASET_TARGET}.system_column"] = SYSTEM
    return add_template(template, values, named)


def add_template(template: str, values: SourceValues, named: dict[str, Any]) -> ConvertedValue:
    """Return the settings with the chat template that begins the name of a format."""
    if template not in TEMPLATES:
        return ConvertedValue(named)
    if values.get("chat_template") is None:
        return ConvertedValue({**named, "tokenizer.chat_template": template})
    is_same = values["chat_template"] == template
    how = "" if is_same else f"formatted by chat_template, which axolotl replaces by {template}"
    return ConvertedValue(named, how=how)


def name_pair_columns(columns: dict[str, str], values: SourceValues) -> dict[str, Any]:
    """Return the settings of the columns of messages, which keys of the dataset may name."""
    keys = {"prompt": "messages"}
    return {
        f"{DATASET_TARGET}.{column}_column": values.get(
            f"datasets.field_{keys.get(column, column)}"
        )
        or usual
        for column, usual in columns.items()
    }


def has_system_column(place: dict[str, Any]) -> bool | None:
    """Return whether records have a system text, None of data that are not in a file here."""
    file = Path(str(place.get(f"{DATASET_TARGET}.path") or ""))
    if file.suffix not in DATA_SUFFIXES or not file.is_file():
        return None
    if get_data_suffix(file) not in COLUMN_READERS:
        return None
    return SYSTEM in read_columns(file)
