"""How thoroughly a recipe is checked: each level includes the ones before it, the last one starts a process that builds the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from titanrun.config.arguments import parse_overrides
from titanrun.config.compose import compose
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.render import in_file_order
from titanrun.config.tree import Node, ReadInPart
from titanrun.recipe.reading import read_tree
from titanrun.recipe.resolve import Resolved, check_tree, is_follow_up, placed, resolve
from titanrun.recipe.staged import problems_between, stages_in_order
from titanrun.recipe.stages import HasStages, chosen_stage, split_stage

Level = Literal["syntax", "schema", "rules", "environment", "build"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Examined:
    """What one level found: problems in file order, the exit code they ask for, and as much of the recipe as could be read."""

    problems: tuple[Problem, ...]
    exit_code: int = 0
    tree: Node | None = None
    resolved: Resolved | None = None
    stages: tuple[str, ...] = ()
    """The stages that a recipe has, of which one must be named; then nothing was examined."""


def examine_file(
    file: str,
    overrides: Sequence[str],
    *,
    level: Level,
    environment: Mapping[str, str],
    ranks: int | None = None,
) -> Examined:
    """The recipe in `file`, examined up to `level`; `build` is examined as `environment`, and `built` does the rest."""
    try:
        if level == "syntax":
            parse_overrides(overrides)
            return Examined((), tree=chosen_stage(compose(split_stage(file)[0]), file))
        if level == "schema":
            return against_schema(file, overrides, environment)
        resolved = resolve(
            file,
            overrides,
            environment=environment,
            check_inputs=level in ("environment", "build"),
            ranks=ranks,
        )
    except HasStages as staged:
        return Examined((), tree=staged.tree, stages=staged.ids)
    except ProblemsFound as found:
        tree = found.root if isinstance(found, ReadInPart) else None
        return Examined(tuple(in_file_order(found.problems)), found.exit_code, tree)
    return Examined(tuple(in_file_order(resolved.warnings)), tree=resolved.tree, resolved=resolved)


def joined(whole: Examined, stages: Sequence[Examined]) -> Examined:
    """What was found in the stages of a recipe, once where several share it, and between one stage and the next."""
    runs = [stage.resolved for stage in stages if stage.resolved is not None]
    between = []
    if whole.tree is not None and len(runs) == len(stages):
        between = problems_between(stages_in_order(whole.stages, runs, whole.tree))
    found = [*(problem for stage in stages for problem in stage.problems), *between]
    once = {(problem.label, problem.message, str(problem.origin)): problem for problem in found}
    code = next((problem.exit_code for problem in found if problem.severity == "error"), 0)
    return Examined(tuple(in_file_order(once.values())), code, whole.tree)


def against_schema(file: str, overrides: Sequence[str], environment: Mapping[str, str]) -> Examined:
    """What is wrong with single keys and values. Raises ProblemsFound."""
    reading = read_tree(file, overrides, environment)
    found: list[Problem] = []
    try:
        check_tree(reading.tree)
    except ProblemsFound as error:
        found = [problem for problem in error.problems if not is_follow_up(problem, reading.broken)]
    if reading.problems or found:
        raise ProblemsFound([*reading.warnings, *reading.problems, *found])
    return Examined(reading.warnings, tree=reading.tree)


def built(examined: Examined, try_build: Callable[[Resolved], Sequence[Problem]]) -> Examined:
    """The same with what `try_build` says about the run added, each problem at the place of its path; nothing is built with errors."""
    if examined.resolved is None:
        return examined
    resolved = examined.resolved
    found = [in_tree(problem, resolved) for problem in try_build(resolved)]
    code = next((problem.exit_code for problem in found if problem.severity == "error"), 0)
    return replace(
        examined,
        problems=tuple(in_file_order([*examined.problems, *found])),
        exit_code=examined.exit_code or code,
    )


def in_tree(problem: Problem, resolved: Resolved) -> Problem:
    """A problem that only has a path, at its place in the recipe."""
    return placed(problem, resolved.tree)
