"""Settings of a dataset as guessed from its columns, for a recipe that `titanrun init` writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.stream_config import CONVERSATION_SUFFIXES
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.reference.column_guess import ColumnGuess, guess_columns
from titanrun.recipe.reference.data_columns import ColumnContent, Columns, read_columns

TEXT_DTYPES = ("string", "large_string")
HINTS = {
    "chat": "name two of them prompt and completion, or write messages, a list of role and content",
    "preference": "name them prompt, chosen and rejected",
    "labelled": "name them prompt, completion and label",
}


def build_data_settings(
    dataset: str, data: str, *, record: str
) -> tuple[dict[str, Any], ColumnGuess]:
    """Return the settings of a dataset of files on this machine, and the guess behind them.

    Args:
        dataset: Name of the dataset.
        data: File, or folder of files.
        record: What the files must hold, for a message.

    Raises:
        ProblemsFound: If there is no such file or folder, or its columns do not suit the dataset.
    """
    if not Path(data).exists():
        raise problem_error("file", f"file not found: '{data}'", hint=f"use {record}")
    file = resolve_data_files(data, CONVERSATION_SUFFIXES)[0]
    columns = read_columns(file)
    # a damaged file is left to validate, which says where
    guess = guess_columns(dataset, columns) if columns else ColumnGuess()
    if guess is None:
        raise unsuitable_columns_error(dataset, file, columns, record)
    return {"name": dataset, "path": data, **guess.settings}, guess


def unsuitable_columns_error(
    dataset: str, file: Path, columns: Columns, record: str
) -> ProblemsFound:
    """Build the problem of a file whose columns do not suit a dataset."""
    hint = HINTS[dataset]
    if dataset == "chat" and "text" in columns:
        hint += "; plain texts are for kind pretrain: titanrun cp continue_pretraining_lora"
    elif file.suffix.lower() == ".csv":
        if len(columns) == 1 and any(mark in next(iter(columns)) for mark in ";\t"):
            hint = "separate the columns by commas"
        elif "messages" in columns or "conversations" in columns:
            hint = "csv holds no lists of messages: save the data as jsonl or parquet"
    return problem_error(
        "data",
        f"'{file}' has the columns {', '.join(columns)}, none of which suit {record}",
        hint=hint,
    )


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
    guess = guess_columns(dataset, list_feature_columns(info))
    # a card may be incomplete
    return settings if guess is None else {**settings, **guess.settings}


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
        str(one["name"]): ColumnContent(
            tuple(str(key["name"]) for key in list_mappings(one, "list", "name")),
            one.get("dtype") in TEXT_DTYPES,
        )
        for one in list_mappings(info, "features", "name")
    }
