"""axolotl as a source of migration."""

from dataclasses import replace
from functools import partial

from titanrun.recipe.migrate.axolotl_table import AXOLOTL_KEYS, KEYS_WITH_DEFAULTS
from titanrun.recipe.migrate.dataset_mixtures import split_dataset_list
from titanrun.recipe.migrate.source_entries import SourceEntries
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.yaml_entries import read_yaml_entries

KEYS = {key.path: key for key in AXOLOTL_KEYS}
ALIASES = {
    "model_type": "type_of_model",
    "model_revision": "revision_of_model",
    "model_config": "overrides_of_model_config",
    "model_kwargs": "overrides_of_model_kwargs",
}
"""Names that files use for keys that axolotl's schemas name otherwise."""


def read_axolotl(file: str) -> SourceEntries:
    """Return the entries of a YAML file. Raise ProblemsFound on errors."""
    found = read_yaml_entries(file, whole_value_keys={*KEYS, *ALIASES})
    entries = [replace(entry, path=ALIASES.get(entry.path, entry.path)) for entry in found.entries]
    return replace(found, entries=tuple(entries))


AXOLOTL = SourceTool(
    "axolotl",
    keys=KEYS,
    keys_with_defaults=frozenset(KEYS_WITH_DEFAULTS),
    read=read_axolotl,
    split_datasets=partial(split_dataset_list, key="datasets"),
)
