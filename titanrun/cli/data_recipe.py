"""The recipe of `titanrun data` commands."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.error_boundary import print_problems
from titanrun.config.problems import problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_files import DATA_FOLDER, RESOLVED, RUNS

SHARED_CACHE = f"{RUNS}/.data"


def parse_recipe_options(parser: CommandParser, arguments: list[str]) -> tuple[Namespace, Resolved]:
    """Parse the options and resolve the recipe.

    Raises ProblemsFound if its data would be written into a run directory.
    """
    overrides, others = split_overrides(arguments)
    parser.add_argument("recipe", help="a recipe, or a run directory with its resolved.yaml")
    parser.allow_overrides()
    options = parser.parse_args(others)
    options.recipe = find_recipe(options.recipe)
    resolved = resolve_for_data(options.recipe, overrides)
    run_dir = find_run_directory(options.recipe, resolved)
    if resolved.run.training.data_cache is None and run_dir is not None:
        overrides.append(f"training.data_cache={run_dir / DATA_FOLDER}")
        resolved = resolve_for_data(options.recipe, overrides)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    if resolved.run.training.data_cache is None:
        hint = (
            f"add training.data_cache={SHARED_CACHE}, here and for training; for the data of a "
            "run, name its directory"
        )
        raise problem_error(
            "usage",
            "without training.data_cache, data is tokenized into the run directory, which does not "
            "exist yet",
            hint=hint,
        )
    return options, resolved


def find_run_directory(recipe: str, resolved: Resolved) -> Path | None:
    """Return the run directory that a recipe has, by its place or its dump_folder, if one."""
    if Path(recipe).name == RESOLVED:
        return Path(recipe).parent
    named = resolved.recipe.dump_folder
    return Path(named) if named is not None and (Path(named) / RESOLVED).is_file() else None


def resolve_for_data(recipe: str, overrides: Sequence[str]) -> Resolved:
    """Resolve a recipe whose data is read, before a teacher has predicted it.

    How many sequences an epoch needs is a matter of the run.

    Raises:
        ProblemsFound: with every problem of the recipe.
    """
    return resolve_recipe(
        recipe,
        overrides,
        environment=get_environment(),
        should_check_inputs=True,
        skipped_rules=("teacher-has-predicted", "epochs-fill-a-step"),
    )


def find_cache_folder(named: str) -> str:
    """Return the folder of a recipe's tokenized data; another path is returned unchanged."""
    if Path(named).suffix not in (".yaml", ".yml", ".toml") or not Path(named).is_file():
        return named
    cache = resolve_recipe(named, environment=get_environment()).run.training.data_cache
    if cache is None:
        raise problem_error(
            "usage",
            f"the data of '{named}' is tokenized into its run directory: it sets no "
            "training.data_cache",
            hint="pass the folder data of the run directory",
        )
    if not Path(cache).is_dir():
        raise problem_error(
            "usage",
            f"the data of '{named}' is not tokenized yet: folder not found: '{cache}'",
            hint=f"titanrun data build {named} tokenizes it",
        )
    return cache


def find_recipe(named: str) -> str:
    """Return the resolved recipe of a run directory; another path is returned unchanged."""
    resolved = Path(named) / RESOLVED
    return str(resolved) if resolved.is_file() else named
