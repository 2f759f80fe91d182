"""Replica groups, started and watched: here scripts without torchft stand in for them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.rank_env import RankInfo
from titanrun.launch.group_launcher import report_end
from titanrun.launch.host_address import find_own_address
from titanrun.launch.lighthouse_process import build_lighthouse_arguments

LAUNCH = """
import sys
import time
from pathlib import Path
from titanrun.launch.group_launcher import *
class NoLighthouse:
    address, has_ended = "http://127.0.0.1:1", False
    def start(self):
        if len(sys.argv) > 3:
            Path(sys.argv[3]).touch()
            time.sleep(1)
here = Path(sys.argv[1])
signal.signal(signal.SIGCHLD, do_nothing)
worker = [sys.executable, str(here / "worker.py")]
groups = [ReplicaGroup(number, 2, resolved=here / "resolved.yaml", num_workers=2, index=number,
                       num_groups=2, reports=here, command=worker)
          for number in range(2)]
code = GroupMonitor(groups, NoLighthouse(), int(sys.argv[2]), here).run()
report_end(here, code)
sys.exit(code)
"""
LAUNCH_ONE = """
import sys
from pathlib import Path
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.group_launcher import start_replica_groups
here = Path(sys.argv[1])
config = FaultToleranceConfig(enable=True, replica_id=1, lighthouse=sys.argv[2],
                              join_timeout_ms=1000, min_replica_size=2)
sys.exit(start_replica_groups(LocalLaunchConfig(max_restarts=2), config, processes=2,
                              resolved=here / "resolved.yaml",
                              command=[sys.executable, str(here / "worker.py")]))
"""
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
here, rank, group = Path(sys.argv[1]).parent, int(os.environ["RANK"]), os.environ["TITANRUN_GROUP"]
starts = here / f"starts-{group}-{rank}"
with starts.open("a") as file:
    file.write(json.dumps(dict(os.environ)) + "\\n")
number = len(starts.read_text().splitlines())
def commit(step):
    with (here / "logs" / f"group-{group}.jsonl").open("a") as file:
        file.write(json.dumps({"event": "committed", "step": step}) + "\\n")
def finish(state="finished"):
    (here / "status.json").write_text(json.dumps({"state": state}))
"""


def launch(folder: Path, worker: str, min_groups: int = 1, *more: str) -> subprocess.Popen[str]:
    """A launcher of two groups of two ranks that run `worker`; it knows its start's `number`.

    `more` is a file that appears while the lighthouse takes its time to start."""
    (folder / "worker.py").write_text(WORKER + worker)
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(folder), str(min_groups), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch_one(
    folder: Path, worker: str, lighthouse: str = "http://127.0.0.1:9"
) -> subprocess.Popen[str]:
    """A launcher of group 1 of two on this machine, whose other group is on another one."""
    (folder / "worker.py").write_text(WORKER + worker)
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH_ONE, str(folder), lighthouse],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(launcher: subprocess.Popen[str]) -> tuple[int, str]:
    _, error = launcher.communicate(timeout=60)
    return launcher.returncode, error


