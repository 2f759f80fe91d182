"""The dataset that is meant where a file is named without one, by what a recipe trains on."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.spec.data_files import SUFFIXES
from titanrun.components.losses.config import LossConfig
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.registry import load_choices
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.type_introspection import find_annotation, find_value, is_slot
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.reference.data_columns import read_columns
from titanrun.recipe.reference.data_settings import (
    CONVERSATIONS,
    HUB_DATASETS,
    LABELLED,
    PAIRS,
    TEXT_SUFFIX,
    TEXTS,
    build_data_settings,
    find_first_file,
    find_fitting_kind,
)
from titanrun.recipe.reference.file_layouts import ONE_DATASET

DATASETS = tuple(kind.dataset for kind in (CONVERSATIONS, PAIRS, LABELLED, TEXTS))
DATASETS_OF_LOSSES = {"pairs": PAIRS.dataset, "labels": LABELLED.dataset}
READ_ALONE = (CONVERSATIONS.dataset, TEXTS.dataset)
"""Datasets that the usual loss trains on."""
HELD_OUT: DataPath = ("validation", "dataset")
NAMELESS = "{name: NAME, "
"""How a hint writes a component whose name it does not know."""


def choose_dataset(file: Any, data: Any) -> str | None:
    """Return the dataset that reads a file in a recipe, None if nothing tells which.

    Args:
        file: What is written as its path.
        data: Plain data of the recipe.
    """
    loss, kind = find_value(data, ("loss",)), find_value(data, ("kind",))
    named_loss = str(loss.get("name") if isinstance(loss, dict) else loss)
    compared = getattr(load_choices(LossConfig).get(named_loss), "compares", None)
    if compared is not None:
        return DATASETS_OF_LOSSES[compared]
    if kind == "sft":
        return CONVERSATIONS.dataset
    named = find_trained_dataset(data).get("name")
    if named in DATASETS or kind not in (None, "pretrain") or not isinstance(file, str):
        return named if named in DATASETS else None
    if file.endswith(TEXT_SUFFIX):
        return TEXTS.dataset
    with suppress(ProblemsFound, OSError, ValueError):  # a file that is not here tells nothing
        fitting = find_fitting_kind(read_columns(find_first_file(file)))
        return fitting.dataset if fitting and fitting.dataset in READ_ALONE else None
    return None


def choose_hub_dataset(data: Any) -> str | None:
    """Return the dataset that reads records of the Hub in a recipe, None if nothing tells which."""
    chosen = choose_dataset(None, data)
    return None if chosen is None else HUB_DATASETS.get(chosen, chosen)


def find_trained_dataset(data: Any) -> dict[str, Any]:
    """Return the dataset that is trained on, the first of a mixture, empty if there is none."""
    trained = find_value(data, ("training", "dataset"))
    first = find_value(trained, ("sources", 0, "dataset"))
    found = trained if first is None else first
    return found if isinstance(found, dict) else {"name": found}


def format_dataset(value: Any, data: Any, *, is_held_out: bool = False) -> str:
    """Return the dataset of a path, of the kind that is trained on as far as it is known.

    Held-out data is packed as the data that is trained on.
    """
    if isinstance(value, dict):
        return to_flow_yaml(value)
    name = choose_dataset(value, data) or TEXTS.dataset
    settings = {"name": name, "path": value if isinstance(value, str) else "FILE"}
    with suppress(ProblemsFound, OSError, ValueError):
        settings = build_data_settings(name, settings["path"])[0]
    trained = find_trained_dataset(data)
    if is_held_out and trained.get("name") == name and "packing" in trained:
        settings["packing"] = trained["packing"]
    return to_flow_yaml(settings)


def describe_dataset_path(name: str, path: DataPath, data: Any) -> str:
    """Return what to write for a path in the place of a dataset, else an empty text.

    Args:
        name: What is written.
        path: Where.
        data: Plain data of the recipe.
    """
    is_path = "/" in name or Path(name).suffix in SUFFIXES
    if path[-1] != "dataset" or not is_path or choose_dataset(name, data) is None:
        return ""
    hint = f"write {format_dataset(name, data, is_held_out=path == HELD_OUT)}"
    if path != HELD_OUT:
        return hint
    section = find_value(data, HELD_OUT[:1])
    hint += "" if section.get("enable") is True else ", and validation.enable: true"
    return hint + (", without validation.holdout" if section.get("holdout") is not None else "")


def find_missing_hint(problem: Problem, data: Any) -> str:
    """Return the hint for a missing key with the name of the component that is meant, or none."""
    *place, key = problem.path
    written = find_value(data, tuple(place))
    if not place or not isinstance(written, dict):
        return ""
    chosen = choose_dataset(written.get("path"), data)
    is_compared = chosen in DATASETS_OF_LOSSES.values()
    if is_compared and ("sources" in place or "sources" in written):
        return ONE_DATASET
    if key == "dataset" and chosen is not None and NAMELESS in str(problem.hint):
        return str(problem.hint).replace(NAMELESS, f"{{name: {chosen}, ")
    slot: Any = find_annotation(get_recipe_class(), data, tuple(place))
    if key != "name" or not is_slot(slot) or not written:
        return ""
    fitting = [
        name for name, one in load_choices(slot).items() if set(written) <= set(one.model_fields)
    ]
    if len(fitting) == 1:
        return f"write name: {fitting[0]}"
    is_known = issubclass(slot, DatasetConfig) and chosen in fitting
    return f"write name: {chosen}" if is_known else ""
