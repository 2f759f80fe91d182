"""The dataset that reads what a recipe lists in its place: one with several files, or a mixture."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from titanrun.components.data.config import DatasetConfig, MixtureDatasetConfig
from titanrun.config.near_path import join_in_braces
from titanrun.config.problems import Problem
from titanrun.config.registry import load_choices
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import Node, format_path, to_plain_data
from titanrun.config.type_introspection import find_annotation, find_value
from titanrun.recipe.editing.meant_datasets import (
    DATASETS_OF_LOSSES,
    choose_dataset,
    format_dataset,
)
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.reference.file_layouts import ONE_DATASET
from titanrun.recipe.reference.source_weights import EQUAL, weigh_sources

MIXTURE = MixtureDatasetConfig.model_fields["name"].default
SOURCE_KEY, WRITE = "dataset", "write "
SHARE_HINT = "; a mixture holds out a share: write validation.holdout: 0.05"


def add_list_hints(problems: Iterable[Problem], tree: Node) -> list[Problem]:
    """Return the problems; those of a list in the place of a dataset get a hint with the dataset.

    Args:
        problems: Problems of single keys and values.
        tree: The recipe.
    """
    found = list(problems)
    if not any(problem.code == "wrong-type" and is_several(problem.got) for problem in found):
        return found
    data = to_plain_data(tree)
    return [add_list_hint(problem, data) for problem in found]


def is_several(value: Any) -> bool:
    """Return whether a value is a list of several entries."""
    return isinstance(value, list) and len(value) > 1


def add_list_hint(problem: Problem, data: Any) -> Problem:
    """Return a problem with a hint, if it is about several datasets in the place of one."""
    listed: Any = problem.got
    if problem.code != "wrong-type" or not is_several(listed):
        return problem
    if find_annotation(get_recipe_class(), data, problem.path) is not DatasetConfig:
        return problem
    hint = describe_dataset_list(listed, data) if trains_on_files(data) else None
    if hint is None:
        return problem
    written = hint.startswith(WRITE)
    place = f"{WRITE}{format_path(problem.path)}: "
    return replace(problem, hint=place + hint.removeprefix(WRITE) if written else hint)


def trains_on_files(data: Any) -> bool:
    """Return whether a recipe is of a kind that trains on the records of files, as they are."""
    return find_value(data, ("kind",)) in (None, "pretrain", "sft")


def describe_dataset_list(listed: Sequence[Any], data: Any) -> str | None:
    """Return what to write for several datasets or paths, None if they are neither."""
    if all(isinstance(one, str) for one in listed):
        names = load_choices(DatasetConfig)
        if all(one in names for one in listed):
            return describe_mixture([{SOURCE_KEY: {"name": one}} for one in listed], data)
        joined = join_in_braces(listed)
        if joined is not None:
            return f"{WRITE}{format_dataset(joined, data)}"
        chosen = choose_dataset(None, data) or "text"
        return describe_mixture(
            [{SOURCE_KEY: {"name": chosen, "path": path}} for path in listed], data
        )
    if not all(isinstance(one, dict) for one in listed):
        return None
    if all(SOURCE_KEY in one for one in listed):
        return describe_mixture(listed, data)
    if not all("name" in one for one in listed):
        return None  # the keys of one dataset, each behind a dash
    joined = join_paths(listed)
    if joined is not None:
        return f"{WRITE}{to_flow_yaml({**listed[0], 'path': joined})}"
    return describe_mixture([{SOURCE_KEY: one} for one in listed], data)


def join_paths(datasets: Sequence[Mapping[str, Any]]) -> str | None:
    """Return one path of all files, None if the datasets differ in more than their paths."""
    paths = [one.get("path") for one in datasets]
    shared = [{key: value for key, value in one.items() if key != "path"} for one in datasets]
    named = [path for path in paths if isinstance(path, str)]
    if len(named) < len(paths) or any(settings != shared[0] for settings in shared):
        return None
    return join_in_braces(named)


def describe_mixture(sources: Sequence[Mapping[str, Any]], data: Any) -> str:
    """Return a mixture of sources with their sizes as weights, if these are known."""
    if choose_dataset(None, data) in DATASETS_OF_LOSSES.values():
        return ONE_DATASET
    told = ""
    if not any("weight" in source for source in sources):
        weights, told = weigh_files(sources)
        if weights:
            sources = [
                {**source, "weight": weight}
                for source, weight in zip(sources, weights, strict=True)
            ]
        told = f"; {told}"
    holdout = find_value(data, ("validation", "holdout"))
    share = SHARE_HINT if isinstance(holdout, int) and not isinstance(holdout, bool) else ""
    return f"{WRITE}{to_flow_yaml({'name': MIXTURE, 'sources': list(sources)})}{told}{share}"


def weigh_files(sources: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
    """Return the weights of sources and what they are, none if one is only a name."""
    if all(isinstance(source[SOURCE_KEY], dict) for source in sources):
        return weigh_sources(sources)
    return [], EQUAL
