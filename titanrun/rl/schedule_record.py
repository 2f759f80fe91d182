"""Record of an RL run's schedule, from which the run can be replayed bit by bit.

Each line of the file is an event in the order in which the trainer learned of it.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.rl.rollout_types import RolloutGroup

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
    # threads that read the messages of a fleet write too
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, event: str, **values: Any) -> None:
        """Append an event."""
        if self.folder is None:
            return
        line = json.dumps({"event": event, **values}) + "\n"
        with self._lock, (self.folder / SCHEDULE_FILE).open("a", encoding="utf-8") as file:
            file.write(line)

    def write_take(self, key: TakeKey, groups: Sequence[RolloutGroup]) -> None:
        """Append the groups of a step: prompts, tokens, log-probabilities, rewards, versions."""
        self.write(
            "take",
            policy_version=key.policy_version,
            num_dropped=key.num_dropped,
            groups=[group.to_dict() for group in groups],
        )


@dataclass(frozen=True, slots=True)
class GenerationBatch:
    """Prompts that a generator continued together.

    Args:
        generator: its number in the fleet.
        version: version of its weights at the start.
        requests: the prompts, each with its `tokens`, `seed` and `max_new_tokens`.
        loads: weights that it loaded in between: after how many tokens, and their version.
    """

    generator: int
    version: int
    requests: Sequence[dict[str, Any]]
    loads: Sequence[tuple[int, int]]

    @property
    def newest_version(self) -> int:
        """Newest version of the weights that it was generated with."""
        return max([self.version, *(version for _, version in self.loads)])


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """What the generators of a recorded run did.

    Args:
        threads: CPU threads of each generator.
        resets_cache: whether weights that were loaded within a completion computed the keys and
            values of earlier tokens again.
        batches: their batches, in the order of their ends.
    """

    threads: int
    resets_cache: bool
    batches: Sequence[GenerationBatch]


def read_takes(file: Path) -> dict[TakeKey, list[dict[str, Any]]]:
    """Read the groups of each step.

    Raises:
        ProblemsFound: the file cannot be read, or a line is damaged.
    """
    found: dict[TakeKey, list[dict[str, Any]]] = {}
    for number, event in iter_events(file):
        if event["event"] != "take":
            continue
        try:
            found[TakeKey(event["policy_version"], event["num_dropped"])] = event["groups"]
        except (KeyError, TypeError) as error:
            raise build_damage_error(file, number, error) from None
    return found


def read_generation(file: Path) -> GenerationRecord:
    """Read what the generators did.

    What a run did after the checkpoint from which it went on later is left out.

    Raises:
        ProblemsFound: the file cannot be read, a line is damaged, or no generator was recorded.
    """
    threads, resets_cache, batches = 1, True, list[GenerationBatch]()
    for number, event in iter_events(file):
        try:
            if event["event"] == "open":
                threads, resets_cache = int(event["threads"]), event["kv_on_update"] == "reset"
            if event["event"] in ("open", "rollback"):
                kept = int(event["version"])
                batches = [batch for batch in batches if batch.newest_version <= kept]
            elif event["event"] == "generate":
                loads = [(int(tokens), int(version)) for tokens, version in event["loads"]]
                batches.append(
                    GenerationBatch(event["generator"], event["version"], event["requests"], loads)
                )
        except (KeyError, TypeError, ValueError) as error:
            raise build_damage_error(file, number, error) from None
    if not batches:
        raise problem_error(
            "data",
            f"{file} does not say how the completions were generated",
            path=("rl", "schedule", "replay_level"),
            hint="record a run with rl.fleet.processes and rl.generator native, "
            "or use replay_level: completions",
        )
    return GenerationRecord(threads, resets_cache, batches)


def iter_events(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each event of a record with the number of its line.

    Raises:
        ProblemsFound: the file cannot be read, or a line is damaged.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise problem_error(
            "data",
            f"{file} cannot be read: {error.strerror}",
            path=REPLAY_PATH,
            hint="name the run directory of a run with rl.schedule.record: true",
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            event: Any = parse_json(line)
        except ValueError as error:
            raise build_damage_error(file, number, error) from None
        if not isinstance(event, dict) or "event" not in event:
            raise build_damage_error(file, number, "it is no event")
        yield number, event


def build_damage_error(file: Path, number: int, reason: object) -> ProblemsFound:
    """Build the problem of a line that cannot be read."""
    return problem_error("data", f"line {number} of {file} is damaged: {reason}", path=REPLAY_PATH)
