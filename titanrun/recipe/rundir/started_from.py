"""What a saved run started from, where it is now: the folder of its model, or another run."""

from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    is_storage_path,
    parse_storage_path,
)
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import problem_error
from titanrun.config.read_source import read_source
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import format_path
from titanrun.recipe.moved_paths import find_moved_paths, read_moved_paths, suggest_moved
from titanrun.recipe.resolving.hub_models import find_fetching_command
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import fetch_resolved_recipe, select_checkpoint


def check_start_exists(checkpoint: AnyPath, *, is_base: bool = False) -> None:
    """Check that the weights which a checkpoint of adapters leaves out are on this machine.

    Args:
        checkpoint: the checkpoint.
        is_base: whether they are asked for themselves, also those of a checkpoint of all weights.

    Raises:
        ProblemsFound: They are not where the run found them.
    """
    recipe = load_resolved(Path(fetch_resolved_recipe(checkpoint)))
    section = recipe.checkpoint
    if section.adapters_only is not True and not is_base:
        return
    assets = recipe.model.hf_assets_path if section.initial_load_in_hf else None
    named = section.initial_load_path or assets
    if named in (None, "auto") or is_storage_path(named):
        return
    if not Path(named).exists():
        whose = "the run" if is_base else f"the run of the adapters in {checkpoint}"
        fetching = find_fetching_command(named)
        raise problem_error(
            "checkpoint",
            f"folder not found: '{named}', the weights that {whose} started from",
            hint=suggest_moved(named) + (f"; {fetching} fetches it" if fetching else ""),
        )
    if not section.initial_load_in_hf:
        check_start_exists(select_checkpoint(parse_storage_path(named)))


def build_moved_overrides(recipe: str) -> list[str]:
    """Build the overrides by which a saved recipe names its inputs where they are now."""
    moved = read_moved_paths()
    found = find_moved_paths(read_source(recipe), moved) if moved else ()
    return [f"{format_path(path)}={to_flow_yaml(escape_references(new))}" for path, new in found]
