"""Resolution of a file and overrides to a run.

Steps: read, compose, override, interpolate, validate, resolve `auto`, apply the rules.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from titanrun.config.base import dump_config
from titanrun.config.checksum import to_yaml_with_checksum
from titanrun.config.error_messages import describe_value_error
from titanrun.config.interpolate import escape_references
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import DataPath, Problem, ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import read_source, read_source_text
from titanrun.config.secrets import find_unset_secret_problems, iter_secrets
from titanrun.config.tree import (
    Node,
    find_node,
    format_path,
    get_nearest_node,
)
from titanrun.config.validate_tree import validate_tree
from titanrun.recipe import builtins
from titanrun.recipe.dump_folder import (
    DUMP_FOLDER_PATH,
    find_dump_folder_problems,
    find_lost_run_problems,
)
from titanrun.recipe.editing.key_synonyms import (
    add_hints,
    drop_written_keys,
)
from titanrun.recipe.editing.synonym_table import SAME_MEANING, SYNONYMS
from titanrun.recipe.plugin_files import is_plugin_file
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.hub_datasets import add_dataset_commits
from titanrun.recipe.resolving.hub_models import replace_hub_names
from titanrun.recipe.resolving.multi_stage import add_kind_stage
from titanrun.recipe.resolving.read_recipe import (
    ReadResult,
    find_checksum_problems,
    load_listed_plugins,
    read_resolved_tree,
    read_tree,
)
from titanrun.recipe.resolving.resolve_auto import resolve_auto_fields
from titanrun.recipe.resolving.sound_part import (
    find_emptied_mixture,
    get_affected_paths,
    is_fatal_problem,
    is_follow_up_problem,
    may_follow_from_base,
    replace_broken_parts,
)
from titanrun.recipe.rules.registry import apply_rules

if TYPE_CHECKING:
    from titanrun.recipe.editing import dataset_lists as dataset_lists
    from titanrun.recipe.editing import written_adapters as written_adapters
else:
    # imported only if a recipe has wrong keys or values
    dataset_lists = LazyModule("titanrun.recipe.editing.dataset_lists")
    written_adapters = LazyModule("titanrun.recipe.editing.written_adapters")

RECIPE_VERSION = 1
RESOLVED = "resolved.yaml"


@dataclass(frozen=True, slots=True)
class ResolveOptions:
    """Options of resolving: the file that names the run, input checks, and ranks.

    `ranks` overrides the recipe. `machine_ranks` applies if the recipe leaves the number of ranks
    to the machine. `skipped_rules` are about what the command is going to write.
    """

    file: str
    should_check_inputs: bool = False
    ranks: int | None = None
    machine_ranks: int | None = None
    skipped_rules: Collection[str] = ()

    def get_ranks(self, recipe: Recipe) -> int | None:
        """Return the ranks as requested, else as in the recipe, else as on the machine.

        Return None if none of them is known.
        """
        asked = recipe.launch.world_size if self.ranks is None else self.ranks
        if asked is not None or self.machine_ranks is None:
            return asked
        return recipe.launch.num_nodes * (1 if recipe.device == "cpu" else self.machine_ranks)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run, with the recipe as written, the tree with origins, warnings, and ranks.

    `run` is `recipe` with every `auto` resolved. `ranks` is None if unknown.
    """

    recipe: Recipe
    run: Recipe
    tree: Node
    warnings: tuple[Problem, ...] = ()
    ranks: int | None = None
    variables: Mapping[DataPath, list[str]] = field(default_factory=dict)
    """Names of the environment variables that values read, by path."""

    @property
    def text(self) -> str:
        """Content of resolved.yaml."""
        return to_yaml_with_checksum(escape_recipe_data(self.run, dump_config(self.run)))


def escape_recipe_data(run: Recipe, data: dict[str, Any]) -> dict[str, Any]:
    """Escape texts and turn secrets into references, as plain data is written to a file.

    `data` belongs to the run, or to a shorter recipe for it.
    """
    escaped_data: dict[str, Any] = escape_references(data, {path for path, _ in iter_secrets(run)})
    return escaped_data


