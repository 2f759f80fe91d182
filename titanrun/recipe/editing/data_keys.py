"""Keys for files and held-out data that other programs have in sections where titanrun has none."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from titanrun.config.lazy_module import LazyModule
from titanrun.config.number_messages import convert_other_notation
from titanrun.config.problems import DataPath, Problem
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.type_introspection import find_value
from titanrun.recipe.resolving.hub_datasets import find_hub_dataset

if TYPE_CHECKING:
    from titanrun.recipe.editing import meant_datasets as meant_datasets
else:
    # imported only if a recipe has unknown names
    meant_datasets = LazyModule("titanrun.recipe.editing.meant_datasets")

FILES = ("path", "paths", "file", "files", "data", "data_path", "data_files")
HELD_OUT_FILES = ("val_dataset", "eval_dataset", "validation_dataset", "test_dataset", "val_data")
SHARES = ("split", "size", "ratio", "fraction", "share", "test_size", "val_size")
UNPACKED = {"preference": "each pair", "labelled": "each reply"}
"""What fills a sequence of a dataset, by the datasets that do not pack."""
MODEL_FOLDERS = ("path", "model_path", "name_or_path", "model_name_or_path", "folder", "dir")


def format_data_key(path: DataPath, data: Any) -> str:
    """Return what to write for a key of files or of a share, or an empty text for other keys."""
    describe = DESCRIPTIONS.get(path[:-1], {}).get(str(path[-1]).lower().replace("-", "_"))
    holder = find_value(data, path[:-1])
    if isinstance(holder, dict):
        if "dataset" in holder and holder["dataset"] is None:
            return ""  # a key of that dataset without its indentation
        if path[-1] == "packing" and holder.get("name") in UNPACKED:
            return f"remove it: {UNPACKED[holder['name']]} has a sequence of its own"
    return "" if describe is None else describe(find_value(data, path), data)


def describe_named_dataset(name: Any, path: DataPath, data: Any) -> str:
    """Return the dataset that reads a repository of the Hub or a file, else an empty text."""
    is_dataset = "dataset" in (path[-1], *path[-2:-1])
    if not is_dataset or not isinstance(name, str):
        return ""
    repository = find_hub_dataset(name)
    if repository is None:
        return meant_datasets.describe_dataset_path(name, path, data)
    chosen = meant_datasets.choose_hub_dataset(data)
    if chosen is not None:
        return f"write {{name: {chosen}, repo: {repository}}}"
    return (
        f"write {{name: chat, repo: {repository}}} for conversations, or "
        f"{{name: hub, repo: {repository}}} for texts"
    )


def find_missing_name(problem: Problem, data: Any) -> str:
    """Return the hint for a component without its name that tells the name, else an empty text."""
    return meant_datasets.find_missing_hint(problem, data)


def describe_trained_files(value: Any, data: Any) -> str:
    """Return the dataset that is trained on."""
    return f"write training.dataset: {meant_datasets.format_dataset(value, data)}"


def describe_held_out_files(value: Any, data: Any) -> str:
    """Return the dataset that is validated on."""
    dataset = meant_datasets.format_dataset(value, data, is_held_out=True)
    return f"write validation: {{enable: true, dataset: {dataset}}}"


def describe_held_out_share(value: Any, data: Any) -> str:
    """Return the share or number of documents that are held out of the training data."""
    number = read_share(value)
    if number is None and isinstance(value, str):
        return (
            "write validation.dataset, with this split, or validation.holdout: 0.05, of the "
            "training data"
        )
    held = 0.05 if number is None else number
    return f"write validation.holdout: {to_flow_yaml(held)}, of the training data"


def describe_held_out_percent(value: Any, data: Any) -> str:
    """Return the share that is held out for a number in percent."""
    number = read_share(value)
    is_percent = isinstance(value, int | float) and number is not None and number >= 1
    return describe_held_out_share(number / 100 if is_percent and number else value, data)


def read_share(value: Any) -> float | None:
    """Return a number, also one that is written as a percentage, None of other values."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    written = convert_other_notation(value.strip()) if isinstance(value, str) else None
    return None if written is None else float(written)


def describe_model_folder(value: Any, data: Any) -> str:
    """Return the folder of weights, tokenizer and sizes."""
    folder = to_flow_yaml(value) if isinstance(value, str) else "FOLDER"
    return f"write model.hf_assets_path: {folder}"


DESCRIPTIONS: Mapping[DataPath, Mapping[str, Callable[[Any, Any], str]]] = {
    (): dict.fromkeys(HELD_OUT_FILES, describe_held_out_files),
    ("training",): {
        **dict.fromkeys(FILES, describe_trained_files),
        **dict.fromkeys(HELD_OUT_FILES, describe_held_out_files),
    },
    ("validation",): {
        **dict.fromkeys((*FILES, *HELD_OUT_FILES), describe_held_out_files),
        **dict.fromkeys(SHARES, describe_held_out_share),
        **dict.fromkeys(("percent", "percentage"), describe_held_out_percent),
    },
    ("model",): dict.fromkeys(MODEL_FOLDERS, describe_model_folder),
}
