"""Resolution of a recipe that was loaded before, for the ranks of this process group."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from titanrun.config.base import dump_config
from titanrun.config.checksum import to_yaml_with_checksum
from titanrun.config.problems import ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import read_source_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.read_recipe import read_resolved_tree
from titanrun.recipe.resolving.resolve import (
    Resolved,
    ResolveOptions,
    escape_recipe_data,
    resolve_recipe,
    resolve_tree,
)

RecipeSource = str | Path | Recipe | Resolved
LOADED_RECIPE = "resolved.yaml"


def resolve_source(
    source: RecipeSource,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    ranks: int | None,
) -> Resolved:
    """Resolve a recipe file with its overrides, or check a loaded recipe for `ranks` processes.

    Raises:
        ProblemsFound: if the recipe has errors, or overrides are given for a loaded recipe.
    """
    if isinstance(source, str | Path):
        return resolve_recipe(str(source), overrides, environment=environment, ranks=ranks)
    if overrides:
        raise problem_error(
            "usage",
            "overrides cannot be applied to a recipe that is loaded already",
            hint="pass them to titanrun.load_recipe, or pass the recipe as a file",
        )
    return resolve_loaded(source.run if isinstance(source, Resolved) else source, ranks=ranks)


def resolve_loaded(run: Recipe, *, ranks: int | None) -> Resolved:
    """Check a loaded recipe for `ranks` processes and resolve each `auto` that is left in it.

    Raises:
        ProblemsFound: if it has errors for this number of processes.
    """
    text = to_yaml_with_checksum(escape_recipe_data(run, dump_config(run)))
    source = SourceText(LOADED_RECIPE, text, is_file=False)
    tree = read_resolved_tree(read_source_text(source, "yaml"))
    options = ResolveOptions(LOADED_RECIPE, ranks=ranks)
    recipe, resolved, problems = resolve_tree(tree, tree, options)
    if any(problem.severity == "error" for problem in problems):
        raise ProblemsFound(problems)
    return Resolved(recipe, resolved, tree, tuple(problems), options.get_ranks(recipe))
