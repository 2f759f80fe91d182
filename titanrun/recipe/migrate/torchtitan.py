"""torchtitan as a source of migration: the keys of all versions, and its reader."""

from titanrun.config.serialize import format_toml_value
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.torchtitan_dumps import LATER
from titanrun.recipe.migrate.torchtitan_extensions import EXTENSIONS, IMPLIED, OLDER
from titanrun.recipe.migrate.torchtitan_reader import read_torchtitan
from titanrun.recipe.migrate.torchtitan_table import TORCHTITAN_KEYS

TORCHTITAN = SourceTool(
    "torchtitan",
    keys={key.path: key for key in (*TORCHTITAN_KEYS, *EXTENSIONS, *OLDER, *LATER)},
    keys_with_defaults=frozenset(key.path for key in TORCHTITAN_KEYS),
    read=read_torchtitan,
    suggested_keys=frozenset(key.path for key in TORCHTITAN_KEYS),
    implied_values=IMPLIED,
    sections={"job": "", "model": "model", "validator": "validation", "profiler": "profiling"},
    assignment=" = ",
    format_value=format_toml_value,
)
