"""Workers of one machine, started and watched: here scripts without torch stand in for them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from titanrun.recipe.schemas.output_schemas import build_status_schema

LAUNCH = (
    "import sys; from pathlib import Path; from titanrun.launch.worker_processes import "
    "run_workers as run; "
)
LISTENS = (
    "import json, os, signal, sys, time; rank = int(os.environ['RANK']); here = "
    "os.path.dirname(sys.argv[1]); "
)
FAILS = (
    "json.dump({'time': time.time(), 'is_of_another': False, 'text': f'error[data]: rank {rank} "
    "is out of rows'}, open(told, 'w')); "
)
TOLD = "told = os.environ['TITANRUN_FAILURE_FILE']; "


def launch(folder: Path, worker: str, *, count: int = 3) -> subprocess.Popen[str]:
    """A launcher whose workers run `worker`, which knows its `rank` and the folder `here`."""
    script = folder / "worker.py"
    script.write_text(LISTENS + TOLD + worker)
    code = (
        f"{LAUNCH} sys.exit(run(Path({str(folder / 'resolved.yaml')!r}), {count}, "
        f"[sys.executable, {str(script)!r}]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path, *, count: int) -> None:
    """Returns when so many files match."""
    for _ in range(2000):
        if len(list(path.parent.glob(path.name))) == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {count} files {path}")


def is_alive(pid: str) -> bool:
    """Whether a process runs; a zombie that nobody reads does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_every_worker_knows_its_place(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    done = launch(
        tmp_path,
        f"open(f'{{here}}/{{rank}}.txt', 'w').write(' '.join(os.environ[name] for name in "
        f"{names}))",
    )
    out, error = done.communicate(timeout=60)
    assert (done.returncode, out, error) == (0, "", "")
    places = [(tmp_path / f"{rank}.txt").read_text().split() for rank in range(3)]
    assert [place[:5] for place in places] == [
        [str(rank), str(rank), "3", "3", "127.0.0.1"] for rank in range(3)
    ]
    assert len({place[5] for place in places}) == 1


def test_only_the_first_rank_has_the_console(tmp_path: Path) -> None:
    done = launch(tmp_path, "print('rank', rank); print('warning', rank, file=sys.stderr)")
    assert done.communicate(timeout=60) == ("rank 0\n", "warning 0\n")
    assert sorted((tmp_path / "logs" / "rank-2.log").read_text().splitlines()) == [
        "rank 2",
        "warning 2",
    ]


def test_the_death_of_one_is_that_of_all_and_said_once(tmp_path: Path) -> None:
    worker = f"""
if rank == 1:
    {FAILS}
    sys.exit(3)

def lose(*_):
    json.dump({{'time': 0, 'is_of_another': True, 'text': 'lost'}}, open(told, 'w'))
    sys.exit(70)

signal.signal(signal.SIGTERM, lose)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
time.sleep(60)
"""
    done = launch(tmp_path, worker)
    _, error = done.communicate(timeout=60)
    assert done.returncode == 3
    assert (
        error == f"error[data]: rank 1 is out of rows\n  = note: rank 1 failed first; its log is "
        f"{tmp_path / 'logs' / 'rank-1.log'}\n"
    )


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "running", "step": 7}')
    done = launch(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if rank == 2 else time.sleep(60)")
    _, error = done.communicate(timeout=60)
    assert done.returncode == 128 + signal.SIGKILL
    assert error.startswith("error[killed]: rank 2 was killed by SIGKILL\n  = help: ")
    assert "memory" in error.splitlines()[1]
    assert '"state": "failed"' in (tmp_path / "status.json").read_text()


def test_a_worker_that_crashes_is_named_and_one_that_ends_silently_too(tmp_path: Path) -> None:
    done = launch(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV) if rank else time.sleep(60)")
    error = done.communicate(timeout=60)[1]
    assert "was killed by SIGSEGV\n  = help: a library crashed" in error
    done = launch(tmp_path, "os._exit(70) if rank == 1 else time.sleep(60)", count=2)
    error = done.communicate(timeout=60)[1]
    assert error.startswith("error[internal]: rank 1 ended with exit code 70 without a message")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGHUP,
        signal.SIGXCPU,
    ],
)
def test_signals_reach_every_worker_once(tmp_path: Path, number: signal.Signals) -> None:
    worker = f"""
seen = []
signal.signal({int(number)}, lambda *_: seen.append(1))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [{int(number)}])
open(f'{{here}}/{{rank}}.ready', 'w').close()
signal.pause() if not seen else None
time.sleep(0.2)
open(f'{{here}}/{{rank}}.txt', 'w').write(str(len(seen)))
sys.exit(75)
"""
    launcher = launch(tmp_path, worker)
    wait_for(tmp_path / "*.ready", count=3)
    launcher.send_signal(number)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(3)] == ["1", "1", "1"]


def test_workers_under_nohup_outlive_their_terminal(tmp_path: Path) -> None:
    worker = """
open(f'{here}/{rank}.ready', 'w').close()
signal.sigtimedwait([signal.SIGCONT], 0.5)
open(f'{here}/{rank}.txt', 'w').close()
"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        launcher = launch(tmp_path, worker)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(tmp_path / "*.ready", count=3)
    launcher.send_signal(signal.SIGHUP)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert len(list(tmp_path.glob("*.txt"))) == 3


def test_a_third_interrupt_leaves_nobody_behind(tmp_path: Path) -> None:
    worker = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(f'{here}/{rank}.part', 'w').write(str(os.getpid()))
os.rename(f'{here}/{rank}.part', f'{here}/{rank}.pid')
time.sleep(60)
"""
    launcher = launch(tmp_path, worker)
    wait_for(tmp_path / "*.pid", count=3)
    for _ in range(3):
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.2)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert not any(is_alive(path.read_text()) for path in tmp_path.glob("*.pid"))


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process that its parent died"
)
def test_a_launcher_that_is_killed_leaves_nobody_behind(tmp_path: Path) -> None:
    worker = """
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
open(f'{here}/{rank}.part', 'w').write(str(os.getpid()))
os.rename(f'{here}/{rank}.part', f'{here}/{rank}.pid')
time.sleep(60)
"""
    launcher = launch(tmp_path, worker)
    wait_for(tmp_path / "*.pid", count=3)
    launcher.kill()
    launcher.communicate()
    for _ in range(1000):
        if not any(is_alive(path.read_text()) for path in tmp_path.glob("*.pid")):
            return
        time.sleep(0.01)
    raise AssertionError("workers live on without their launcher")


def test_a_first_rank_that_dies_before_it_can_write_leaves_a_status_that_says_so(
    tmp_path: Path,
) -> None:
    done = launch(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", count=1)
    _, error = done.communicate(timeout=60)
    assert "error[killed]: rank 0 was killed by SIGKILL" in error
    status = json.loads((tmp_path / "status.json").read_text())
    assert (done.returncode, status["state"], status["exit_code"], status["step"]) == (
        137,
        "failed",
        137,
        0,
    )
    jsonschema.validate(status, build_status_schema())