def resolve_recipe(
    file: str,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    should_check_inputs: bool = False,
    ranks: int | None = None,
    machine_ranks: int | None = None,
    skipped_rules: Collection[str] = (),
) -> Resolved:
    """Return the run that `file` with `overrides` describes.

    Args:
        file: Recipe, a file or the name of a shipped one, or FILE#ID for a stage of one.
        overrides: Arguments of the form path=value.
        environment: Environment variables for interpolation and secrets.
        should_check_inputs: Whether to add the rules of level environment, of files and packages.
        ranks: Number of processes to run on, whatever the recipe says.
        machine_ranks: Number of processes if `launch.nproc_per_node` is auto and a GPU allowed.
        skipped_rules: Rules of level environment about files that the caller is going to write.

    Raises:
        ProblemsFound: With every problem of the recipe.
    """
    reading = read_tree(file, overrides, environment)
    case = ResolveOptions(reading.file, should_check_inputs, ranks, machine_ranks, skipped_rules)
    named = add_dataset_commits(reading.tree, environment)
    tree, missing = replace_hub_names(named, environment, needs_tokenizer=should_check_inputs)
    reading = replace(reading, tree=tree)
    problems = [*find_checksum_problems(case.file, tree), *reading.warnings]
    if missing:
        reading = add_missing_models(reading, missing)
    if reading.problems:
        further = find_problems_in_readable_part(reading, case)
        further += find_written_folder_problems(tree, case)
        raise ProblemsFound(drop_written_keys([*problems, *reading.problems, *further]))
    try:
        recipe, run, found = resolve_tree(tree, tree, case)
    except ProblemsFound as error:
        further = find_problems_in_sound_part(tree, error.problems, set(), case)
        further += find_written_folder_problems(tree, case)
        raise ProblemsFound(drop_written_keys([*problems, *error.problems, *further])) from None
    further = [*find_lost_run_problems(recipe)]
    if should_check_inputs:
        further += find_unset_secret_problems(run, environment)
        further += find_dump_folder_problems(recipe.dump_folder)
    problems += [*found, *(attach_origin(problem, tree) for problem in further)]
    if any(problem.severity == "error" for problem in problems):
        raise ProblemsFound(problems)
    return Resolved(recipe, run, tree, tuple(problems), case.get_ranks(recipe), reading.variables)


def add_missing_models(reading: ReadResult, missing: Sequence[Problem]) -> ReadResult:
    """Return a reading in which models that are not on this machine count as unreadable."""
    paths = {("model",), *(problem.path for problem in missing)}
    return replace(
        reading,
        problems=(*reading.problems, *missing),
        unreadable_paths=reading.unreadable_paths | paths,
    )


def resolve_tree(
    tree: Node, whole_tree: Node, case: ResolveOptions, excluded_paths: Collection[DataPath] = ()
) -> tuple[Recipe, Recipe, list[Problem]]:
    """Return the recipe, the run, and what the rules find.

    `tree` may be the sound part of `whole_tree`. Rule problems about `excluded_paths`, which are
    not in it, are dropped.
    """
    recipe = check_tree(tree)
    ranks = case.get_ranks(recipe)
    run = resolve_run(recipe, tree, case.file, ranks)
    builtins.load_rules()
    found = apply_rules(run, whole_tree, "rules", ranks=ranks, excluded_paths=excluded_paths)
    if case.should_check_inputs:
        # what the run reads depends on what its folder holds
        placed = type(run).model_validate({**dict(run), "dump_folder": recipe.dump_folder})
        further = apply_rules(placed, whole_tree, "environment", excluded_paths=excluded_paths)
        found += [problem for problem in further if problem.rule not in case.skipped_rules]
    return recipe, run, [add_kind_stage(problem, case.file) for problem in found]


def find_written_folder_problems(tree: Node, case: ResolveOptions) -> list[Problem]:
    """Find the problems of dump_folder in a recipe that has others."""
    node = find_node(tree, DUMP_FOLDER_PATH)
    if not case.should_check_inputs or node is None or not isinstance(node.value, str):
        return []
    return [attach_origin(problem, tree) for problem in find_dump_folder_problems(node.value)]


def find_problems_in_readable_part(reading: ReadResult, case: ResolveOptions) -> list[Problem]:
    """Find further problems in the readable part of a recipe."""
    found = find_schema_problems(reading)
    if reading.is_incomplete:
        return found
    return found + find_problems_in_sound_part(
        reading.tree, [*reading.problems, *found], reading.unreadable_paths, case
    )


def find_schema_problems(reading: ReadResult) -> list[Problem]:
    """Find the problems of single keys and values that no unreadable value or file causes."""
    try:
        check_tree(reading.tree)
    except ProblemsFound as error:
        return [
            problem
            for problem in error.problems
            if not is_follow_up_problem(problem, reading.unreadable_paths)
            and not (reading.is_incomplete and may_follow_from_base(problem, reading.tree))
        ]
    return []


