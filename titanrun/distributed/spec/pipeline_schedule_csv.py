"""Custom pipeline schedules in PyTorch's CSV format: a line per rank, an action per cell.

An action is `1F0`: stage 1 runs the forward pass (F) of microbatch 0. B is the backward pass. I and
W are its two halves: first the gradients of the stage's input, later those of its weights. An empty
cell is a pause.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

ACTION_PATTERN = re.compile(r"(\d+)([FBIW])(\d+)")
BACKWARD_KINDS = ("B", "I")


class ScheduleFileError(ValueError):
    """Problem with a schedule file, as text."""


class PipelineAction(NamedTuple):
    """Action of a stage on a microbatch: F, B, I or W."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


PipelineOrder = list[list[PipelineAction]]
"""Actions of each rank in order."""


def read_schedule_csv(path: Path) -> PipelineOrder:
    """Return the actions of each rank.

    Raises:
        ScheduleFileError: if the file cannot be read or parsed.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleFileError(f"cannot read it: {error}") from error
    return [list(_parse_actions(cells, line)) for line, cells in enumerate(lines, start=1)]


def _parse_actions(cells: Iterable[str], line: int) -> Iterator[PipelineAction]:
    for cell in cells:
        found = ACTION_PATTERN.fullmatch(cell)
        if found is None and cell != "":
            raise ScheduleFileError(
                f"line {line} contains '{cell}', expected an action such as 0F1, with F, B, I or W"
            )
        if found is not None:
            yield PipelineAction(int(found[1]), found[2], int(found[3]))


def has_split_backward(order: PipelineOrder) -> bool:
    """Return whether backward passes run in halves."""
    return any(action.kind == "I" for actions in order for action in actions)


def get_stages_in_order(order: PipelineOrder, rank: int) -> tuple[int, ...]:
    """Return the stages of one rank in ascending order."""
    return tuple(sorted({action.stage for action in order[rank]}))


def find_schedule_problem(
    order: PipelineOrder, *, pp_size: int, num_stages: int, num_microbatches: int
) -> str | None:
    """Return why the actions are not a valid schedule of such a pipeline.

    Return None if they are valid and do not deadlock.
    """
    if len(order) != pp_size:
        return f"it has {len(order)} lines, but there are {pp_size} pipeline ranks"
    every = [action for actions in order for action in actions]
    if not every:
        return "it has no actions"
    if len(set(every)) < len(every):
        return f"{Counter(every).most_common(1)[0][0]} occurs twice"
    holders = [stage for rank in range(pp_size) for stage in get_stages_in_order(order, rank)]
    if sorted(holders) != list(range(num_stages)):
        return (
            f"its lines contain stages {', '.join(map(str, sorted(holders)))}, but the "
            f"pipeline has 0 to {num_stages - 1}"
        )
    counted = 1 + max(action.microbatch for action in every)
    if counted != num_microbatches:
        return f"it has {counted} microbatches, but a forward pass has {num_microbatches}"
    present = set(every)
    for stage, microbatch in product(range(num_stages), range(num_microbatches)):
        kinds = {kind for kind in "FBIW" if PipelineAction(stage, kind, microbatch) in present}
        if kinds not in ({"F", "B"}, {"F", "I", "W"}):
            found = "".join(sorted(kinds)) or "nothing"
            return (
                f"stage {stage} needs F and B, or F, I and W, of microbatch {microbatch}, but "
                f"has {found}"
            )
    return find_deadlock(order, last_stage=num_stages - 1)


def find_deadlock(order: PipelineOrder, *, last_stage: int) -> str | None:
    """Return the actions that wait forever because their inputs come later.

    Return None if the schedule completes.
    """
    left, done = [list(reversed(actions)) for actions in order], set[PipelineAction]()
    while any(left):
        ready = [
            actions
            for actions in left
            if actions
            and all(
                done & needed for needed in get_dependencies(actions[-1], last_stage=last_stage)
            )
        ]
        if not ready:
            stuck = ", ".join(
                f"{actions[-1]} on line {line}"
                for line, actions in enumerate(left, start=1)
                if actions
            )
            return f"it deadlocks: {stuck} would wait forever"
        for actions in ready:
            done.add(actions.pop())
    return None


def get_dependencies(action: PipelineAction, *, last_stage: int) -> list[set[PipelineAction]]:
    """Return the dependencies of an action: one action of each set must be done before."""
    stage, kind, microbatch = action
    if kind == "F":
        return [] if stage == 0 else [{PipelineAction(stage - 1, "F", microbatch)}]
    if kind == "W":
        return [{PipelineAction(stage, "I", microbatch)}]
    own = {PipelineAction(stage, "F", microbatch)}
    return (
        [own]
        if stage == last_stage
        else [own, {PipelineAction(stage + 1, kind, microbatch) for kind in BACKWARD_KINDS}]
    )
