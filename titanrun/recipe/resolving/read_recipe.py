"""Reading of files and overrides into one tree.

Values that cannot be read are reported, and reading continues without them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from titanrun.config.apply_overrides import apply_overrides
from titanrun.config.checksum import get_checksum_state
from titanrun.config.compose import compose, is_absent
from titanrun.config.error_messages import SECRET_HELP, SECRET_MESSAGE
from titanrun.config.interpolate import interpolate
from titanrun.config.override_parser import Override, PartialOverridesError, parse_overrides
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, problem_error
from titanrun.config.references import find_variables
from titanrun.config.renames import RenameResult, rename_former_keys
from titanrun.config.tree import (
    Node,
    PartialReadError,
    find_invalid_paths,
    find_node,
    to_plain_data,
)
from titanrun.recipe import builtins
from titanrun.recipe.plugins import activate_plugins, get_recipe_class
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.multi_stage import (
    StageRequiredError,
    get_stages,
    select_stage,
    select_stage_overrides,
    split_stage,
)
from titanrun.recipe.resolving.run_length import keep_nearest_length
from titanrun.recipe.resolving.schema_queries import SchemaQueries


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The tree, problems of single values, the paths they affect in it, and warnings.

    `variables` are the environment variables that values read, by path.
    """

    tree: Node
    problems: tuple[Problem, ...]
    unreadable_paths: set[DataPath]
    warnings: tuple[Problem, ...] = ()
    variables: Mapping[DataPath, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class ProblemCollector:
    """Problems of all reading steps and the values they make unreadable.

    Every step continues with the rest.
    """

    problems: list[Problem] = field(default_factory=list)
    unreadable_origins: set[Origin] = field(default_factory=set)
    unreadable_paths: set[DataPath] = field(default_factory=set)

    def run_step(self, step: Callable[[], Node]) -> Node:
        """Run a step and return its tree without the broken parts.

        Raises:
            ProblemsFound: If nothing is left of the tree.
        """
        try:
            return step()
        except PartialReadError as part:
            self.problems += part.problems
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
    """Read, compose, override and interpolate a recipe.

    Raises:
        ProblemsFound: If that cannot be completed.
    """
    builtins.register_builtins()
    findings = ProblemCollector()
    check_not_shipped_name(split_stage(file)[0])
    whole = findings.run_step(
        lambda: compose(split_stage(file)[0], shipped_recipes.get_extends_roots())
    )
    load_listed_plugins(whole)
    composed = findings.run_step(lambda: select_stage(whole, file))
    parsed = select_stage_overrides(findings.parse_arguments(overrides), whole, file)
    overridden = keep_nearest_length(
        findings.run_step(lambda: apply_recipe_overrides(composed, parsed))
    )
    load_listed_plugins(overridden)
    after = SchemaQueries(to_plain_data(overridden))
    tree = findings.run_step(
        lambda: interpolate(
            overridden,
            environment,
            get_default=after.get_default,
            is_text=after.is_text,
            is_secret=after.is_secret,
        )
    )
    problems = [
        hide_secret_in_problem(problem) if after.is_secret(problem.path) else problem
        for problem in findings.problems
    ]
    today = apply_renames(tree)
    problems += [problem for problem in today.problems if problem.severity == "error"]
    warnings = tuple(problem for problem in today.problems if problem.severity == "warning")
    return ReadResult(
        today.tree,
        tuple(problems),
        find_invalid_paths(today.tree, findings.unreadable_origins) | findings.unreadable_paths,
        warnings,
        find_variables(overridden, after.is_secret),
    )


def read_stage_ids(file: str) -> list[str]:
    """Return the stages of a recipe, in order. Raise ProblemsFound if it is unreadable."""
    return list(get_stages(compose(file, shipped_recipes.get_extends_roots())))


def check_not_shipped_name(file: str) -> None:
    """Raise if a file is required but the bare name of a shipped recipe is given."""
    if is_absent(file) and any(
        file in (entry.name, entry.path.name, entry.path.stem)
        for entry in shipped_recipes.list_shipped_recipes()
    ):
        raise problem_error(
            "file",
            f"file not found: {file}",
            hint=f"it ships with titanrun: titanrun cp {file} mine.yaml",
        )


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
    listed = find_node(tree, ("plugins",))
    items = listed.value if listed is not None and isinstance(listed.value, list) else []
    return activate_plugins([item.value for item in items if isinstance(item.value, str)])


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

    Raises:
        ProblemsFound: If it cannot be read.
    """
    builtins.register_builtins()
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
