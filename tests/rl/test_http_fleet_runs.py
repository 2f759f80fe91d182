"""Runs whose completions come from `titanrun fleet` in another working folder, over TCP."""

import os
import shutil
import signal
import subprocess
import sys
import time
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
    read_steps,
    restart_trainer,
    slow_reward,
    train,
    wait_for,
    wait_for_held,
)
from tests.rl.http_machines import build_overrides, open_machine
from tests.worker.held_runs import release

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def test_completions_of_another_folder_are_those_of_a_local_fleet_bit_for_bit(
    tmp_path: Path,
) -> None:
    here = tmp_path / "trainer"
    here.mkdir()
    # the same relative path in both working folders
    reward = slow_reward(here, 0.01).replace(f"{here}/", "")
    steps = "training.steps=4"
    local = train(tmp_path / "local", steps, slow_reward(tmp_path, 0.01), *FLEET)
    (tmp_path / "generator").mkdir()
    shutil.copy(here / "reward.py", tmp_path / "generator")
    with open_machine(tmp_path, reward, secret="keys/fleet.secret") as machine:
        file = machine.folder / "keys" / "fleet.secret"
        assert str(file) in machine.output and file.stat().st_mode & 0o777 == 0o600
        shutil.copytree(file.parent, here / "keys")
        overrides = build_overrides(machine.port, secret="keys/fleet.secret")
        command = build_command(here / "run", steps, reward, *overrides)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=here)
        assert done.returncode == 0, done.stderr
        assert get_losses(read_steps(here / "run")) == get_losses(local)
        # the next run finds it
        again = build_command(here / "again", steps, reward, *overrides)
        subprocess.run(again, check=True, capture_output=True, timeout=300, cwd=here)
        assert get_losses(read_steps(here / "again")) == get_losses(local)
        assert machine.end(signal.SIGINT) == 0
    # nothing but the file has the secret
    secret = file.read_text().strip()
    assert secret not in done.stdout + done.stderr
    holders = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]
    assert sorted(holders) == sorted([file, here / "keys" / "fleet.secret"])
    assert not (here / "run" / "weights").exists()


def test_a_wrong_secret_is_refused_by_name_on_both_sides(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.secret"
    wrong.write_text("another, of course\n")
    wrong.chmod(0o600)
    with open_machine(tmp_path, secret="fleet.secret") as machine:
        overrides = build_overrides(machine.port, secret=str(wrong))
        command = build_command(tmp_path / "run", *overrides)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
        place = f"tcp://127.0.0.1:{machine.port}"
        assert f"generator 0: the generator at {place} has another secret" in done.stderr
        assert "was refused: it has another secret, or none" in machine.output
        assert machine.end() == 0


def test_a_killed_generator_that_is_started_again_costs_only_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    reward, schedule = held_reward(folder, 4), "{target_offpolicy: 2, record: true}"
    settings = (reward, f"rl.schedule={schedule}")
    pids = []
    with open_machine(tmp_path, *settings) as machine:
        command = build_command(
            folder, "training.steps=12", *settings, *build_overrides(machine.port)
        )

        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_for_held(folder, run)
            assert machine.generator is not None
            pids.append(machine.generator.pid)
            assert machine.end(signal.SIGKILL) == -signal.SIGKILL
            pids.append(machine.start())
            wait_for(lambda: machine.output.count("serving the trainer at") == 2)
            release(folder)
            output, _ = run.communicate(timeout=300)
        finally:
            run.kill()
        assert run.returncode == 0, output[-2000:]
        last = read_steps(folder)[-1]
        assert last["step"] == 12
        assert last["rl/lost_requests"] >= 1 and last["rl/restarts"] == 1
        taken = get_taken(folder)
        # none is missing, none came twice; the last ones are still on their way
        assert len(taken) == len(set(taken)) and set(range(len(taken) - 6)) <= set(taken)
        assert machine.end() == 0
    assert not any(map(is_running, pids))


def test_what_two_other_machines_have_generated_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    settings = (*LONG, RECORDING)
    with (
        open_machine(tmp_path, *settings, name="first") as first,
        open_machine(tmp_path, *settings, name="second") as second,
    ):
        train(tmp_path / "recorded", *settings, *build_overrides(first.port, second.port))
    check_replays(tmp_path / "recorded", tmp_path)


def test_a_restarted_trainer_finds_the_waiting_generator(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    reward = held_reward(folder, 7)
    with open_machine(tmp_path, reward, RECORDING) as machine:
        overrides = (reward, *build_overrides(machine.port))
        restart_trainer(folder, *overrides, is_noticed=lambda: "is gone" in machine.output)
        assert machine.output.count("serving the trainer at") == 2
        assert machine.output.count("waiting for a trainer") == 1
        assert machine.end() == 0


def test_a_run_without_its_generator_ends_with_what_the_attempts_said(tmp_path: Path) -> None:
    start = time.monotonic()
    fleet = build_overrides()[0].replace("processes: 1", "processes: 1, wait_seconds: 2")
    command = build_command(tmp_path / "run", fleet, build_overrides()[1])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    words = "fewer than 1 generators ran for 2 s, the last words of generator 0: "
    assert words in done.stderr and "Connection refused" in done.stderr
    assert time.monotonic() - start < 250


def test_a_problem_of_a_program_ends_both_with_its_words(tmp_path: Path) -> None:
    program = tmp_path / "reward.py"
    program.write_text("raise SystemExit('no such model')")
    reward = f"rl.rewards=[{{name: command, command: [{sys.executable}, {program}]}}]"
    with open_machine(tmp_path, reward) as machine:
        command = build_command(tmp_path / "run", reward, *build_overrides(machine.port))
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 3 and "Traceback" not in done.stderr
        assert "error[data]: generator 0: " in done.stderr and "failed too often" in done.stderr
        assert machine.generator is not None and machine.generator.wait(60) == 3
        assert "failed too often" in machine.output and "Traceback" not in machine.output