def starts(folder: Path, group: int, rank: int = 0) -> list[dict[str, str]]:
    lines = (folder / f"starts-{group}-{rank}").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_each_rank_knows_its_group_and_its_place_in_it(tmp_path: Path) -> None:
    assert end(launch(tmp_path, "finish()")) == (0, "")
    found = [starts(tmp_path, group, rank)[0] for group in range(2) for rank in range(2)]
    names = ("TITANRUN_GROUP", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    assert [[place[name] for name in names] for place in found] == [
        ["0", "0", "2", "0"],
        ["0", "1", "2", "1"],
        ["1", "0", "2", "2"],
        ["1", "1", "2", "3"],
    ]
    assert found[0]["MASTER_PORT"] == found[1]["MASTER_PORT"] != found[2]["MASTER_PORT"]


def test_a_rank_that_dies_ends_its_group_only_and_the_group_starts_again(tmp_path: Path) -> None:
    code, error = end(
        launch(
            tmp_path,
            "if group == '1' and number == 1: os.kill(os.getpid(), signal.SIGKILL) if rank else "
            "time.sleep(60)\n"
            "while not (here / 'starts-1-0').exists() or "
            "len((here / 'starts-1-0').read_text().splitlines()) < 2: time.sleep(0.05)\n"
            "finish()",
        )
    )
    assert code == 0 and "rank 1 of replica group 1 was killed by SIGKILL" in error
    assert "replica group 1 ended with exit code 137: restarting it (restart 1 of 2" in error
    assert [len(starts(tmp_path, group)) for group in range(2)] == [1, 2]


def test_a_group_with_a_machine_of_its_own_has_all_of_it(tmp_path: Path) -> None:
    # the interface that leads out of this machine; the address is one of documentation
    own = find_own_address("192.0.2.1", 29510)
    lighthouse = "http://192.0.2.1:29510"
    assert end(launch_one(tmp_path, "finish()", lighthouse)) == (0, "")
    found = [starts(tmp_path, 1, rank)[0] for rank in range(2)]
    names = ("TITANRUN_GROUP", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TITANRUN_LIGHTHOUSE")
    assert [[place[name] for name in names] for place in found] == [
        ["1", "0", "0", "2", lighthouse],
        ["1", "1", "1", "2", lighthouse],
    ]
    assert {place["MASTER_ADDR"] for place in found} == {own.address}
    assert {place["GLOO_SOCKET_IFNAME"] for place in found} == {own.interface}
    assert "TITANRUN_QUIET" not in found[0]
    assert not (tmp_path / "starts-0-0").exists()


def test_a_group_waits_for_the_last_save_of_another_machine_and_comes_back(tmp_path: Path) -> None:
    code, error = end(launch_one(tmp_path, "if number == 2: finish()"))
    assert code == 0 and len(starts(tmp_path, 1)) == 2
    assert error == "note: the last step is not saved: starting replica group 1 again\n"


def test_a_last_save_that_never_comes_is_a_failure(tmp_path: Path) -> None:
    code, _ = end(launch_one(tmp_path, "finish('running')"))
    assert code == 70 and len(starts(tmp_path, 1)) == 3
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


def test_a_machine_that_cannot_reach_the_lighthouse_says_so(tmp_path: Path) -> None:
    _, error = end(launch_one(tmp_path, "finish()", "http://no-host.invalid:29510"))
    assert "cannot reach the lighthouse no-host.invalid: name or service not known" in error


def test_a_group_that_trains_no_step_is_given_up_and_one_that_does_is_not(tmp_path: Path) -> None:
    code, error = end(
        launch(
            tmp_path,
            "if group == '0': time.sleep(8); finish()\n"
            "elif number <= 4:\n"
            "    commit(3 if number > 1 else 1); os.kill(os.getpid(), signal.SIGKILL)\n"
            "else: os.kill(os.getpid(), signal.SIGKILL)",
        )
    )
    # steps 1 and 3 each are worth two restarts
    assert (code, len(starts(tmp_path, 1))) == (0, 4)
    assert error.count("restarting it") == 3 and "replica group 1 is lost" in error


def test_a_group_that_ends_while_another_one_starts_is_started_too(tmp_path: Path) -> None:
    slow = """
from titanrun.launch import group_launcher
spawn, count = group_launcher.spawn_worker, 0
def spawn_slowly(*arguments):
    global count
    count += 1
    process = spawn(*arguments)
    time.sleep(1.5 if count > 4 else 0)
    return process
group_launcher.spawn_worker = spawn_slowly
"""
    (tmp_path / "worker.py").write_text(
        WORKER + "if number == 1:\n"
        "    other = here / 'starts-1-0'\n"
        "    while group == '0' and (not other.exists() or "
        "len(other.read_text().splitlines()) < 2): time.sleep(0.01)\n"
        "    sys.exit(70)\n"
        "finish()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH.replace("here = ", slow + "here = "), str(tmp_path), "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert end(launcher)[0] == 0
    assert [len(starts(tmp_path, group)) for group in range(2)] == [2, 2]


def test_a_mistake_that_would_recur_starts_no_group_again(tmp_path: Path) -> None:
    code, _ = end(launch(tmp_path, "sys.exit(5)"))
    assert (code, [len(starts(tmp_path, group)) for group in range(2)]) == (5, [1, 1])
    assert json.loads((tmp_path / "status.json").read_text())["exit_code"] == 5


def test_the_run_ends_where_fewer_groups_are_left_than_a_step_needs(tmp_path: Path) -> None:
    before = time.monotonic()
    code, error = end(
        launch(tmp_path, "sys.exit(5) if group == '1' else time.sleep(50)", min_groups=2)
    )
    assert code == 5 and "replica group 1 is lost" in error
    assert time.monotonic() - before < 40


def test_those_that_finished_start_again_while_the_last_checkpoint_is_missing(
    tmp_path: Path,
) -> None:
    code, _ = end(
        launch(
            tmp_path,
            "if number == 1 and group == '0': sys.exit(0)\n"
            "if number == 1: time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)\n"
            "finish()",
        )
    )
    assert (code, [len(starts(tmp_path, group)) for group in range(2)]) == (0, [2, 2])


def test_a_signal_during_the_start_of_the_lighthouse_reaches_the_groups(tmp_path: Path) -> None:
    """The launcher died of it, and status.json said starting for ever."""
    begun = tmp_path / "begun"
    launcher = launch(
        tmp_path,
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])\n"
        "time.sleep(60)",
        1,
        str(begun),
    )
    while not begun.exists():
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    assert end(launcher)[0] == 75
    assert [len(starts(tmp_path, group)) for group in range(2)] == [1, 1]


def test_a_run_that_was_stopped_before_its_first_step_is_preempted(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    for before, after in (("starting", "preempted"), ("finished", "finished")):
        status.write_text(json.dumps({"state": before, "step": 0, "exit_code": None}))
        report_end(tmp_path, 75)
        assert json.loads(status.read_text())["state"] == after


def test_a_signal_reaches_every_rank_and_no_group_starts_again(tmp_path: Path) -> None:
    launcher = launch(
        tmp_path,
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])\n"
        "(here / f'ready-{group}-{rank}').touch(); time.sleep(60)",
    )
    while len(list(tmp_path.glob("ready-*"))) < 4:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    code, error = end(launcher)
    assert code == 75
    assert error.count("note: SIGTERM: stopping after this step, then saving\n") == 1
    assert [len(starts(tmp_path, group)) for group in range(2)] == [1, 1]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What torchft's classes are called with, where a module of its name stands in for it."""
    found: dict[str, Any] = {}
    package = ModuleType("torchft")

    class Recorder:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            found[type(self).__name__] = (arguments, options)

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: "http://host:1234"

    for name in ("Manager", "LighthouseServer", "LighthouseClient", "ProcessGroupGloo"):
        setattr(package, name, type(name, (Recorder,), {}))
    package.manager = package.coordination = package  # type: ignore[attr-defined]
    package.ManagerServer = SimpleNamespace()  # type: ignore[attr-defined]
    for name in ("torchft", "torchft.manager", "torchft.coordination"):
        monkeypatch.setitem(sys.modules, name, package)
    for name in ("titanrun.distributed.replica_groups", "titanrun.worker.lighthouse"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


def test_the_lighthouse_waits_as_the_recipe_says(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from titanrun.worker import lighthouse

    monkeypatch.setattr(lighthouse, "ignore_run_signals", lambda: None)
    fakes = {name: getattr(signal, name) for name in ("SIGTERM", "SIG_BLOCK", "SIG_DFL")}
    calls = {name: lambda *_: None for name in ("pthread_sigmask", "signal", "sigwait")}
    monkeypatch.setattr(lighthouse, "signal", SimpleNamespace(**fakes, **calls))
    monkeypatch.setattr(lighthouse, "time", SimpleNamespace(sleep=lambda seconds: None))
    config = FaultToleranceConfig(
        enable=True, min_replica_size=2, join_timeout_ms=70_000, heartbeat_timeout_ms=700
    )
    lighthouse.main(["127.0.0.1", *build_lighthouse_arguments(config, 4321)])
    assert recorded["LighthouseServer"] == (
        ("127.0.0.1:4321", 2),
        {"join_timeout_ms": 70_000, "heartbeat_timeout_ms": 700},
    )
    assert capfd.readouterr().out == "http://127.0.0.1:1234\n"
    # its own client delays the first quorum
    assert recorded["LighthouseClient"][0] == ("http://127.0.0.1:1234",)


def test_a_lighthouse_whose_launcher_has_died_ends_without_a_word(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from titanrun.worker import lighthouse

    def break_pipe(*_: object) -> None:
        raise BrokenPipeError

    def wait(*_: object) -> None:
        raise AssertionError("it waits for a signal of nobody")

    fakes = {name: getattr(signal, name) for name in ("SIGTERM", "SIG_BLOCK", "SIG_DFL")}
    calls = {name: lambda *_: None for name in ("pthread_sigmask", "signal")}
    monkeypatch.setattr(lighthouse, "ignore_run_signals", lambda: None)
    monkeypatch.setattr(lighthouse, "signal", SimpleNamespace(**fakes, **calls, sigwait=wait))
    monkeypatch.setattr(lighthouse, "os", SimpleNamespace(write=break_pipe))
    arguments = build_lighthouse_arguments(FaultToleranceConfig(enable=True), 0)
    lighthouse.main(["127.0.0.1", *arguments])


def test_the_groups_wait_as_the_recipe_says_and_listen_on_this_machine(
    recorded: dict[str, Any],
) -> None:
    from torch.distributed import TCPStore

    from titanrun.distributed.replica_groups import ReplicaGroups

    config = FaultToleranceConfig(
        enable=True, process_group_timeout_ms=7000, quorum_timeout_ms=90_000
    )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = RankInfo(group=1, lighthouse="http://127.0.0.1:1", store_port=store.port)
    ReplicaGroups(config, place, store).open(3)
    _, options = recorded["Manager"]
    assert options["timeout"].total_seconds() == 7
    assert recorded["ProcessGroupGloo"][1]["timeout"].total_seconds() == 7
    assert options["quorum_timeout"].total_seconds() == 90
    assert (options["hostname"], options["replica_id"]) == ("127.0.0.1", "titanrun_1")
    assert options["checkpoint_transport"].metadata().startswith("http://127.0.0.1:")
    options["checkpoint_transport"].shutdown()
    assert os.environ.get("TORCHFT_USE_OTEL") == "false"


def test_a_lighthouse_without_torchft_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchft", "torchft.coordination"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "titanrun.worker.lighthouse", raising=False)
    from titanrun.worker import lighthouse

    with pytest.raises(ProblemsFound, match="needs the package 'torchft'") as found:
        lighthouse.main(["127.0.0.1", "0", "1", "60000", "5000"])
    assert found.value.problems[0].hint == 'pip install "titanrun[torchft]"'


@pytest.mark.parametrize("words", [[], ["127.0.0.1", "port", "1", "60000", "5000"]])
@pytest.mark.usefixtures("recorded")
def test_a_lighthouse_tells_wrong_arguments(words: list[str]) -> None:
    from titanrun.worker import lighthouse

    with pytest.raises(ProblemsFound, match="the arguments are ADDRESS PORT"):
        lighthouse.main(words)
