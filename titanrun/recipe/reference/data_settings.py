"""Settings of a dataset as guessed from its columns, for a recipe that `titanrun init` writes."""

from collections.abc import Mapping, Sequence
from json import JSONDecoder
from pathlib import Path
from typing import Any

from titanrun.config.problems import problem_error

JSON_SUFFIXES = (".jsonl", ".json")
HEAD_CHARACTERS = 1 << 20
"""A first record is shorter than this."""
QUESTION_COLUMNS = (("prompt", "completion"), ("question", "answer"), ("input", "output"))

Columns = Mapping[str, Sequence[str]]
"""Columns of records: of a list of objects its keys, else none."""


def build_data_settings(dataset: str, data: str, *, record: str) -> dict[str, Any]:
    """Return the settings of a dataset of files on this machine.

    Args:
        dataset: Name of the dataset.
        data: File, or folder of files.
        record: What the files must hold, for a message.

    Raises:
        ProblemsFound: If there is no such file or folder.
    """
    if not Path(data).exists():
        raise problem_error("file", f"file not found: '{data}'", hint=f"use {record}")
    return {"name": dataset, "path": data, **guess_layout(dataset, read_columns(Path(data)))}


def guess_layout(dataset: str, columns: Columns) -> dict[str, Any]:
    """Return the settings that name the columns of conversations, none where defaults apply."""
    if dataset != "chat" or "messages" in columns:
        return {}
    listed = [name for name, keys in columns.items() if {"role", "content"} <= set(keys)]
    shared = [name for name, keys in columns.items() if {"from", "value"} <= set(keys)]
    if listed:
        return {"column": listed[0]}
    if shared:
        column = {} if shared[0] == "conversations" else {"column": shared[0]}
        return {"layout": "sharegpt", **column}
    if {"instruction", "output"} <= set(columns):
        return {"layout": "alpaca"}
    for prompt, completion in QUESTION_COLUMNS:
        if {prompt, completion} <= set(columns):
            is_usual = (prompt, completion) == QUESTION_COLUMNS[0]
            names = {} if is_usual else {"prompt_column": prompt, "completion_column": completion}
            return {"layout": "prompt_completion", **names}
    return {}


def read_columns(path: Path) -> Columns:
    """Return the columns of the first record of JSON files, none of what is something else."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    named = [file for file in files if file.suffix in JSON_SUFFIXES]
    record = read_first_record(named[0]) if named else None
    if not isinstance(record, dict):
        return {}
    return {name: list_keys(value) for name, value in record.items()}


def read_first_record(path: Path) -> object:
    """Return the first record of JSON lines or of a JSON list, None if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            head = file.read(HEAD_CHARACTERS).lstrip()
        start = head.removeprefix("[").lstrip() if path.suffix == ".json" else head
        record: object = JSONDecoder().raw_decode(start)[0]
    except (OSError, ValueError, RecursionError):
        return None
    return record


def list_keys(value: object) -> list[str]:
    """Return the keys of the first object of a list, none of another value."""
    first = value[0] if isinstance(value, list) and value else None
    return list(first) if isinstance(first, dict) else []


def build_hub_settings(
    dataset: str, repository: str, *, revision: str | None, card: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a dataset on the Hub, by what its card says.

    Args:
        dataset: Name of the dataset in the recipe.
        repository: OWNER/NAME.
        revision: Commit to write, None to leave it to the first run.
        card: Metadata of the dataset's card, empty where it is not known.
    """
    subset = choose_subset(list_subsets(card))
    info = find_subset_info(card, subset)
    split = choose_split(list_splits(card, info, subset), dataset)
    settings: dict[str, Any] = {"name": dataset, "repo": repository}
    settings |= {} if subset in (None, "default") else {"subset": subset}
    settings |= {} if split in (None, "train") else {"split": split}
    settings |= {} if revision is None else {"revision": revision}
    return settings | guess_layout(dataset, list_feature_columns(info))


def list_subsets(card: Mapping[str, Any]) -> list[str]:
    """Return the names of the subsets that a card lists."""
    return [str(one["config_name"]) for one in list_mappings(card, "configs", "config_name")]


def list_mappings(card: Mapping[str, Any], key: str, *needed: str) -> list[Mapping[str, Any]]:
    """Return the mappings at a key of a card, a single one as a list, which have all keys."""
    found = card.get(key)
    items = found if isinstance(found, list) else [found]
    return [item for item in items if isinstance(item, dict) and set(needed) <= set(item)]


def choose_subset(subsets: Sequence[str]) -> str | None:
    """Return the subset to train on: the default one, else the first."""
    return "default" if "default" in subsets else next(iter(subsets), None)


def find_subset_info(card: Mapping[str, Any], subset: str | None) -> Mapping[str, Any]:
    """Return what a card says about the records of a subset, empty if nothing."""
    infos = list_mappings(card, "dataset_info")
    named = [one for one in infos if subset is None or one.get("config_name", subset) == subset]
    return named[0] if named else {}


def list_splits(card: Mapping[str, Any], info: Mapping[str, Any], subset: str | None) -> list[str]:
    """Return the names of the splits that a card lists for a subset."""
    described = [str(one["name"]) for one in list_mappings(info, "splits", "name")]
    configs = list_mappings(card, "configs", "config_name")
    chosen = [one for one in configs if one["config_name"] == subset]
    listed = [
        str(file["split"]) for one in chosen for file in list_mappings(one, "data_files", "split")
    ]
    return described or listed


def choose_split(splits: Sequence[str], dataset: str) -> str | None:
    """Return the split to train on: `train`, else one for the kind of data, else a train_ one."""
    wanted = "train_prefs" if dataset == "preference" else "train_sft"
    train = [split for split in splits if split.startswith("train")]
    return next((name for name in ("train", wanted) if name in train), next(iter(train), None))


def list_feature_columns(info: Mapping[str, Any]) -> Columns:
    """Return the columns that a card describes."""
    return {
        str(one["name"]): [str(key["name"]) for key in list_mappings(one, "list", "name")]
        for one in list_mappings(info, "features", "name")
    }
