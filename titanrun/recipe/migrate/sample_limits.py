"""Hints for the number of records that other programs take of a dataset."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.config.problems import DataPath
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.type_introspection import find_config_class, find_value
from titanrun.recipe.recipe import Recipe
from titanrun.training.config import TrainingConfig

DATASET: DataPath = ("training", "dataset")
TRAINED_LIMITS = ("max_samples", "max_train_samples")
HELD_OUT_LIMITS = ("eval_max_samples", "max_eval_samples", "max_val_samples")
SAMPLE_LIMITS = (*TRAINED_LIMITS, *HELD_OUT_LIMITS)
"""Keys of other programs for a number of records."""
FEWER_RECORDS = "remove it: keep only so many records in the files of training.dataset"
OF_SOURCES = "write max_rows in the sources of the mixture, in sequences"
USUAL_BATCH: int = TrainingConfig.model_fields["local_batch_size"].default
TEXT_LINES = ".jsonl"


def describe_sample_limit(path: DataPath, value: Any, data: Any) -> str:
    """Return what to write for a number of records.

    Args:
        path: Where it is written.
        value: The number.
        data: Plain data of the recipe.
    """
    key = str(path[-1]).lower().replace("-", "_")
    if path[0] == "validation" or key in HELD_OUT_LIMITS:
        return describe_validated_batches(value, data)
    dataset, kind = find_value(data, DATASET), find_config_class(Recipe, data, DATASET)
    known = {} if kind is None else kind.model_fields
    if type(value) is not int or not isinstance(dataset, dict):
        return FEWER_RECORDS
    if "max_documents" in known:
        return f"write training.dataset.max_documents: {value}"
    if "sources" in known:
        return OF_SOURCES
    return describe_first_records(value, dataset)


def describe_validated_batches(value: Any, data: Any) -> str:
    """Return how many batches a validation reads for a number of sequences."""
    sizes = [find_value(data, (place, "local_batch_size")) for place in ("validation", "training")]
    size = next((one for one in sizes if type(one) is int), USUAL_BATCH)
    if type(value) is not int:
        return "write validation.steps, in batches"
    batches = max(1, -(-value // max(1, size)))
    return f"write validation.steps: {batches}, in batches of {size} a rank"


def describe_first_records(value: int, dataset: Mapping[str, Any]) -> str:
    """Return how a dataset of conversations or replies has so many records."""
    if "repo" in dataset:
        if dataset.get("streaming"):
            return FEWER_RECORDS
        split = re.split(r"[\[+]", str(dataset.get("split") or "train"))[0]
        return f"write training.dataset.split: {to_flow_yaml(f'{split}[:{value}]')}"
    named = str(dataset.get("path"))
    file = Path(named)
    if file.suffix != TEXT_LINES or not file.is_file() or re.search(r"[^\w./-]", named):
        return FEWER_RECORDS
    fewer = f"{named.removesuffix(TEXT_LINES)}_{value}{TEXT_LINES}"
    command = f"head -n {value} {named} > {fewer}"
    return f"remove it: {command} writes a file with the first records; name it in path: {fewer}"
