"""The schedules of the stages of a recipe that is resumed with other lengths."""

from collections.abc import Sequence
from pathlib import Path

from titanrun.config.compose import compose
from titanrun.config.override_parser import Override, parse_overrides
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import Node, find_node, format_path, to_plain_data
from titanrun.config.types import AUTO
from titanrun.recipe.resolving.multi_stage import STAGES, get_stages, select_stage_overrides
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.schedule_extension import (
    FOLLOWING_FIELDS,
    HORIZON,
    STEPS,
    changes_length,
    find_followed_fields,
    is_overridden,
)

SCHEDULE = "lr_scheduler"


def build_stage_schedule_overrides(stages_file: str, overrides: Sequence[str]) -> list[str]:
    """Return further overrides for the lengths of stages and for their schedules.

    The schedule of each stage follows its new length. A stage that was resumed by itself with more
    steps keeps them and its schedule, unless an override sets its length.

    Args:
        stages_file: The recipe of the stages in their common folder, with all values resolved.
        overrides: The overrides on the command line.

    Raises:
        ProblemsFound: The schedule of a stage is written, and ends before the stage.
    """
    try:
        changes = parse_overrides(overrides)
        tree = compose(stages_file)
        own = {
            stage: select_stage_overrides(changes, tree, f"{stages_file}#{stage}")
            for stage in get_stages(tree)
        }
    except ProblemsFound:
        # reported with the whole recipe
        return []
    found: list[str] = []
    problems: list[Problem] = []
    for stage, node in get_stages(tree).items():
        try:
            fields = find_stage_fields(Path(stages_file).parent, stage, node, own[stage])
        except ProblemsFound as error:
            problems += error.problems
            continue
        found += [f"{STAGES}.{stage}.{SCHEDULE}.{name}=auto" for name in fields]
        if not changes_length(own[stage]):
            found += build_kept_length_overrides(Path(stages_file).parent, stage, node, own[stage])
    if problems:
        raise ProblemsFound(problems)
    return found


def find_stage_fields(
    folder: Path, stage: str, node: Node, changes: Sequence[Override]
) -> list[str]:
    """Return the fields of a stage's schedule that follow its new length."""
    resolved = folder / stage / RESOLVED
    if not changes_length(changes):
        return []
    if resolved.is_file():
        return find_followed_fields(resolved, changes, stage=stage)
    # nothing tells what was written for a stage that has not started: most have one length
    horizon, steps = find_node(node, (SCHEDULE, HORIZON)), find_node(node, STEPS)
    is_free = not is_overridden((SCHEDULE, HORIZON), changes)
    is_same = (
        horizon is not None and steps is not None and to_plain_data(horizon) == to_plain_data(steps)
    )
    return [HORIZON] if is_free and is_same else []


def build_kept_length_overrides(
    folder: Path, stage: str, node: Node, changes: Sequence[Override]
) -> list[str]:
    """Return the overrides by which a stage that trained further by itself keeps its length."""
    resolved, steps = folder / stage / RESOLVED, find_node(node, STEPS)
    if steps is None or not resolved.is_file():
        return []
    run, before = load_resolved(resolved), to_plain_data(steps)
    after = run.training.steps
    if not isinstance(before, int) or not isinstance(after, int) or after <= before:
        return []
    followed = find_followed_fields(resolved, changes, stage=stage)
    kept: dict[DataPath, object] = {STEPS: after}
    kept |= {
        (SCHEDULE, name): AUTO if name in followed else getattr(run.lr_scheduler, name)
        for name in FOLLOWING_FIELDS
        if hasattr(run.lr_scheduler, name)
    }
    return [
        f"{format_path((STAGES, stage, *path))}={to_flow_yaml(value)}"
        for path, value in kept.items()
        if not is_overridden(path, changes)
    ]