def find_problems_in_sound_part(
    tree: Node, known: Sequence[Problem], broken: set[DataPath], case: ResolveOptions
) -> list[Problem]:
    """Find rule problems in the sound part of a recipe that has errors.

    Problems that `known` ones or `broken` paths may have caused are dropped.
    """
    further: list[Problem] = []
    touched = {path[:-1] if path[-1] == "name" else path for path in broken}
    fresh = list(known)
    while fresh and not any(is_fatal_problem(problem) for problem in fresh):
        touched |= {path for problem in fresh for path in get_affected_paths(problem)}
        touched |= find_emptied_mixture(tree, touched)
        try:
            _, _, found = resolve_tree(replace_broken_parts(tree, touched), tree, case, touched)
        except ProblemsFound as error:
            further += [
                problem for problem in error.problems if not is_follow_up_problem(problem, touched)
            ]
            # one that only follows is not shown, but without its part the rest can be checked
            fresh = [
                problem
                for problem in error.problems
                if not problem.path or not touched.issuperset(get_affected_paths(problem))
            ]
        else:
            return further + [
                problem for problem in found if not is_follow_up_problem(problem, touched)
            ]
    return further


def check_tree(tree: Node) -> Recipe:
    """Validate a tree and return the recipe. Raise ProblemsFound if it is invalid."""
    check_version(tree)
    problems = [attach_origin(problem, tree) for problem in load_listed_plugins(tree)]
    if any(concerns_plugin_file(problem, tree) for problem in problems):
        # what the file defines would be unknown, wherever the recipe uses it
        raise ProblemsFound(problems)
    checked = validate_tree(
        get_recipe_class(), tree, synonyms=SYNONYMS, exact_synonyms=SAME_MEANING
    )
    if checked.config is None or problems:
        hinted = dataset_lists.add_list_hints(add_hints(checked.problems, tree), tree)
        hinted = written_adapters.add_adapter_hints(hinted, tree)
        raise ProblemsFound([*problems, *hinted])
    return checked.config


def concerns_plugin_file(problem: Problem, tree: Node) -> bool:
    """Return whether a problem of a plug-in is about a file."""
    node = find_node(tree, problem.path)
    return node is not None and isinstance(node.value, str) and is_plugin_file(node.value)


def check_version(tree: Node) -> None:
    """Raise on a recipe of another version: nothing else in it can be checked."""
    node = find_node(tree, ("version",))
    if node is not None and type(node.value) is int and node.value != RECIPE_VERSION:
        message = (
            f"this recipe has version {node.value}, this titanrun reads version {RECIPE_VERSION}"
        )
        hint = "update titanrun" if node.value > RECIPE_VERSION else f"write {RECIPE_VERSION}"
        raise problem_error("version", message, path=("version",), origin=node.origin, hint=hint)


def resolve_run(recipe: Recipe, tree: Node, file: str, ranks: int | None) -> Recipe:
    """Return the recipe with every `auto` resolved."""
    try:
        return type(recipe).model_validate(resolve_auto_fields(recipe, file=file, ranks=ranks))
    except ProblemsFound as error:
        problems = list(error.problems)
    except ValidationError as error:
        problems = [build_range_problem(item) for item in error.errors(include_url=False)]
    raise ProblemsFound([attach_origin(problem, tree) for problem in problems])


def build_range_problem(error: Any) -> Problem:
    """Build the problem of a derived value that its own field does not accept."""
    path: DataPath = tuple(error["loc"])
    wording = describe_value_error(error["type"], error.get("ctx") or {}, error["input"])
    message = f"{format_path(path)} is derived from other values, but {wording.message}"
    return Problem(
        "out-of-range",
        message,
        path,
        hint=f"write {format_path(path)}, or change the values it is derived from",
        got=error["input"],
    )


def attach_origin(problem: Problem, tree: Node) -> Problem:
    """Return a problem that has only a path with the origin of that path."""
    if problem.origin is not None:
        return problem
    node, found = get_nearest_node(tree, problem.path)
    origin = node.origin if found == problem.path else node.key or node.origin
    return replace(problem, origin=origin)


def load_resolved(path: Path) -> Recipe:
    """Load the run in a resolved.yaml. Raise ProblemsFound if it is invalid."""
    return check_tree(read_resolved_tree(read_source(str(path))))


def load_resolved_text(text: str, *, file: Path | None = None) -> Recipe:
    """Load the run in the text of a resolved.yaml. Raise ProblemsFound if it is invalid.

    `file` is the file with this text, where its plug-in files lie.
    """
    source = SourceText(str(file or RESOLVED), text, is_file=file is not None)
    return check_tree(read_resolved_tree(read_source_text(source, "yaml")))
