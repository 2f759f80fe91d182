"""Record of which rollout groups each step took, from which a run can be replayed bit by bit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.rl.rollout_types import RolloutGroup, rollout_group_from_dict

SCHEDULE_FILE = "schedule.jsonl"
REPLAY_PATH = ("rl", "schedule", "replay")


@dataclass(frozen=True, slots=True)
class TakeKey:
    """Position of a step's groups in a run.

    Args:
        policy_version: version of the weights that learn from them.
        num_dropped: steps of that version before it that had nothing to learn from.
    """

    policy_version: int
    num_dropped: int


@dataclass(frozen=True, slots=True)
class ScheduleRecorder:
    """Writer of the record, on the first rank. Other ranks have no folder and write nothing.

    A run that is resumed appends: of several lines for a step the last one counts.
    """

    folder: Path | None

    def write(self, key: TakeKey, groups: Sequence[RolloutGroup]) -> None:
        """Append the groups of a step: prompts, tokens, log-probabilities, rewards, versions."""
        if self.folder is None:
            return
        line = {
            "policy_version": key.policy_version,
            "num_dropped": key.num_dropped,
            "groups": [group.to_dict() for group in groups],
        }
        with (self.folder / SCHEDULE_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(slots=True)
class ScheduleReplay:
    """Groups of a recorded run by step. They are read when the first is asked for."""

    folder: Path
    _lines: dict[TakeKey, list[dict[str, Any]]] = field(default_factory=dict)

    def get_groups(self, key: TakeKey) -> list[RolloutGroup]:
        """Return the groups that the recorded run took at this point.

        Raises:
            ProblemsFound: there is no record, or it does not reach that far.
        """
        if not self._lines:
            self._lines = read_schedule(self.folder / SCHEDULE_FILE)
        if key not in self._lines:
            raise problem_error(
                "data",
                f"{self.folder / SCHEDULE_FILE} has no groups for policy version "
                f"{key.policy_version}",
                path=REPLAY_PATH,
                hint="train at most as many steps as the recorded run, from the same start",
            )
        return [rollout_group_from_dict(data) for data in self._lines[key]]


def read_schedule(file: Path) -> dict[TakeKey, list[dict[str, Any]]]:
    """Read a record.

    Raises:
        ProblemsFound: the file cannot be read, or a line is damaged.
    """
    found: dict[TakeKey, list[dict[str, Any]]] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise problem_error(
            "data",
            f"{file} cannot be read: {error.strerror}",
            path=REPLAY_PATH,
            hint="name the run directory of a run with rl.schedule.record: true",
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            data: Any = parse_json(line)
            found[TakeKey(data["policy_version"], data["num_dropped"])] = data["groups"]
        except (ValueError, KeyError, TypeError) as error:
            raise problem_error(
                "data", f"line {number} of {file} is damaged: {error}", path=REPLAY_PATH
            ) from None
    return found
