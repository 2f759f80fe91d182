"""Settings of a dataset as guessed from its columns, for a recipe that `titanrun init` writes."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.chat_formats import text_for_messages_error
from titanrun.components.data.spec.data_files import SUFFIXES, resolve_data_files
from titanrun.components.data.stream_config import CONVERSATION_SUFFIXES
from titanrun.config.near_path import has_match, is_pattern, suggest_near_path
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.huggingface_config import find_named_repository
from titanrun.recipe.reference.column_guess import (
    TEXT_COLUMNS,
    ColumnGuess,
    find_name,
    guess_columns,
)
from titanrun.recipe.reference.data_columns import ColumnContent, Columns, read_columns
from titanrun.recipe.reference.record_words import describe_records

LISTED = ("messages", "conversations")
COLUMN_FIELDS = (
    *("layout", "column", "from_pairs", "prompt_column", "completion_column", "system_column"),
    *("chosen_column", "rejected_column", "label_column"),
)


class FittingKind(NamedTuple):
    """A kind of fine-tuning that fits some data.

    Args:
        data: what the records are.
        name: the kind, as `init` names it.
        dataset: the dataset that reads them.
        further: what else a recipe with this dataset has.
    """

    data: str
    name: str
    dataset: str
    further: str


PAIRS = FittingKind("pairs", "dpo", "preference", "a loss that compares replies")
LABELLED = FittingKind("labelled replies", "kto", "labelled", "loss kto")
CONVERSATIONS = FittingKind("conversations", "sft", "chat", "kind sft")
TEXTS = FittingKind("plain texts", "pretrain", "text", "kind pretrain")
TEXT_DTYPES = ("string", "large_string")
HINTS = {
    "text": "name the column of texts in the recipe: column: NAME",
    "chat": "name two of them in the recipe, by layout: prompt_completion with prompt_column and "
    "completion_column; or write messages, a list of role and content",
    "preference": "name them prompt, chosen and rejected",
    "labelled": "name them prompt, completion and label",
}


INIT, TEXT_SUFFIX = "titanrun init --kind", ".txt"
HUB_DATASETS = {"text": "hub"}
"""Datasets that have another name where their files are on the Hub."""


def build_data_settings(dataset: str, data: str) -> tuple[dict[str, Any], ColumnGuess]:
    """Return the settings of a dataset of files on this machine, and the guess behind them.

    Args:
        dataset: Name of the dataset.
        data: File, or folder of files.

    Raises:
        ProblemsFound: If there is no such file or folder, or its columns do not suit the dataset.
    """
    if not Path(data).exists() and not (is_pattern(data) and has_match(data)):
        hint = suggest_near_path(data) or f"use {describe_records({'name': dataset, 'path': data})}"
        if find_named_repository(data) is not None:
            hint = f"a dataset of the Hub is written as hub:{data}"
        parts = data.split(",")
        if len(parts) > 1 and all(Path(part).exists() for part in parts):
            hint = f"separate them by spaces: --data {shlex.join(parts)}"
        raise problem_error("file", f"file not found: '{data}'", hint=hint)
    file = find_first_file(data, dataset)
    columns = read_columns(file)
    # a damaged file is left to validate, which says where
    guess = guess_columns(dataset, columns) if columns else ColumnGuess()
    if guess is None:
        raise unsuitable_columns_error(dataset, file, columns)
    return {"name": dataset, "path": data, **guess.settings}, guess


def find_first_file(data: str, dataset: str = "chat") -> Path:
    """Return the first file of a path on the command line. Raise ProblemsFound if there is none."""
    try:
        return resolve_data_files(data, list_suffixes(dataset))[0]
    except ProblemsFound as error:
        hint = suggest_kind(TEXTS) if data.endswith(TEXT_SUFFIX) else None
        raise ProblemsFound(
            [replace(problem, path=(), hint=hint or problem.hint) for problem in error.problems]
        ) from None


def list_suffixes(dataset: str) -> tuple[str, ...]:
    """Return the suffixes of the files that a dataset reads."""
    return SUFFIXES if dataset == TEXTS.dataset else CONVERSATION_SUFFIXES


def suggest_kind(kind: FittingKind) -> str:
    """Return which option of `init` fits some data."""
    return f"these are {kind.data}: --kind {kind.name}"


def unsuitable_columns_error(dataset: str, file: Path, columns: Columns) -> ProblemsFound:
    """Build the problem of a file whose columns do not suit a dataset."""
    listed = find_listed_text(columns)
    if dataset == "chat" and listed is not None and file.suffix.lower() != ".csv":
        return text_for_messages_error(f"'{file}'", listed)
    meant = describe_records({"name": dataset, "path": str(file)})
    return problem_error(
        "data",
        f"'{file}' has the columns {', '.join(columns)}, none of which suit {meant}",
        hint=suggest_other_kind(columns) or suggest_for_unsuitable(dataset, file, columns),
    )


def suggest_other_kind(columns: Columns) -> str | None:
    """Return which option of `init` fits such columns, None if none fits well."""
    kind = find_fitting_kind(columns)
    return None if kind is None else suggest_kind(kind)


def suggest_other_dataset(columns: Columns) -> str | None:
    """Return what a recipe needs for such columns, None if no other dataset reads them well."""
    kind = find_fitting_kind(columns)
    return None if kind is None else f"{describe_fitting_dataset(kind)}: see {INIT} {kind.name}"


def describe_fitting_dataset(kind: FittingKind) -> str:
    """Return what some data are, and the dataset that reads them."""
    return f"these are {kind.data}, which dataset {kind.dataset} reads, with {kind.further}"


def suggest_for_text_files(data: str, model: str | None) -> str | None:
    """Return what reads text files in the place of conversations, None of other files.

    Args:
        data: File, folder or glob.
        model: Folder of the model, None if there is none.
    """
    try:
        file = resolve_data_files(data, (TEXT_SUFFIX,))[0]
        begin = file.read_bytes()[:1]
    except (ProblemsFound, OSError):
        return None
    if begin == b"{" and file.suffix == TEXT_SUFFIX:
        return f"its lines are JSON: rename it to '{file.with_suffix('.jsonl')}'"
    if model is None:
        return f"{describe_fitting_dataset(TEXTS)}: see {INIT} {TEXTS.name}"
    command = shlex.join(["--model", model, "--data", data, "-o", "texts.yaml"])
    return f"{describe_fitting_dataset(TEXTS)}: {INIT} {TEXTS.name} {command} writes that recipe"


def find_fitting_kind(columns: Columns) -> FittingKind | None:
    """Return the kind of fine-tuning whose data have such columns, None if none fits well.

    Labelled replies may be pairs, and a prompt and a completion may lack their labels.
    """
    if guess_columns("preference", columns) is not None:
        return PAIRS
    if guess_columns("labelled", columns) is not None:
        return LABELLED
    chat = guess_columns("chat", columns)
    if chat is None:
        return TEXTS if find_name(columns, TEXT_COLUMNS) is not None else None
    is_listed = chat.settings.get("layout") != "prompt_completion"
    return CONVERSATIONS if is_listed else None


def guess_kind(data: str) -> str:
    """Return the kind of `init` that fits files, sft where they do not tell."""
    try:
        kind = find_fitting_kind(read_columns(find_first_file(data)))
    except ProblemsFound:
        kind = TEXTS if data.endswith(TEXT_SUFFIX) else CONVERSATIONS
    return CONVERSATIONS.name if kind is None else kind.name


def suggest_for_unsuitable(dataset: str, file: Path, columns: Columns) -> str:
    """Return what to do about a file whose columns do not suit a dataset."""
    if file.suffix.lower() == ".csv":
        if len(columns) == 1 and any(mark in next(iter(columns)) for mark in ";\t"):
            return "separate the columns by commas"
        if find_listed_text(columns) is not None:
            return "csv holds no lists of messages: save the data as jsonl or parquet"
    return HINTS[dataset]


def find_listed_text(columns: Columns) -> str | None:
    """Return the column named as that of lists of messages which holds texts, None if none does."""
    return next(
        (name for name in LISTED if name in columns and columns[name].is_text),
        None,
    )


def suggest_columns(dataset: ChatDatasetConfig | RepliesConfig, file: Path) -> str | None:
    """Return the settings with which a dataset reads a file, as `init` would write them.

    Return None if it reads the file as they say, or if the file is damaged.
    """
    changed = guess_changes(dataset, file)
    if changed is None:
        columns = read_columns(file)
        other = suggest_other_dataset(columns)
        return other or (suggest_for_unsuitable(dataset.name, file, columns) if columns else None)
    shown = [f"{name}: {to_flow_yaml(value)}" for name, value in changed.items()]
    return f"set {format_word_list(shown, conjunction='and')}" if shown else None


def guess_changes(dataset: ChatDatasetConfig | RepliesConfig, file: Path) -> dict[str, Any] | None:
    """Return the settings to change for a dataset to read a file, None if none let it."""
    columns = read_columns(file)
    guess = guess_columns(dataset.name, columns) if columns else None
    if guess is None:
        return None
    fields = [name for name in COLUMN_FIELDS if name in type(dataset).model_fields]
    meant = {
        name: guess.settings.get(name, type(dataset).model_fields[name].default) for name in fields
    }
    return {name: value for name, value in meant.items() if value != getattr(dataset, name)}


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
    settings: dict[str, Any] = {"name": HUB_DATASETS.get(dataset, dataset), "repo": repository}
    settings |= {} if subset in (None, "default") else {"subset": subset}
    settings |= {} if split in (None, "train") else {"split": split}
    settings |= {} if revision is None else {"revision": revision}
    columns = list_feature_columns(info)
    guess = guess_columns(dataset, columns)
    other = suggest_other_kind(columns) if guess is None else None
    if other is not None:
        raise problem_error(
            "data",
            f"'{repository}' has the columns {', '.join(columns)}, none of which suit dataset "
            f"{dataset}",
            hint=other,
        )
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
