"""A trainer and a fleet on a simulated clock, whose settings and times are given or drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch

from tests.rl.simulated_clock import SimulatedClock, SimulatedCondition
from tests.rl.simulated_fleet import Scene, SimulatedProcess, SimulatedShelf
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.config import RouterConfig
from titanrun.rl.fleet.fleet_runner import FleetRunner, FleetWeightSync
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.rollout_source import RolloutLayout, RolloutSource
from titanrun.rl.rollout_types import Prompt, RolloutGroup
from titanrun.rl.state import RlState
from titanrun.rl.weight_sync.weight_sync import VERSIONS_PER_ROLLBACK

ENDLESS = 10**6


class Steady(Random):
    """Draws that are always the longest time, and the first choice."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: Any) -> Any:
        return seq[0]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What differs between schedules. Times are the longest of those that are drawn.

    Args:
        draws: of times, and of what goes wrong.
        processes: of the fleet.
        max_running: conversations at once in each.
        train_seconds: time of a step of the trainer without waiting.
        count_seconds: time of a turn of so many groups.
        load_seconds: time to write weights, or to read them.
        max_turns: turns of every fourth conversation. The others have one.
        keep_versions: versions of the weights that are kept.
        connects: whether processes say themselves when they can be reached.
        hang_share: share of hanging bursts.
        kill_share: share of steps in which a process is killed.
        rollback_share: share of steps that take the weights back.
    """

    draws: Random
    processes: int
    max_running: int
    train_seconds: float
    count_seconds: Callable[[int], float]
    load_seconds: float
    router: RouterConfig = field(default_factory=RouterConfig)
    max_turns: int = 1
    keep_versions: int = 2
    updates_in_flight: bool = True
    connects: bool = False
    hang_share: float = 0.0
    kill_share: float = 0.0
    rollback_share: float = 0.0


def draw_options(seed: int) -> Options:
    draws = Random(seed)
    return Options(
        draws=draws,
        processes=draws.choice([1, 2, 3]),
        max_running=draws.choice([1, 2, 4, 20]),
        train_seconds=draws.choice([0.0, 1.0, 10.0]),
        count_seconds=lambda num_groups: 3.0,
        load_seconds=1.0,
        router=RouterConfig(
            name=draws.choice(["least_loaded", "round_robin"]), sticky=draws.random() < 0.5
        ),
        max_turns=draws.choice([1, 4, 9]),
        keep_versions=draws.choice([1, 2]),
        updates_in_flight=draws.random() < 0.5,
        connects=draws.random() < 0.5,
        hang_share=draws.choice([0.0, 0.0, 0.01]),
        kill_share=draws.choice([0.0, 0.0, 0.5]),
        rollback_share=draws.choice([0.0, 0.0, 0.2]),
    )


@dataclass
class Schedule:
    """A trainer, its fleet, and what became of the groups.

    Attributes:
        taken: the groups of all steps, with the version that they trained.
        ends: when each step ended.
    """

    config: RlConfig
    options: Options
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    taken: list[tuple[int, RolloutGroup]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        options, draws = self.options, self.options.draws
        turns = Random(draws.random())
        self.scene = Scene(
            self.clock,
            draws,
            SimulatedShelf(self.clock, draws, options.keep_versions, options.load_seconds),
            cache(lambda number: turns.choice([1, 1, 1, options.max_turns])),
            options.count_seconds,
            options.updates_in_flight,
            options.hang_share,
        )
        condition: Any = SimulatedCondition(self.clock)
        self.fleet = RolloutFleet(
            [self.build_process(number) for number in range(options.processes)],
            max_running=options.max_running,
            timeout_seconds=100.0,
            router=options.router,
            wait_seconds=ENDLESS,
            _condition=condition,
        )
        self.engine = SimpleNamespace(
            policy_version=0, state_dict_stream=lambda: iter([("key", torch.zeros(1))])
        )
        self.source = self.build_source()

    def build_process(self, number: int) -> SimulatedProcess:
        return SimulatedProcess(
            number=number,
            log_file=Path("generator.log"),
            starts_left=ENDLESS,
            scene=self.scene,
            connects=self.options.connects,
        )

    def build_source(self) -> RolloutSource:
        engine: Any = self.engine
        shelf: Any = self.scene.shelf
        runner = FleetRunner(self.fleet, 1, RankGroup(), self.fleet.usage.clock)
        indices = count()
        dataloader: Any = SimpleNamespace(next_indices=lambda: [next(indices)])
        prompts: Any = SimpleNamespace(get_prompt=lambda index: Prompt("", "", index))
        return RolloutSource(
            config=self.config,
            layout=RolloutLayout(seq_len=8, local_batch_size=1, should_pack=True),
            engine=engine,
            loss=lambda logits, batch: logits.sum(),
            dataloader=dataloader,
            prompt_dataset=prompts,
            runner=runner,
            weight_sync=FleetWeightSync(shelf, runner, torch.float32, frozenset()),
            state=RlState(self.config, engine),
        )

    def run(self, steps: int) -> None:
        """Train some steps, in which processes are killed and weights are taken back."""
        options, draws, engine = self.options, self.options.draws, self.engine
        self.fleet.start()
        self.source.start(SimpleNamespace())  # type: ignore[arg-type]
        for step in range(steps):
            if draws.random() < options.kill_share:
                self.clock.after(5.0 * draws.random(), draws.choice(self.fleet.processes).kill)
            groups = self.source._collect_groups()
            self.taken += [(engine.policy_version, group) for group in groups]
            self.check_versions(groups)
            self.clock.sleep(options.train_seconds * draws.random())
            if draws.random() < options.rollback_share:
                engine.policy_version = draws.randrange(engine.policy_version + 1)
                self.source.on_rollback(step)
            else:
                engine.policy_version += 1
                self.source.on_update(step)
            self.ends.append(self.clock.now)
        self.check_end()

    def check_versions(self, groups: Sequence[RolloutGroup]) -> None:
        """Completions are of weights since the last rollback, and not older than their group."""
        sync, newest = self.source.weight_sync, self.engine.policy_version
        for group in groups:
            for turn in group.rollouts[0].turns:
                said = turn.completion
                assert {key // VERSIONS_PER_ROLLBACK for key in said.tokens} == {sync.num_rollbacks}
                assert group.policy_version <= min(said.versions) <= max(said.versions) <= newest

    def check_end(self) -> None:
        """No group is missing or was taken twice, and each began with weights that it may have."""
        state, dropped = self.source.state, self.source._num_dropped
        numbers = [group.number for _, group in self.taken]
        prompts = self.config.rollout.prompts_per_step
        assert len(set(numbers)) == len(numbers) == len(self.ends) * prompts
        kept = len(state.rollout_buffer.groups) + dropped["error"] + dropped["future"]
        assert len(numbers) + kept == state.next_group
        for start in self.scene.starts:
            assert start.version >= start.group.policy_version

    def find_oldest(self) -> int:
        """How old the oldest group was when it was trained on."""
        return max(version - group.policy_version for version, group in self.taken)
