"""axolotl as migration knows it."""

from titanrun.recipe.migrate.axolotl_table import AXOLOTL_KEYS, COUNTED
from titanrun.recipe.migrate.entries import Written
from titanrun.recipe.migrate.tool import Tool
from titanrun.recipe.migrate.yaml_file import read_yaml_entries

KEYS = {key.path: key for key in AXOLOTL_KEYS}


def read_axolotl(file: str) -> Written:
    """The entries of a YAML file. Raises ProblemsFound."""
    return read_yaml_entries(file, leaves=KEYS)


AXOLOTL = Tool("axolotl", keys=KEYS, counted=frozenset(COUNTED), read=read_axolotl)
