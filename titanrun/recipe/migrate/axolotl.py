"""axolotl as a source of migration."""

from titanrun.recipe.migrate.axolotl_table import AXOLOTL_KEYS, KEYS_WITH_DEFAULTS
from titanrun.recipe.migrate.source_entries import SourceEntries
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.yaml_entries import read_yaml_entries

KEYS = {key.path: key for key in AXOLOTL_KEYS}


def read_axolotl(file: str) -> SourceEntries:
    """Return the entries of a YAML file. Raise ProblemsFound on errors."""
    return read_yaml_entries(file, whole_value_keys=KEYS)


AXOLOTL = SourceTool(
    "axolotl", keys=KEYS, keys_with_defaults=frozenset(KEYS_WITH_DEFAULTS), read=read_axolotl
)
