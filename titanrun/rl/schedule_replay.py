"""Replay of a recorded run: its completions again, read or generated again bit by bit."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.generators.native_generator import NativeGenerator
from titanrun.rl.rollout_runner import compute_sampling_seed
from titanrun.rl.rollout_types import (
    Completion,
    GenerateRequest,
    Rollout,
    RolloutGroup,
    completion_from_dict,
    rollout_group_from_dict,
)
from titanrun.rl.schedule_record import (
    REPLAY_PATH,
    SCHEDULE_FILE,
    GenerationBatch,
    GenerationRecord,
    TakeKey,
    read_generation,
    read_takes,
)
from titanrun.rl.weight_sync.transport import cast_for_generator
from titanrun.training.engine import Engine


@dataclass(slots=True)
class RegeneratedTurn:
    """Completion of a prompt, and the position of its batch in the record."""

    position: int
    prompt: list[int]
    completion: Completion


@dataclass(slots=True)
class GeneratorReplay:
    """One recorded generator: its batches in their order, with the same weights at each token."""

    generator: NativeGenerator
    batches: Sequence[tuple[int, GenerationBatch]]

    def iter_versions(self, found: dict[int, RegeneratedTurn]) -> Iterator[int]:
        """Generate, and yield each version that must be loaded before it can go on.

        Args:
            found: gets the completions by their seed. Of several, the last of the record counts.
        """
        for position, recorded in self.batches:
            if self.generator.version != recorded.version:
                yield recorded.version
            batch = self.generator.start_batch(
                [GenerateRequest(**request) for request in recorded.requests]
            )
            loads = deque(recorded.loads)
            for _ in self.generator.iter_bursts(batch):
                if loads and loads[0][0] == batch.num_steps:
                    yield loads.popleft()[1]
            for request, completion in zip(batch.requests, batch.build_completions(), strict=True):
                before = found.get(request.seed)
                if before is None or before.position < position:
                    found[request.seed] = RegeneratedTurn(position, request.tokens, completion)


@dataclass(slots=True, kw_only=True)
class ScheduleRegeneration:
    """Recorded generators, which follow the weights of the run in one process.

    Collective: all ranks must call its methods. The first rank generates.

    Args:
        folder: run directory of the recorded run.
        build_generator: builds a generator without weights. Its argument is whether keys and
            values are computed again with weights that are loaded within a completion.
        seed: of the run.
        dtype: dtype of the weights that generators get.
        parameter_names: names of the tensors to cast to it.
        ranks: all ranks.
    """

    folder: Path
    build_generator: Callable[[bool], NativeGenerator]
    seed: int
    dtype: torch.dtype
    parameter_names: frozenset[str]
    ranks: RankGroup
    _version: int = -1
    _threads: int = 1
    _found: dict[int, RegeneratedTurn] = field(default_factory=dict)
    _replays: list[tuple[GeneratorReplay, Iterator[int]]] = field(default_factory=list)
    _wanted: dict[int, int] = field(default_factory=dict)

    @torch.no_grad()
    def advance(self, engine: Engine) -> None:
        """Generate all that the engine's weights have a part in. Collective.

        Raises:
            ProblemsFound: there is no record of generation, or it begins with earlier weights.
        """
        version = engine.policy_version
        if version <= self._version:
            return
        is_first, self._version = self._version < 0, version
        stream = cast_for_generator(
            engine.state_dict_stream(), dtype=self.dtype, parameter_names=self.parameter_names
        )
        # the stream is collective, and only the first rank needs it
        weights = [each for each in stream if self.ranks.rank == 0]
        self.ranks.broadcast_from_main(lambda: self._advance(weights, is_first=is_first))

    def check(self, groups: Sequence[RolloutGroup]) -> None:
        """Compare the completions of a step's groups with those that were generated again.

        Collective.

        Raises:
            ProblemsFound: one differs, or the record does not say how it was generated.
        """
        self.ranks.broadcast_from_main(lambda: self._check(groups))

    def _advance(self, weights: Sequence[tuple[str, Tensor]], *, is_first: bool) -> None:
        if is_first:
            self._open()
        with use_threads(self._threads):
            for number, (replay, versions) in enumerate(self._replays):
                while self._wanted.get(number) == self._version:
                    replay.generator.load(weights, version=self._version)
                    self._wanted[number] = next(versions, -1)

    def _open(self) -> None:
        """Read the record, and build a generator for each one that has generated.

        Raises:
            ProblemsFound: the record cannot be read, or begins with earlier weights.
        """
        record = read_generation(self.folder / SCHEDULE_FILE)
        self._threads = record.threads
        for batches in group_by_generator(record):
            first = batches[0][1].version
            if first < self._version:
                raise problem_error(
                    "usage",
                    f"the record begins with policy version {first}, "
                    f"but this run with {self._version}",
                    path=REPLAY_PATH,
                    hint="start where the recorded run did, and do not resume a replay",
                )
            replay = GeneratorReplay(self.build_generator(record.resets_cache), batches)
            self._replays.append((replay, replay.iter_versions(self._found)))
            self._wanted[len(self._wanted)] = next(self._replays[-1][1])

    def _check(self, groups: Sequence[RolloutGroup]) -> None:
        for group in groups:
            for rollout in group.rollouts:
                for turn in range(len(rollout.turns)):
                    self._check_turn(rollout, turn)

    def _check_turn(self, rollout: Rollout, turn: int) -> None:
        place = f"turn {turn} of {rollout.id}, taken at policy version {self._version}"
        recorded = rollout.turns[turn]
        found = self._found.pop(compute_sampling_seed(self.seed, rollout, turn), None)
        if found is None:
            raise build_difference(f"the record does not say how {place}, was generated")
        if found.prompt != recorded.prompt:
            raise build_difference(f"the prompt of {place}, is not the one that was continued")
        # as it would be read from a record
        again = pair_tokens(completion_from_dict(found.completion.to_dict()))
        for index, (old, new) in enumerate(zip_longest(pair_tokens(recorded.completion), again)):
            if old != new:
                raise build_difference(
                    f"token {index} of {place}, differs: "
                    f"{describe_token_event(old)} in the record, {describe_token_event(new)} now"
                )


@dataclass(slots=True)
class ScheduleReplay:
    """Groups of a recorded run by step. They are read when the first is asked for.

    Args:
        folder: run directory of the recorded run.
        regeneration: generates the completions again, and compares. None: it does not.
    """

    folder: Path
    regeneration: ScheduleRegeneration | None = None
    _lines: dict[TakeKey, list[dict[str, Any]]] = field(default_factory=dict)

    def advance(self, engine: Engine) -> None:
        """Generate again what the engine's weights have a part in. Collective."""
        if self.regeneration is not None:
            self.regeneration.advance(engine)

    def get_groups(self, key: TakeKey) -> list[RolloutGroup]:
        """Return the groups that the recorded run took at this point. Collective.

        Raises:
            ProblemsFound: there is no record, it does not reach that far, or what is generated
                again differs.
        """
        file = self.folder / SCHEDULE_FILE
        if not self._lines:
            self._lines = read_takes(file)
        if key not in self._lines:
            raise problem_error(
                "data",
                f"{file} has no groups for policy version {key.policy_version}",
                path=REPLAY_PATH,
                hint="train at most as many steps as the recorded run, from the same start",
            )
        groups = [rollout_group_from_dict(data) for data in self._lines[key]]
        if self.regeneration is not None:
            self.regeneration.check(groups)
        return groups


def group_by_generator(record: GenerationRecord) -> list[list[tuple[int, GenerationBatch]]]:
    """Return the batches of each generator with their positions in the record."""
    found: defaultdict[int, list[tuple[int, GenerationBatch]]] = defaultdict(list)
    for position, batch in enumerate(record.batches):
        found[batch.generator].append((position, batch))
    return list(found.values())


def pair_tokens(completion: Completion) -> list[tuple[int, float, int]]:
    """Return each token with its log-probability and the version of its weights."""
    return list(zip(completion.tokens, completion.logprobs, completion.versions, strict=True))


def describe_token_event(token: tuple[int, float, int] | None) -> str:
    """Return a token in words."""
    if token is None:
        return "none"
    return f"{token[0]} with log-probability {token[1]!r} of version {token[2]}"


def build_difference(message: str) -> ProblemsFound:
    """Build the problem of a completion that is not generated again."""
    return problem_error(
        "data",
        message,
        path=REPLAY_PATH,
        hint="use the recipe, the packages and the machine of the recorded run, "
        "or replay_level: completions",
    )


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this number of CPU threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
