"""A pipeline schedule of one's own, in PyTorch's CSV format: a line for each rank, an action in each cell.

An action is `1F0`: stage 1 runs the forward pass (F) of microbatch 0. B is the backward pass; I and W are its two halves, first the
gradients of the stage's input, later those of its weights. An empty cell is a pause.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
BACKWARD = ("B", "I")


class ScheduleFileError(ValueError):
    """What is wrong with a schedule file, in words."""


class Action(NamedTuple):
    """What a stage does with a microbatch: F, B, I or W."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Order = list[list[Action]]
"""The actions of each rank, one after the other."""


def read_schedule(path: Path) -> Order:
    """The actions of each rank. Raises ScheduleFileError where the file cannot be read so."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleFileError(f"it cannot be read: {error}") from error
    return [list(_actions(cells, line)) for line, cells in enumerate(lines, start=1)]


def _actions(cells: Iterable[str], line: int) -> Iterator[Action]:
    for cell in cells:
        found = ACTION.fullmatch(cell)
        if found is None and cell != "":
            raise ScheduleFileError(
                f"line {line} holds '{cell}', and an action is written like 0F1, with F, B, I or W"
            )
        if found is not None:
            yield Action(int(found[1]), found[2], int(found[3]))


def splits_backward(order: Order) -> bool:
    """Whether backward passes are run in halves."""
    return any(action.kind == "I" for actions in order for action in actions)


def stages_held(order: Order, rank: int) -> tuple[int, ...]:
    """The stages of one rank, ascending."""
    return tuple(sorted({action.stage for action in order[rank]}))


def fault_in(order: Order, *, ranks: int, stages: int, microbatches: int) -> str | None:
    """Why the actions are no schedule of such a pipeline, or would wait for each other for ever; None where they are one."""
    if len(order) != ranks:
        return f"it has {len(order)} lines, and there are {ranks} pipeline ranks"
    every = [action for actions in order for action in actions]
    if not every:
        return "it has no actions"
    if len(set(every)) < len(every):
        return f"{Counter(every).most_common(1)[0][0]} stands in it twice"
    holders = [stage for rank in range(ranks) for stage in stages_held(order, rank)]
    if sorted(holders) != list(range(stages)):
        return f"its lines hold the stages {', '.join(map(str, sorted(holders)))}, and the pipeline has 0 to {stages - 1}"
    counted = 1 + max(action.microbatch for action in every)
    if counted != microbatches:
        return f"it has {counted} microbatches, and a forward pass has {microbatches}"
    present = set(every)
    for stage, microbatch in product(range(stages), range(microbatches)):
        kinds = {kind for kind in "FBIW" if Action(stage, kind, microbatch) in present}
        if kinds not in ({"F", "B"}, {"F", "I", "W"}):
            found = "".join(sorted(kinds)) or "nothing"
            return f"stage {stage} needs F and B, or F, I and W, of microbatch {microbatch}, and has {found}"
    return waiting(order, last=stages - 1)


def waiting(order: Order, *, last: int) -> str | None:
    """What never gets its turn, since what it needs comes later; None where all is done in the end."""
    left, done = [list(reversed(actions)) for actions in order], set[Action]()
    while any(left):
        ready = [
            actions
            for actions in left
            if actions and all(done & needed for needed in needs(actions[-1], last=last))
        ]
        if not ready:
            stuck = ", ".join(
                f"{actions[-1]} on line {line}"
                for line, actions in enumerate(left, start=1)
                if actions
            )
            return f"it comes to a halt: {stuck} would wait for ever"
        for actions in ready:
            done.add(actions.pop())
    return None


def needs(action: Action, *, last: int) -> list[set[Action]]:
    """What must be done before: one of each set."""
    stage, kind, microbatch = action
    if kind == "F":
        return [] if stage == 0 else [{Action(stage - 1, "F", microbatch)}]
    if kind == "W":
        return [{Action(stage, "I", microbatch)}]
    own = {Action(stage, "F", microbatch)}
    return (
        [own]
        if stage == last
        else [own, {Action(stage + 1, kind, microbatch) for kind in BACKWARD}]
    )
