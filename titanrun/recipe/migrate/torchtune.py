"""torchtune as a source of migration."""

from functools import partial

from titanrun.recipe.migrate.dataset_mixtures import split_dataset_list
from titanrun.recipe.migrate.source_entries import SourceEntries
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.torchtune_table import (
    KEYS_WITH_DEFAULTS,
    NULLABLE_SECTIONS,
    TORCHTUNE_KEYS,
    WHOLE_VALUE_KEYS,
)
from titanrun.recipe.migrate.yaml_entries import read_yaml_entries


def read_torchtune(file: str) -> SourceEntries:
    """Return the entries of a YAML file. Raise ProblemsFound on errors."""
    return read_yaml_entries(
        file, whole_value_keys=WHOLE_VALUE_KEYS, nullable_sections=NULLABLE_SECTIONS
    )


TORCHTUNE = SourceTool(
    "torchtune",
    keys={key.path: key for key in TORCHTUNE_KEYS},
    keys_with_defaults=frozenset(KEYS_WITH_DEFAULTS),
    read=read_torchtune,
    split_datasets=partial(split_dataset_list, key="dataset"),
)
