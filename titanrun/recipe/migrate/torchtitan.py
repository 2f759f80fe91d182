"""torchtitan as migration knows it: its keys of all versions, and how its files are read."""

from titanrun.config.emit import toml_value
from titanrun.recipe.migrate.extensions import EXTENSIONS, IMPLIED, OLDER
from titanrun.recipe.migrate.layouts import LATER
from titanrun.recipe.migrate.source import read_torchtitan
from titanrun.recipe.migrate.table import CORE
from titanrun.recipe.migrate.tool import Tool

TORCHTITAN = Tool(
    "torchtitan",
    keys={key.path: key for key in (*CORE, *EXTENSIONS, *OLDER, *LATER)},
    counted=frozenset(key.path for key in CORE),
    read=read_torchtitan,
    suggested=frozenset(key.path for key in CORE),
    implied=IMPLIED,
    sections={"job": "", "model": "model", "validator": "validation", "profiler": "profiling"},
    assignment=" = ",
    spelled=toml_value,
)
