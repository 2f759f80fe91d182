"""Reading of files and overrides into one tree.

Values that cannot be read are reported, and reading continues without them.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from titanrun.config.apply_overrides import apply_overrides
from titanrun.config.checksum import get_checksum_state
from titanrun.config.compose import IncompleteTreeError, compose
from titanrun.config.error_messages import SECRET_HELP, SECRET_MESSAGE
from titanrun.config.interpolate import interpolate
from titanrun.config.lazy_module import LazyModule
from titanrun.config.list_additions import ListSchema, apply_list_additions
from titanrun.config.override_parser import Override, PartialOverridesError, parse_overrides
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, problem_error
from titanrun.config.references import find_variables
from titanrun.config.renames import RenameResult, rename_former_keys
from titanrun.config.text_edits import build_quote_fix
from titanrun.config.tree import (
    Node,
    PartialReadError,
    find_invalid_paths,
    find_node,
    format_path,
    to_plain_data,
)
from titanrun.recipe import builtins
from titanrun.recipe.moved_paths import use_moved_paths
from titanrun.recipe.plugin_files import PluginFile, is_plugin_file, list_plugin_places
from titanrun.recipe.plugins import activate_plugins, get_recipe_class, read_plugin_files
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.multi_stage import (
    STAGES,
    StageRequiredError,
    add_stage_id_hints,
    get_stages,
    select_stage,
    select_stage_overrides,
    split_stage,
)
from titanrun.recipe.resolving.recipe_file import find_recipe_file
from titanrun.recipe.resolving.run_length import (
    STEPS,
    WARMUP,
    keep_nearest_length,
    keep_nearest_warmup,
    shorten_warmup,
)
from titanrun.recipe.resolving.schema_queries import SchemaQueries

if TYPE_CHECKING:
    from titanrun.recipe.migrate import program_detection as program_detection
else:
    # imported only for a file without a version
    program_detection = LazyModule("titanrun.recipe.migrate.program_detection")

RECIPE_KEYS = {"extends", "model", "stages", "training"}
SWEEP_KEYS = {"recipe", "grid", "zip", "list", "random", "search"}
EARLY_LISTS = ("plugins", STAGES)
"""Lists of the top level that are needed before the rest of the schema is known."""


class SweepFileError(ProblemsFound):
    """The file is a sweep, not a recipe."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The tree, problems of single values, the paths they affect in it, and warnings.

    `is_incomplete` states that a file which the recipe extends cannot be read. `file`
    is the path that was read, also of a shipped recipe that was named. `variables` are the
    environment variables that values read, by path.
    """

    file: str
    tree: Node
    problems: tuple[Problem, ...]
    unreadable_paths: set[DataPath]
    warnings: tuple[Problem, ...] = ()
    is_incomplete: bool = False
    variables: Mapping[DataPath, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class ProblemCollector:
    """Problems of all reading steps and the values they make unreadable.

    Every step continues with the rest.
    """

    problems: list[Problem] = field(default_factory=list)
    unreadable_origins: set[Origin] = field(default_factory=set)
    unreadable_paths: set[DataPath] = field(default_factory=set)
    is_incomplete: bool = False

    def run_step(self, step: Callable[[], Node]) -> Node:
        """Run a step and return its tree without the broken parts.

        Raises:
            ProblemsFound: If nothing is left of the tree.
        """
        try:
            return step()
        except PartialReadError as part:
            # what a missing file may hold is not missed in later steps
            self.problems += () if self.is_incomplete else part.problems
            self.is_incomplete |= isinstance(part, IncompleteTreeError)
            self.unreadable_origins |= part.invalid_origins
            return part.root
        except StageRequiredError:
            raise
        except ProblemsFound as found:
            further = [
                problem
                for problem in found.problems
                if problem.origin not in self.unreadable_origins
            ]
            raise ProblemsFound([*self.problems, *further]) from None

    def parse_arguments(self, arguments: Sequence[str]) -> list[Override]:
        """Return the overrides that can be parsed."""
        try:
            return parse_overrides(arguments)
        except PartialOverridesError as part:
            self.problems += part.problems
            self.unreadable_paths |= part.invalid_paths
            return part.overrides


def read_tree(file: str, overrides: Sequence[str], environment: Mapping[str, str]) -> ReadResult:
    """Read, compose, override and interpolate a recipe, a file or a shipped one by its name.

    Raises:
        ProblemsFound: If that cannot be completed.
    """
    builtins.register_builtins()
    file = find_recipe_file(file)
    findings = ProblemCollector()
    whole = compose_with_bases(file, findings)
    load_listed_plugins(whole)
    stage = findings.run_step(lambda: select_stage(whole, file))
    composed = findings.run_step(lambda: add_to_default_lists(stage))
    parsed = select_stage_overrides(findings.parse_arguments(overrides), whole, file)
    findings.problems = add_stage_id_hints(findings.problems, whole)
    overridden = keep_nearest_warmup(
        keep_nearest_length(findings.run_step(lambda: apply_recipe_overrides(composed, parsed)))
    )
    overridden, cut = shorten_warmup(overridden)
    load_listed_plugins(overridden)
    after = SchemaQueries(to_plain_data(overridden))
    tree = findings.run_step(
        lambda: interpolate(
            overridden,
            environment,
            get_default=lambda path: find_default(path, file, after),
            is_text=after.is_text,
            is_secret=after.is_secret,
        )
    )
    problems = [
        keep_leading_zeros(problem) if after.is_text(problem.path) else problem
        for problem in hide_secrets_in_problems(findings.problems, after)
    ]
    today = apply_renames(tree)
    problems += [problem for problem in today.problems if problem.severity == "error"]
    warnings = (
        *(problem for problem in cut if not findings.unreadable_paths & {STEPS, WARMUP}),
        *(problem for problem in today.problems if problem.severity == "warning"),
    )
    return ReadResult(
        file,
        today.tree,
        tuple(problems),
        find_invalid_paths(today.tree, findings.unreadable_origins) | findings.unreadable_paths,
        warnings,
        findings.is_incomplete,
        find_variables(overridden, after.is_secret),
    )


def find_default(path: DataPath, file: str, queries: SchemaQueries) -> object:
    """Return the default of a setting to which a reference points. A run is named by its file.

    Raises:
        LookupError: It has none.
    """
    return PurePath(file).stem if path == ("name",) else queries.get_default(path)


def compose_with_bases(file: str, findings: ProblemCollector) -> Node:
    """Return the recipe merged over the files that it extends, without broken values.

    Raises:
        ProblemsFound: If nothing can be read, or the file is not a recipe.
    """
    merged = findings.run_step(
        lambda: compose(split_stage(file)[0], shipped_recipes.get_extends_roots())
    )
    whole = findings.run_step(lambda: add_to_default_lists(merged, EARLY_LISTS))
    check_is_recipe(whole, file)
    return whole


def compose_recipe(file: str) -> Node:
    """Return the recipe merged over the files that it extends, with all its stages and plug-ins.

    Raises:
        ProblemsFound: The recipe is unreadable, or a PartialReadError if part of it is readable.
    """
    whole = compose(find_recipe_file(file), shipped_recipes.get_extends_roots())
    return add_to_default_lists(whole, EARLY_LISTS)


def add_to_default_lists(tree: Node, keys: Collection[str] | None = None) -> Node:
    """Return the tree with what keys such as `converters+` add to lists that no file gives.

    Raises:
        PartialReadError: An addition has no list to go to.
    """
    queries = SchemaQueries(to_plain_data(tree))
    schema = ListSchema(
        # no field holds stages: they are runs of their own
        lambda path: path == (STAGES,) or queries.is_list(path),
        queries.has_field,
        queries.get_default,
    )
    return apply_list_additions(tree, schema, keys)


def read_stage_ids(file: str) -> list[str]:
    """Return the stages of a recipe, in order. Raise ProblemsFound if it is unreadable."""
    return list(get_stages(compose_recipe(file)))


def check_is_recipe(tree: Node, file: str) -> None:
    """Raise one problem if a file is a sweep or the configuration of another program.

    Every key of it would be unknown.
    """
    assert isinstance(tree.value, dict)
    path = split_stage(file)[0]
    first = next(iter(tree.value.values()), tree)
    origin = first.key or first.origin
    if SWEEP_KEYS & set(tree.value) and not {"model", "training"} & set(tree.value):
        message, hint = "this is a sweep, not a recipe", f"titanrun sweep {path}"
        raise SweepFileError([Problem("file", message, (), origin, hint=hint)])
    data = to_plain_data(tree)
    # most files are recipes, for which the tables of other programs are not imported
    program = "" if has_recipe_keys(data) else program_detection.detect_program(data)
    if program:
        message = f"this is a configuration of {program}, not a recipe"
        raise problem_error("file", message, origin=origin, hint=f"titanrun migrate {path}")


def has_recipe_keys(data: object) -> bool:
    """Return whether a file has a version, and something else that only recipes have."""
    return isinstance(data, dict) and "version" in data and not RECIPE_KEYS.isdisjoint(data)


def apply_renames(tree: Node) -> RenameResult:
    """Return the tree with the current names of fields."""
    return rename_former_keys(get_recipe_class(), tree, to_plain_data(tree))


def find_checksum_problems(file: str, tree: Node) -> list[Problem]:
    """Return a warning if a resolved recipe does not match the checksum in its header."""
    if get_checksum_state(tree.origin.source.text) != "changed":
        return []
    message = (
        f"{file} was edited after it was written: "
        "its body no longer matches the checksum in its first line"
    )
    return [
        Problem(
            "version",
            message,
            (),
            None,
            severity="warning",
            hint="remove the first line to turn it into an ordinary recipe",
        )
    ]


def load_listed_plugins(tree: Node) -> list[Problem]:
    """Load the plug-ins that the recipe lists, before their fields are looked up."""
    named = list_plugins(tree)
    return activate_plugins([str(item.value) for item in named], list_file_places(named))


def find_plugin_files(tree: Node) -> list[PluginFile]:
    """Return the plug-in files that the recipe lists and that can be read."""
    named = list_plugins(tree)
    read = read_plugin_files([str(item.value) for item in named], list_file_places(named))
    return [file for file in read if isinstance(file, PluginFile)]


def list_plugins(tree: Node) -> list[Node]:
    """Return the entries of the list of plug-ins that are text."""
    listed = find_node(tree, ("plugins",))
    items = listed.value if listed is not None and isinstance(listed.value, list) else []
    return [item for item in items if isinstance(item.value, str)]


def list_file_places(named: Sequence[Node]) -> dict[str, list[Path]]:
    """Return where each plug-in file may lie."""
    return {
        str(item.value): list_plugin_places(str(item.value), item.origin.source)
        for item in named
        if is_plugin_file(str(item.value))
    }


def keep_leading_zeros(problem: Problem) -> Problem:
    """Return the problem of a text that reads as an ambiguous number, such as 010, with a fix."""
    origin = problem.origin
    fix = None if origin is None else build_quote_fix(origin)
    if problem.code != "ambiguous-number" or origin is None:
        return problem
    line = origin.source.get_line(origin.line)
    written = line[origin.column - 1 : origin.end_column - 1]
    message = f"{written} is no text without quotes"
    quoted = f'"{written}"'
    if origin.source.kind == "override":
        quoted = shlex.quote(f"{format_path(problem.path)}={quoted}")
    return replace(problem, message=message, hint=f"write {quoted}", fix=fix)


def hide_secrets_in_problems(problems: Sequence[Problem], queries: SchemaQueries) -> list[Problem]:
    """Return the problems without showing the values of secrets."""
    return [
        hide_secret_in_problem(problem) if is_in_secret(problem.path, queries) else problem
        for problem in problems
    ]


def is_in_secret(path: DataPath, queries: SchemaQueries) -> bool:
    """Return whether a secret is at a path, or around it, where nothing may be below it."""
    return any(queries.is_secret(path[:length]) for length in range(1, len(path) + 1))


def hide_secret_in_problem(problem: Problem) -> Problem:
    """Return a problem of reading a secret without showing its value."""
    if problem.origin is None:
        return problem
    origin = problem.origin
    origin.source.hidden_origins.append(
        replace(origin, end_column=len(origin.source.get_line(origin.line)) + 1)
    )
    if problem.code in ("duplicate-key", "usage"):
        return problem
    return replace(
        problem,
        code="wrong-type",
        message=SECRET_MESSAGE,
        hint=SECRET_HELP,
        suggestion=None,
        got=None,
        fix=None,
    )


def read_resolved_tree(tree: Node) -> Node:
    """Return the tree of a resolved recipe: only its secrets are interpolated.

    Inputs that have moved since are where the command line says.

    Raises:
        ProblemsFound: If it cannot be read.
    """
    builtins.register_builtins()
    tree = use_moved_paths(tree)
    load_listed_plugins(tree)
    expected = SchemaQueries(to_plain_data(tree))
    return apply_renames(
        interpolate(tree, {}, is_text=expected.is_text, is_secret=expected.is_secret)
    ).tree


def apply_recipe_overrides(composed: Node, overrides: Sequence[Override]) -> Node:
    """Return the tree with the overrides applied."""
    before = SchemaQueries(to_plain_data(composed))
    return apply_overrides(
        composed,
        overrides,
        is_list=before.is_list,
        is_component=before.is_component,
        get_default=before.get_default,
        has_field=before.has_field,
    )
