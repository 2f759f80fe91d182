"""LLaMA-Factory as a source of migration: fine-tuning, preferences and reward models."""

from functools import partial

from titanrun.recipe.migrate.dataset_mixtures import split_dataset_names
from titanrun.recipe.migrate.llamafactory_table import KEYS_WITH_DEFAULTS, LLAMAFACTORY_KEYS
from titanrun.recipe.migrate.source_entries import SourceEntries
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.yaml_entries import read_yaml_entries

SAMPLE_LIMIT = "max_samples"
KEYS = {key.path: key for key in LLAMAFACTORY_KEYS}


def read_llamafactory(file: str) -> SourceEntries:
    """Return the entries of a YAML file. Raise ProblemsFound on errors."""
    return read_yaml_entries(file, whole_value_keys=KEYS)


LLAMAFACTORY = SourceTool(
    "llamafactory",
    keys=KEYS,
    keys_with_defaults=frozenset(KEYS_WITH_DEFAULTS),
    read=read_llamafactory,
    split_datasets=partial(split_dataset_names, key="dataset", limit=SAMPLE_LIMIT),
    sample_limit=SAMPLE_LIMIT,
)
