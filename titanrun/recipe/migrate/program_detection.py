"""Programs whose configurations can be migrated, and detection of a file's program."""

from titanrun.config.problems import ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.tree import to_plain_data
from titanrun.recipe.migrate.axolotl import AXOLOTL
from titanrun.recipe.migrate.llamafactory import LLAMAFACTORY
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtune import TORCHTUNE
from titanrun.recipe.resolving.read_recipe import has_recipe_keys

PROGRAMS: dict[str, SourceTool] = {
    tool.name: tool for tool in (TORCHTITAN, TORCHTUNE, AXOLOTL, LLAMAFACTORY)
}


def detect_program(data: object) -> str:
    """Return the program that a configuration was written for, or an empty text.

    With a version it is a recipe, unless it lacks everything else that a recipe must have.
    """
    if not isinstance(data, dict) or has_recipe_keys(data):
        return ""
    if "job" in data:
        return TORCHTITAN.name
    if "base_model" in data:
        return AXOLOTL.name
    if "model_name_or_path" in data and ("stage" in data or "finetuning_type" in data):
        return LLAMAFACTORY.name
    return (
        TORCHTUNE.name
        if any(isinstance(section, dict) and "_component_" in section for section in data.values())
        else ""
    )


def detect_file_program(file: str) -> str:
    """Return the program of a file; empty if it cannot be read, which its reader reports."""
    try:
        return detect_program(to_plain_data(read_source(file)))
    except ProblemsFound:
        return ""
