"""Metrics of a fleet: each is moved by its own cause, on a clock that the test moves."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rl.test_fleet import ScriptedProcess, build, build_group, submit
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.fleet.fleet_runner import FleetRunner, FleetWeightSync
from titanrun.rl.fleet.fleet_usage import SHARES, FleetUsage
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.fleet.rollout_process import ProcessConnection, read_messages
from titanrun.rl.fleet.step_clock import StepClock

Advance = Callable[[float], None]
START = 100.0


class ScriptedCondition(threading.Condition):
    """A condition that runs the next piece of a script instead of waiting."""

    def __init__(self, *pieces: Callable[[], object]) -> None:
        super().__init__()
        self.pieces = iter(pieces)

    def wait(self, timeout: float | None = None) -> bool:
        next(self.pieces)()
        return True


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Advance:
    now = [START]
    monkeypatch.setattr("titanrun.rl.fleet.step_clock.time.monotonic", lambda: now[0])

    def advance_clock(seconds: float) -> None:
        now[0] += seconds

    return advance_clock


def build_started(count: int, **options: Any) -> tuple[RolloutFleet, list[ScriptedProcess]]:
    """A fleet whose processes have loaded weights before."""
    fleet, processes = build(count, timeout=1e9, **options)
    fleet.usage.clock = StepClock(_start=START)
    for process in processes:
        process.on_message(1, {"loading": False})
    return fleet, processes


def say(process: ScriptedProcess, **message: Any) -> None:
    process.on_message(process.num_starts, message)


def get_shares(found: dict[str, float]) -> dict[str, float]:
    return {name: found[name] for name in SHARES.values()}


def test_the_five_shares_of_a_step_are_those_of_its_causes(advance: Advance) -> None:
    usage = FleetUsage(StepClock(_start=START))

    def spend(phase: Any, seconds: float) -> None:
        with usage.clock.within(phase):
            advance(seconds)

    usage.clock.enter("train")
    spend("idle", 2.0)
    spend("pull", 0.5)
    advance(6.0)
    usage.clock.enter("other")
    spend("push", 1.0)
    spend("validation", 90.0)
    advance(0.5)
    usage.record_turn(0, {"load_seconds": 0.5, "tokens": 40})
    found = usage.collect(2, num_tokens=30)
    assert get_shares(found) == pytest.approx(
        {
            "rl/trainer_idle_share": 0.2,
            "rl/pull_wait_share": 0.05,
            "rl/train_share": 0.6,
            "rl/push_wait_share": 0.1,
            "rl/unaccounted_share": 0.05,
        }
    )
    assert found["rl/load_seconds"] == 0.25
    assert found["rl/tokens_per_second/generated"] == found["rl/generator/0/tokens_per_second"] == 4
    assert found["rl/generator/1/tokens_per_second"] == 0
    assert found["rl/tokens_per_second/trained"] == 3
    advance(1.0)
    found = usage.collect(2, num_tokens=0)
    assert found["rl/trainer_idle_share"] == found["rl/tokens_per_second/trained"] == 0


def test_waiting_is_pulling_while_all_that_have_groups_load_weights(advance: Advance) -> None:
    fleet, (first, second) = build_started(2)
    fleet._condition = ScriptedCondition(
        lambda: advance(2.0),
        lambda: say(first, loading=True),
        lambda: advance(1.0),  # the second one still generates
        lambda: say(second, loading=True),
        lambda: advance(3.0),
        lambda: say(first, loading=False),
        lambda: advance(4.0),
        lambda: first.finish(0),
    )
    fleet.submit([build_group(0), build_group(1)], temperature=None)
    with fleet.usage.clock.within("train"):
        fleet.wait_for_any([0, 1])
    found = fleet.collect_usage(num_tokens=0)
    assert found["rl/trainer_idle_share"] == pytest.approx(0.7)
    assert found["rl/pull_wait_share"] == pytest.approx(0.3)


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_process_without_groups_pulls_from_the_moment_weights_are_sent(
    advance: Advance, is_busy: bool
) -> None:
    """With completions of the newest weights only, that is each step."""
    fleet, (process,) = build_started(1, max_running=2)
    if is_busy:
        submit(fleet, 0)
    fleet.load(1, version=1)
    submit(fleet, 1)
    fleet._condition = ScriptedCondition(
        lambda: advance(5.0), lambda: say(process, loading=False), lambda: process.finish(0, 1)
    )
    with fleet.usage.clock.within("train"):
        fleet.wait_for_any([1])
    found = fleet.collect_usage(num_tokens=0)
    assert found["rl/pull_wait_share"] == (0 if is_busy else 1)
    assert found["rl/trainer_idle_share"] == (1 if is_busy else 0)


def test_the_start_of_a_process_is_no_pulling(advance: Advance) -> None:
    fleet, (process,) = build(1, starts=2)
    fleet.load(1, version=1)
    assert not process.is_loading
    say(process, loading=True)
    say(process, loading=False)
    fleet.load(2, version=2)
    assert process.is_loading and process.has_loaded


def test_publishing_is_pushing_and_copying_out_of_the_ranks_is_gathering(advance: Advance) -> None:
    fleet, _ = build_started(1)
    runner = FleetRunner(fleet, 2, RankGroup(), fleet.usage.clock)

    class SlowTransport:
        def publish(self, key: int, weights: Any) -> None:
            for _ in weights:
                advance(0.25)  # to the host
            advance(4.0)

        def list_versions(self) -> list[int]:
            return []

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name in "ab":
            advance(0.5)  # from the other ranks
            yield name, torch.zeros(1)

    engine: Any = SimpleNamespace(policy_version=1, state_dict_stream=stream)
    sync = FleetWeightSync(SlowTransport(), runner, torch.float32, frozenset("ab"))  # type: ignore[arg-type]
    fleet.usage.clock.enter("other")
    fleet.collect_usage(num_tokens=0)
    sync.sync_weights(engine)
    advance(4.5)
    found = fleet.collect_usage(num_tokens=0)
    assert found["rl/push_wait_share"] == pytest.approx(5.5 / 10)
    assert found["rl/gather_seconds"] == 1.5
    assert fleet.collect_usage(num_tokens=0)["rl/gather_seconds"] == 0


def test_a_process_is_busy_while_it_has_groups_however_long_a_turn_takes(advance: Advance) -> None:
    fleet, (first, _) = build_started(2)
    fleet.collect_usage(num_tokens=0)
    submit(fleet, 0)
    for _ in range(3):  # steps within one turn
        advance(2.0)
        found = fleet.collect_usage(num_tokens=0)
        assert found["rl/generator_idle_share/0"] == 0 and found["rl/generator_idle_share/1"] == 1
        assert found["rl/generator_idle_share"] == 0.5
    advance(1.0)
    first.finish(0)
    advance(3.0)
    assert fleet.collect_usage(num_tokens=0)["rl/generator_idle_share/0"] == pytest.approx(0.75)
    assert fleet.collect_usage(num_tokens=0)["rl/generator_idle_share/0"] == 1


def test_a_process_that_ended_is_idle(advance: Advance) -> None:
    fleet, (process,) = build_started(1)
    submit(fleet, 0)
    advance(1.0)
    process.die()
    advance(3.0)
    assert fleet.collect_usage(num_tokens=0)["rl/generator_idle_share"] == pytest.approx(0.75)


def test_validation_counts_neither_as_waiting_nor_as_work(advance: Advance) -> None:
    fleet, (first, second) = build_started(2)
    fleet.collect_usage(num_tokens=0)
    submit(fleet, 0)
    with fleet.usage.clock.within("validation"):
        fleet.submit([build_group(-1)], temperature=0.0)
        fleet._condition = ScriptedCondition(
            lambda: advance(50.0),
            lambda: say(second, loading=True),
            lambda: advance(50.0),
            lambda: second.finish(-1),
        )
        fleet.wait_for_any([-1])
    advance(1.0)
    first.finish(0)
    advance(1.0)
    found = fleet.collect_usage(num_tokens=0)
    assert found["rl/generator_idle_share/0"] == pytest.approx(0.5)
    assert found["rl/generator_idle_share/1"] == 1
    assert get_shares(found) == {**dict.fromkeys(SHARES.values(), 0), "rl/unaccounted_share": 1}


def test_groups_that_an_earlier_trainer_had_are_counted_once(advance: Advance) -> None:
    fleet, (first, second) = build_started(2)
    say(first, discarded=3)
    say(second, discarded=1)
    second.on_message(2, {"discarded": 7})  # of this trainer, found again after a lost connection
    assert fleet.collect_usage(num_tokens=0)["rl/dropped_future"] == 4
    assert fleet.collect_usage(num_tokens=0)["rl/dropped_future"] == 0


def test_what_an_adopted_process_says_to_an_earlier_trainer_is_only_counted() -> None:
    lines = [
        '"status": "completed"}]}], "epoch": 0}',  # of which the earlier trainer read the beginning
        json.dumps({"loading": True}),
        json.dumps({"groups": [build_group(0, "completed"), build_group(1)], "epoch": 0}),
        json.dumps({"groups": [build_group(1, "error_environment")], "epoch": 0}),
        json.dumps({"hello": "7f3a"}),
        json.dumps({"discarded": 1}),
    ]
    responses = io.StringIO("".join(line + "\n" for line in lines))
    connection = ProcessConnection(1, io.StringIO(), responses, None, token="7f3a")
    heard: list[dict[str, Any]] = []
    ends: list[int] = []
    read_messages(connection, 1, lambda start, message: heard.append(message), ends.append)
    assert heard == [{"discarded": 2}, {"discarded": 1}] and ends == [1]
