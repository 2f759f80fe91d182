"""What records of a dataset hold, as words for comments and messages of `titanrun init`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.data_files import get_data_suffix
from titanrun.config.suggest import format_word_list

TABLES = (".csv", ".parquet")
TEXT_DATASETS = ("text", "hub")
"""Datasets of plain texts: of files, and of the Hub."""
ROLES = {
    "preference": ("prompt", "chosen", "rejected"),
    "labelled": ("prompt", "completion", "label"),
}


def describe_records(dataset: Mapping[str, Any]) -> str:
    """Return what records hold: `lines of {"prompt", ...}`, or the columns of a table.

    Args:
        dataset: Settings of a dataset of texts, conversations or replies, with `path` or `repo`.
    """
    if "path" in dataset and get_data_suffix(Path(str(dataset["path"]))) == ".txt":
        return "a file is one text"
    is_table = "repo" in dataset or get_data_suffix(Path(str(dataset["path"]))) in TABLES
    if dataset["name"] in TEXT_DATASETS:
        text = dataset.get("column") or "text"
        return f"column {text}" if is_table else f'lines of {{"{text}": "..."}}'
    if dataset["name"] == "chat":
        listed = dataset.get("column") or "messages"
        return f"column {listed}" if is_table else f'lines of {{"{listed}": [...]}}'
    roles = ROLES["preference" if dataset.get("from_pairs") else str(dataset["name"])]
    names = [str(dataset.get(f"{role}_column", role)) for role in roles]
    if is_table:
        return f"columns {format_word_list(names, conjunction='and')}"
    return f"lines of {{{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}}}"
