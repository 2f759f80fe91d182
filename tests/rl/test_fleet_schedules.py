"""Schedules of a trainer and its fleet on a simulated clock: how old completions get, and when."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rl.parts import TEXT, write_recipe
from tests.rl.simulated_schedule import Options, Schedule, Steady, draw_options
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet import rollout_fleet

SCHEDULES, STEPS = 200, 9
# prompts per step, target_offpolicy, window
SETTINGS = [(4, 0, 0.3), (4, 1, 0.3), (3, 3, 0.3), (2, 3, 1.0), (5, 2, 0.0)]
Run = Callable[[RlConfig, Options, int], Schedule]


@cache
def read_config(prompts: int, offpolicy: int, window: float = 0.3) -> RlConfig:
    overrides = [
        f"rl.rollout={{prompts_per_step: {prompts}, samples_per_prompt: 1}}",
        f"rl.schedule={{target_offpolicy: {offpolicy}, window: {window}}}",
        "rl.algorithm=reinforce",
        *("rl.fleet.processes=1", "rl.sync.transport=shared_memory"),
    ]
    with TemporaryDirectory() as folder:
        resolved = resolve_recipe(write_recipe(Path(folder), TEXT), overrides, environment={})
    config = load_resolved_text(resolved.text).rl
    assert config is not None
    return config


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give what runs a schedule, on whose clock the modules of the fleet then are."""
    opened: list[Schedule] = []

    def build_timer(seconds: float, action: Any, args: tuple[Any, ...]) -> Any:
        clock = opened[-1].clock
        return SimpleNamespace(start=lambda: clock.after(seconds, lambda: action(*args)))

    monkeypatch.setattr(rollout_fleet, "threading", SimpleNamespace(Timer=build_timer))
    now = SimpleNamespace(monotonic=lambda: opened[-1].clock.now)
    monkeypatch.setattr(rollout_fleet, "time", now)

    def run_schedule(config: RlConfig, options: Options, steps: int) -> Schedule:
        opened.append(Schedule(config, options))
        try:
            opened[-1].run(steps)
        finally:
            opened[-1].clock.close()
        return opened[-1]

    return run_schedule


@pytest.mark.parametrize(("prompts", "offpolicy", "window"), SETTINGS)
def test_no_completion_gets_older_than_the_bound_and_some_get_that_old(
    run: Run, prompts: int, offpolicy: int, window: float
) -> None:
    slots = (offpolicy + 1) * prompts
    overtaking = max(1, floor(window * slots))
    bound = floor((slots + overtaking - 2) / prompts) if offpolicy else 0
    config, found = read_config(prompts, offpolicy, window), set()
    for seed in range(SCHEDULES):
        found.add(run(config, draw_options(seed), STEPS).find_oldest())
    assert max(found) == bound


def run_steadily(run: Run, offpolicy: int, *, processes: int, share: float) -> Schedule:
    """Train 40 steps of 1 s each. The completions of a step take `share` s on one generator."""
    prompts = 16
    options = Options(
        draws=Steady(),
        processes=processes,
        max_running=prompts // processes,
        train_seconds=1.0,
        count_seconds=lambda num_groups: share * num_groups / prompts,
        load_seconds=0.02,
    )
    return run(read_config(prompts, offpolicy), options, 40)


def test_generation_beside_training_takes_half_of_the_time(run: Run) -> None:
    one_by_one = run_steadily(run, 0, processes=1, share=1.0).ends
    at_once = run_steadily(run, 2, processes=1, share=1.0).ends
    assert one_by_one[-1] > 80
    assert at_once[-1] < 0.6 * one_by_one[-1]


def test_two_generators_take_half_of_the_time_of_one(run: Run) -> None:
    one = run_steadily(run, 2, processes=1, share=2.0)
    two = run_steadily(run, 2, processes=2, share=2.0)
    assert one.ends[-1] > 80 and two.ends[-1] < 0.6 * one.ends[-1]
    counts = Counter(start.process for start in two.scene.starts)
    assert set(counts) == {0, 1} and 0.45 < counts[0] / counts.total() < 0.55
