"""The router of a fleet: who gets which groups, and what becomes of those of a dead process."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rl.parts import TEXT, write_recipe
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.rank_env import RankInfo
from titanrun.rl.fleet import rollout_fleet
from titanrun.rl.fleet.config import RouterConfig
from titanrun.rl.fleet.fleet_process import FleetProcess
from titanrun.rl.fleet.fleet_runner import FleetRunner, StaleRolloutError
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.fleet.step_clock import StepClock
from titanrun.rl.rollout_types import Completion, Prompt, RolloutGroup, Turn
from titanrun.rl.schedule_record import ScheduleRecorder, TakeKey
from titanrun.rl.schedule_replay import ScheduleReplay
from titanrun.worker.worker_job import WorkerJob


@dataclass
class ScriptedProcess:
    """A process of the fleet that does what the test says."""

    number: int
    starts_left: int = 1
    running: dict[int, dict[str, Any]] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)
    num_starts: int = 0
    last_message: float = field(default_factory=time.monotonic)
    last_choice: int = 0
    is_loading: bool = False
    has_loaded: bool = False
    is_alive: bool = False
    log_file: Path = Path("generator.log")
    pid: int = 1
    on_message: Callable[[int, dict[str, Any]], None] = lambda start, message: None
    on_exit: Callable[[int], None] = lambda start: None

    @property
    def title(self) -> str:
        return f"generator {self.number}"

    @property
    def may_return(self) -> bool:
        return self.is_alive or self.starts_left > 0

    def start(self, on_message: Any, on_exit: Any) -> None:
        self.on_message, self.on_exit = on_message, on_exit
        self.starts_left, self.num_starts, self.is_alive = (
            self.starts_left - 1,
            self.num_starts + 1,
            True,
        )

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def finish(self, *numbers: int, epoch: int = 0, status: str = "completed") -> None:
        """Report a turn of groups, after which they are done or go on."""
        groups = [build_group(number, status) for number in numbers]
        self.on_message(
            self.num_starts,
            {"groups": groups, "epoch": epoch, "tokens": 5},
        )

    def die(self) -> None:
        self.is_alive = False
        self.on_exit(self.num_starts)

    kill = die
    expect_load = FleetProcess.expect_load
    note_loading = FleetProcess.note_loading

    def read_last_stderr_line(self) -> str:
        return "out of memory"

    def close(self) -> None:
        self.is_alive = False


def build_group(number: int, status: str = "ongoing") -> dict[str, Any]:
    """Group of one conversation."""
    return {"number": number, "rollouts": [{"status": status}]}


def build(
    count: int, *, max_running: int = 1, starts: int = 1, timeout: float = 60, **router: Any
) -> Any:
    processes = [ScriptedProcess(number, starts) for number in range(count)]
    fleet = RolloutFleet(processes, max_running, timeout, RouterConfig(**router))  # type: ignore[arg-type]
    fleet.start()
    return fleet, processes


def submit(fleet: RolloutFleet, *numbers: int) -> None:
    fleet.submit([build_group(number) for number in numbers], temperature=None)


def get_numbers(process: ScriptedProcess) -> list[list[int]]:
    """The groups of each message that it got."""
    return [
        [request["group"]["number"] for request in message["requests"]]
        for message in process.sent
        if message["do"] == "generate"
    ]


def get_queue(fleet: RolloutFleet) -> dict[str, float]:
    values = fleet.collect_usage(num_tokens=0)
    prefix = "rl/queue/"
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def test_groups_go_to_the_least_loaded_and_wait_while_all_are_full() -> None:
    fleet, (first, second) = build(2)
    submit(fleet, 0, 1, 2, 3, 4, 5)
    assert get_numbers(first) == [[0, 2]] and get_numbers(second) == [[1, 3]]
    assert get_queue(fleet) == {"admitted": 6, "running": 4, "waiting": 2, "done": 0}
    second.finish(3)
    assert get_numbers(second) == [[1, 3], [4]]
    assert get_queue(fleet) == {"admitted": 6, "running": 4, "waiting": 1, "done": 1}
    assert [each["number"] for each in fleet.wait_for_any([0, 3])] == [3]
    first.finish(0, 2)
    # one group waits: it goes to the process that has none
    assert get_numbers(first) == [[0, 2], [5]]
    assert get_queue(fleet) == {"admitted": 5, "running": 3, "waiting": 0, "done": 2}


def test_weights_come_before_the_groups_that_were_admitted_after_them() -> None:
    fleet, (process,) = build(1)
    fleet.load(7, version=7)
    submit(fleet, 0)
    fleet.load(8, version=8)
    assert [message["do"] for message in process.sent] == ["load", "generate", "load"]


def test_groups_of_a_process_that_ends_go_first_to_another(caplog: Any) -> None:
    fleet, (first, second) = build(2)
    submit(fleet, 0, 1, 2, 3, 4)
    first.die()
    assert fleet.collect_usage(num_tokens=0)["rl/lost_requests"] == 2
    second.finish(1, 3)
    assert get_numbers(second) == [[1, 3], [0, 2]] and "out of memory" in caplog.text
    # what is said about the group twice counts once
    second.finish(0)
    second.finish(0)
    assert len(fleet.wait_for_any([0])) == 1


def test_a_group_that_takes_three_processes_with_it_is_given_up(caplog: Any) -> None:
    fleet, processes = build(4)
    turns = [{"status": "completed"}, {"status": "ongoing"}]
    fleet.submit([{"number": 0, "rollouts": turns}], temperature=None)
    for process in processes[:3]:
        assert process.sent[-1]["requests"][0]["group"]["rollouts"] == turns
        process.die()
    assert not processes[3].sent and "group 0 was lost 3 times" in caplog.text
    (group,) = fleet.wait_for_any([0])
    assert [each["status"] for each in group["rollouts"]] == ["completed", "error_generator"]
    # another group was lost only once
    submit(fleet, 1)
    assert get_numbers(processes[3]) == [[1]] and fleet.usage.num_lost == 3


def test_a_conversation_goes_on_at_another_process_after_its_last_turn() -> None:
    fleet, (first, second) = build(2)
    submit(fleet, 0)
    turns = [{"status": "ongoing", "turns": ["the first"]}]
    first.on_message(1, {"groups": [{"number": 0, "rollouts": turns}], "epoch": 0})
    assert not second.sent
    first.die()
    assert second.sent[-1]["requests"][0]["group"]["rollouts"] == turns


@pytest.mark.parametrize("is_sticky", [True, False])
def test_turns_stay_with_their_process_if_the_router_is_sticky(is_sticky: bool) -> None:
    fleet, (first, second) = build(2, sticky=is_sticky)
    submit(fleet, 0)
    assert first.sent[-1]["requests"][0]["is_sticky"] == is_sticky
    for process in (first, second, first):
        (first if is_sticky else process).finish(0, status="ongoing")
    # the process that was chosen least recently gets the next turn
    expected = ([[0]], []) if is_sticky else ([[0], [0]], [[0], [0]])
    assert (get_numbers(first), get_numbers(second)) == expected
    assert len(first.running) + len(second.running) == 1


@pytest.mark.parametrize(
    ("name", "expected"), [("least_loaded", [[1, 3], [4]]), ("round_robin", [[1, 3]])]
)
def test_the_router_counts_conversations_or_turns(name: str, expected: list[list[int]]) -> None:
    fleet, (first, second) = build(2, max_running=4, name=name)
    submit(fleet, 0, 1, 2, 3)
    second.finish(1, 3)
    submit(fleet, 4)
    assert get_numbers(second) == expected
    # one after the other: the first had its turn longer ago
    assert get_numbers(first)[1:] == ([] if name == "least_loaded" else [[4]])


def test_a_process_is_started_again_with_the_newest_weights(monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_fleet, "FIRST_BACKOFF_SECONDS", 0.01)
    fleet, (process,) = build(1, starts=2)
    fleet.load(3, version=3)
    submit(fleet, 0, 1)
    process.sent.clear()
    process.die()
    deadline = time.monotonic() + 5
    while not get_numbers(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [message["do"] for message in process.sent] == ["load", "generate"]
    assert get_numbers(process) == [[0, 1]]
    assert fleet.collect_usage(num_tokens=0)["rl/restarts"] == 1
    # the end of the first start is no news any more
    process.on_exit(1)
    assert process.running


def test_a_fleet_without_processes_ends_the_run_with_the_last_words() -> None:
    fleet, (process,) = build(1)
    submit(fleet, 0)
    process.die()
    with pytest.raises(ProblemsFound, match="the last words of generator 0: out of memory"):
        fleet.wait_for_any([0])


def test_training_waits_for_as_many_generators_as_it_must_have(monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_fleet, "FIRST_BACKOFF_SECONDS", 0.3)
    fleet, (first, second) = build(2, starts=2)
    fleet.min_generators = 2
    submit(fleet, 0)
    second.die()
    first.finish(0)
    start = time.monotonic()
    assert [each["number"] for each in fleet.wait_for_any([0])] == [0]
    assert time.monotonic() - start > 0.2 and second.num_starts == 2
    # one is enough: nobody waits
    fleet.min_generators = 1
    second.is_alive = False
    submit(fleet, 1)
    first.finish(1)
    assert [each["number"] for each in fleet.wait_for_any([1])] == [1]


def test_too_few_generators_end_the_run_after_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_fleet, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(rollout_fleet, "FIRST_BACKOFF_SECONDS", 60)
    fleet, (_, second) = build(2, starts=2)
    fleet.min_generators, fleet.wait_seconds = 2, 0.1
    submit(fleet, 0)
    start = time.monotonic()
    second.die()
    with pytest.raises(ProblemsFound, match=r"fewer than 2 .* for 0.1 s, .* generator 1: out of"):
        fleet.wait_for_any([0])
    assert time.monotonic() - start > 0.1
    # without a restart left there is nothing to wait for
    fleet, (_, second) = build(2)
    fleet.min_generators = 2
    submit(fleet, 0)
    second.die()
    with pytest.raises(ProblemsFound, match="1 of 2 generators ended too often"):
        fleet.wait_for_any([0])


def test_a_problem_of_a_process_ends_the_run_at_once() -> None:
    fleet, (process, _) = build(2)
    submit(fleet, 0)
    process.on_message(1, {"problem": "the reward program failed", "hint": "fix it"})
    with pytest.raises(ProblemsFound, match="generator 0: the reward program failed"):
        fleet.wait_for_any([0])


def test_a_silent_process_is_killed(monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_fleet, "POLL_SECONDS", 0.01)
    fleet, (process,) = build(1, timeout=0.05)
    submit(fleet, 0)
    with pytest.raises(ProblemsFound, match="ended too often"):
        fleet.wait_for_any([0])
    assert not process.is_alive


def test_after_a_rollback_earlier_answers_are_dropped() -> None:
    fleet, (process,) = build(1)
    submit(fleet, 0, 1, 2)
    fleet.drop_all()
    submit(fleet, 1)
    process.finish(0, 1, epoch=0)
    threading.Timer(0.05, lambda: process.finish(1, epoch=1)).start()
    assert [each["number"] for each in fleet.wait_for_any([1])] == [1]
    assert process.sent[-2]["do"] == "drop" and not process.running


def answer(group: RolloutGroup, *versions: int) -> dict[str, Any]:
    """The group with a turn of each version."""
    data = group.to_dict()
    for rollout in data["rollouts"]:
        rollout["status"], rollout["reward"] = "completed", 1.0
        rollout["turns"] = [
            {
                "prompt": [1],
                "completion": {
                    "tokens": [2],
                    "logprobs": [-0.1],
                    "finish": "stop",
                    "version": version,
                },
                "text": "x",
            }
            for version in versions
        ]
    return data


@pytest.mark.parametrize(("versions", "is_stale"), [((3, 4), False), ((4, 2), True)])
def test_a_completion_is_never_older_than_its_group(
    versions: tuple[int, ...], is_stale: bool
) -> None:
    fleet, (process,) = build(1)
    runner = FleetRunner(fleet, 2, RankGroup(), fleet.usage.clock)
    group = runner.start_group(Prompt("?", ""), group_number=5, policy_version=3)
    data = answer(group, *versions)
    threading.Timer(
        0.05, lambda: process.on_message(1, {"groups": [data], "epoch": 0, "tokens": 4})
    ).start()
    if is_stale:
        with pytest.raises(StaleRolloutError, match="a completion of group 5 is of version 2"):
            runner.generate_turn([group])
        return
    runner.generate_turn([group])
    assert group.is_done and group.rollouts[1].oldest_version == 3
    assert runner.collect_metrics(num_tokens=0)["rl/generator/0/tokens_per_second"] > 0


def test_each_process_has_its_settings(tmp_path: Path, monkeypatch: Any) -> None:
    from titanrun.recipe.resolving.resolve import resolve_recipe
    from titanrun.worker.build import build_fleet

    monkeypatch.setattr(RolloutFleet, "start", lambda self: None)
    overrides = [
        "rl.fleet={processes: 3, threads: 2, max_restarts: 1, timeout_seconds: 7, "
        "min_generators: 2, wait_seconds: 30, "
        "router: {name: round_robin, sticky: false}}",
        "rl.sync.transport=shared_memory",
        "rl.rollout.prompts_per_step=8",
    ]
    resolved = resolve_recipe(write_recipe(tmp_path, TEXT), overrides, environment={})
    job = WorkerJob(tmp_path / "resolved.yaml", resolved.text, RankInfo())
    assert resolved.run.rl is not None
    transport = build_fleet.build_weight_transport(resolved.run.rl, tmp_path / "weights")
    fleet = build_fleet.start_fleet(resolved.run.rl, job, StepClock(), transport)
    assert [process.starts_left for process in fleet.processes] == [2, 2, 2]
    assert fleet.processes[0].environment["OMP_NUM_THREADS"] == "2"
    assert (fleet.min_generators, fleet.wait_seconds) == (2, 30)
    assert fleet.timeout_seconds == 7 and fleet.max_running == 3 * 4
    assert fleet.router == RouterConfig(name="round_robin", sticky=False)


def test_the_record_says_who_got_which_groups_and_lost_them(tmp_path: Path) -> None:
    fleet, (first, second) = build(2)
    fleet.recorder = ScheduleRecorder(tmp_path)
    submit(fleet, 0, 1)
    batch = {"version": 3, "requests": [{"tokens": [1], "seed": 7}], "loads": [[16, 4]]}
    message = {"groups": [build_group(0, "completed")], "epoch": 0, "generated": [batch]}
    first.on_message(first.num_starts, message)
    second.die()
    # what belongs to groups that were dropped is not written down
    fleet.drop_all()
    first.on_message(first.num_starts, message)
    lines = (tmp_path / "schedule.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [
        {"event": "start", "generator": 0, "groups": [0]},
        {"event": "start", "generator": 1, "groups": [1]},
        {"event": "generate", "generator": 0, **batch},
        {"event": "lost", "generator": 1, "groups": [1]},
        {"event": "start", "generator": 0, "groups": [1]},
    ]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    said = Completion([3, 5], [-0.12345678901234566, -1.0], "stop", 4, ((0, 4), (1, 5)))
    assert said.versions == [4, 5]
    turn = Turn([1, 2], said, "x")
    runner = FleetRunner(None, 1, RankGroup())
    group = runner.start_group(Prompt("?", "!", 9), group_number=1, policy_version=4)
    group.rollouts[0].turns.append(turn)
    recorder = ScheduleRecorder(tmp_path)
    recorder.write_take(TakeKey(4, 0), [])
    recorder.write_take(TakeKey(4, 1), [group])
    recorder.write_take(TakeKey(4, 0), [group])
    ScheduleRecorder(None).write_take(TakeKey(5, 0), [group])
    replay = ScheduleReplay(tmp_path)
    # of two lines for a step the last one counts
    assert replay.get_groups(TakeKey(4, 0)) == replay.get_groups(TakeKey(4, 1)) == [group]
    with pytest.raises(ProblemsFound, match="has no groups for policy version 5"):
        replay.get_groups(TakeKey(5, 0))
    with pytest.raises(ProblemsFound, match="cannot be read"):
        ScheduleReplay(tmp_path / "absent").get_groups(TakeKey(0, 0))
    (tmp_path / "schedule.jsonl").write_text("{}\n")
    with pytest.raises(ProblemsFound, match=r"line 1 of .* is damaged"):
        ScheduleReplay(tmp_path).get_groups(TakeKey(0, 0))
