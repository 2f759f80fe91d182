"""The programs whose configurations become recipes, and which of them a file was written for."""

from titanrun.config.problems import ProblemsFound
from titanrun.config.source import read_source
from titanrun.config.tree import plain
from titanrun.recipe.migrate.axolotl import AXOLOTL
from titanrun.recipe.migrate.tool import Tool
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtune import TORCHTUNE

PROGRAMS: dict[str, Tool] = {tool.name: tool for tool in (TORCHTITAN, TORCHTUNE, AXOLOTL)}


def program_of(data: object) -> str:
    """The program that a configuration was written for, where it tells by itself; a recipe has a version."""
    if not isinstance(data, dict) or "version" in data:
        return ""
    if "job" in data:
        return TORCHTITAN.name
    if "base_model" in data:
        return AXOLOTL.name
    return (
        TORCHTUNE.name
        if any(isinstance(section, dict) and "_component_" in section for section in data.values())
        else ""
    )


def program_of_file(file: str) -> str:
    """The same for a file; empty for one that cannot be read, which the next reader tells."""
    try:
        return program_of(plain(read_source(file)))
    except ProblemsFound:
        return ""
