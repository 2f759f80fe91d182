"""Runs whose completions come from processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rl.fleet_runs import (
    FLEET,
    LONG,
    RECORDING,
    build_command,
    check_replays,
    get_losses,
    get_taken,
    held_reward,
    is_running,
    list_blocks,
    read_generated,
    read_pids,
    read_steps,
    read_takes,
    replay,
    restart_trainer,
    slow_reward,
    train,
    train_and_kill,
    wait_for,
)
from titanrun.rl.fleet.fleet_usage import SHARES

pytestmark = pytest.mark.slow


def test_on_policy_completions_of_a_fleet_are_those_of_the_trainer_bit_for_bit(
    tmp_path: Path,
) -> None:
    steps = "training.steps=3"
    here = train(tmp_path / "here", steps)
    there = train(tmp_path / "there", steps, *FLEET, "rl.fleet.threads=1")
    assert get_losses(here) == get_losses(there)
    assert {step["rl/age_max"] for step in there} == {0.0}
    assert not list((tmp_path / "there" / "weights").glob("*.json"))


def test_a_recorded_schedule_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    ahead = ("training.steps=5", "rl.schedule={target_offpolicy: 2, record: true}")
    recorded = train(
        tmp_path / "recorded", *ahead, *FLEET[:1], "rl.fleet.processes=2", "rl.fleet.max_restarts=0"
    )
    bound = 2 + 1
    assert max(step["rl/age_max"] for step in recorded) in range(1, bound + 1)
    replay = f"rl.schedule={{target_offpolicy: 2, replay: {tmp_path / 'recorded'}}}"
    assert get_losses(train(tmp_path / "again", "training.steps=5", replay)) == get_losses(recorded)
    # what the record says is trained: here the second step takes the first one's groups again
    takes = read_takes(tmp_path / "recorded")
    changed = tmp_path / "changed"
    changed.mkdir()
    takes[1]["groups"] = takes[0]["groups"]
    (changed / "schedule.jsonl").write_text("".join(json.dumps(take) + "\n" for take in takes))
    replay = f"rl.schedule={{target_offpolicy: 2, replay: {changed}}}"
    differs = get_losses(train(tmp_path / "differs", "training.steps=5", replay))
    assert differs[0] == get_losses(recorded)[0] and differs[1] != get_losses(recorded)[1]
    # another seed generates something else
    other = train(
        tmp_path / "other", "training.steps=5", "rl.schedule.target_offpolicy=2", "debug.seed=9"
    )
    assert get_losses(other)[1:] != get_losses(recorded)[1:]


def test_a_recorded_schedule_is_generated_again_bit_for_bit(tmp_path: Path) -> None:
    """Of two generators, which load weights within completions. A changed token is found."""
    train(tmp_path / "recorded", *LONG, FLEET[0], "rl.fleet.processes=2", RECORDING)
    assert any(batch["loads"] for batch in read_generated(tmp_path / "recorded"))
    check_replays(tmp_path / "recorded", tmp_path)
    # the record says something else about the first token of the third step
    file = tmp_path / "recorded" / "schedule.jsonl"
    events = list(map(json.loads, file.read_text().splitlines()))
    (third,) = [e for e in events if e["event"] == "take" and e["policy_version"] == 2]
    rollout = third["groups"][0]["rollouts"][1]
    tokens = rollout["turns"][0]["completion"]["tokens"]
    tokens[0] = tokens[0] + 1 if tokens[0] < 55 else 1
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    schedule = f"{{target_offpolicy: 2, replay: {tmp_path / 'recorded'}, replay_level: schedule}}"
    run = subprocess.run(
        build_command(tmp_path / "differs", *LONG, f"rl.schedule={schedule}"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 3 and "Traceback" not in run.stderr, run.stderr[-2000:]
    place = f"token 0 of turn 0 of group={rollout['group']}/rollout=1, taken at policy version 2"
    assert place in run.stderr, run.stderr[-2000:]
    assert len(read_steps(tmp_path / "differs")) == 2


def test_a_record_of_two_ranks_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    ranks = (*LONG, "parallelism.data_parallel_shard_degree=2", "--nproc", "2")
    recorded = tmp_path / "recorded"
    losses = get_losses(train(recorded, *ranks, FLEET[0], "rl.fleet.processes=2", RECORDING))
    assert (recorded / "logs" / "rank-1.log").exists() and len(losses) == 4
    for level in ("completions", "schedule"):
        assert replay(recorded, tmp_path / level, level, *ranks) == losses


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_generator_costs_its_groups_only_time(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "run"
    command = build_command(
        folder,
        "training.steps=12",
        "rl.schedule={target_offpolicy: 2, record: true}",
        "rl.sync.transport=shared_memory",
        f"rl.fleet.processes={processes}",
        held_reward(folder, 4),
    )

    def find_first(run: object) -> int:
        pids = read_pids(folder)
        assert len(pids) == processes
        return pids[0]

    train_and_kill(
        folder,
        command,
        find_first,
        generators=processes,
        is_replaced=lambda: len(read_pids(folder)) == processes + 1,
    )
    last = read_steps(folder)[-1]
    assert last["rl/lost_requests"] >= 1 and last["rl/restarts"] == 1
    taken = get_taken(folder)
    # none is missing, none came twice; the last ones are still on their way
    assert len(taken) == len(set(taken)) and set(range(len(taken) - 6)) <= set(taken)
    wait_for(lambda: not any(map(is_running, read_pids(folder))))


def test_two_generators_share_the_work_and_the_trainer_waits_less(tmp_path: Path) -> None:
    settings = (
        "training.steps=20",
        "rl.rollout={prompts_per_step: 4, samples_per_prompt: 2}",
        "rl.schedule.target_offpolicy=2",
        FLEET[0],
        "rl.validation.dataset=null",
        slow_reward(tmp_path, 0.1),
    )
    # by then both have started, however busy the machine is
    one = train(tmp_path / "one", *settings, "rl.fleet.processes=1")[-8:]
    two = train(tmp_path / "two", *settings, "rl.fleet.processes=2")[-8:]

    def mean(steps: list[dict[str, float]], name: str) -> float:
        return sum(step[name] for step in steps) / len(steps)

    assert mean(two, "time/step_seconds") < 0.75 * mean(one, "time/step_seconds")
    assert mean(two, "rl/trainer_idle_share") > 0 and mean(one, "rl/generator_idle_share") < 0.3
    rates = [mean(two, f"rl/generator/{number}/tokens_per_second") for number in (0, 1)]
    assert 0.35 < rates[0] / sum(rates) < 0.65


def test_idle_shares_tell_whether_generation_or_training_is_slow(tmp_path: Path) -> None:
    settings = (
        "training.steps=8",
        "rl.schedule.target_offpolicy=2",
        *FLEET,
        "rl.validation.dataset=null",
    )
    slow = train(tmp_path / "slow", *settings, slow_reward(tmp_path, 0.2))[3:]
    # completions are ready at once, and the trainer has as much to compute as before
    replies = "rl.generator={name: static, replies: [abcd, xyz]}"
    fast = train(tmp_path / "fast", *settings, replies, "rl.algorithm=reinforce")[3:]
    trainer, generator = "rl/trainer_idle_share", "rl/generator_idle_share"
    assert min(step[trainer] for step in slow) > max(step[trainer] for step in fast)
    assert max(step[generator] for step in slow) < min(step[generator] for step in fast)
    for step in (*slow, *fast):
        assert sum(step[name] for name in SHARES.values()) == pytest.approx(1, abs=0.01)
        assert 0 < step["rl/gather_seconds"] < step["time/step_seconds"]
        assert step["rl/tokens_per_second/trained"] > 0
    assert sum(step["rl/load_seconds"] for step in slow) > 0


def test_a_killed_trainer_leaves_neither_processes_nor_memory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = build_command(folder, "training.steps=1000", *FLEET, "rl.schedule.target_offpolicy=1")
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists() and len(read_steps(folder)) >= 2)
        assert list_blocks(run.pid)
    finally:
        run.kill()
    run.wait()
    (pid,) = read_pids(folder)
    wait_for(lambda: not is_running(pid))
    assert not list_blocks(run.pid)


def test_a_restarted_trainer_finds_its_generator_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed = restart_trainer(folder, *FLEET, held_reward(folder, 7))
    log = (folder / "logs" / "rank-0.log").read_text()
    (pid,) = read_pids(folder)
    assert f"generator 0 goes on in process {pid}" in log
    wait_for(lambda: not is_running(pid))
    assert not list_blocks(killed) and not list((folder / "fleet").glob("generator-*"))


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = build_command(
        folder,
        *("training.steps=1000", "launch.max_restarts=1", *FLEET),
        "rl.schedule.target_offpolicy=1",
    )
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists() and len(read_steps(folder)) >= 2)
        trainer = json.loads((folder / "status.json").read_text())["pid"]
    finally:
        run.kill()
    run.wait()
    # the trainer saves and stops
    wait_for(lambda: not is_running(trainer))
    (pid,) = read_pids(folder)
    wait_for(lambda: not is_running(pid))
    assert not list_blocks(trainer)


def test_a_problem_in_a_process_ends_the_run_with_its_words(tmp_path: Path) -> None:
    program = tmp_path / "reward.py"
    program.write_text("raise SystemExit('no such model')")
    reward = f"rl.rewards=[{{name: command, command: [{sys.executable}, {program}]}}]"
    run = subprocess.run(
        build_command(tmp_path / "run", *FLEET, reward),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 3 and "Traceback" not in run.stderr
    assert "error[data]: generator 0: " in run.stderr and "failed too often" in run.stderr
