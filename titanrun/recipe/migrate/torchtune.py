"""torchtune as migration knows it."""

from titanrun.recipe.migrate.entries import Written
from titanrun.recipe.migrate.tool import Tool
from titanrun.recipe.migrate.tune_table import COUNTED, HEADS, TUNE, WHOLE
from titanrun.recipe.migrate.yaml_file import read_yaml_entries


def read_torchtune(file: str) -> Written:
    """The entries of a YAML file. Raises ProblemsFound."""
    return read_yaml_entries(file, leaves=WHOLE, heads=HEADS)


TORCHTUNE = Tool(
    "torchtune",
    keys={key.path: key for key in TUNE},
    counted=frozenset(COUNTED),
    read=read_torchtune,
)
