"""Run tests in forks of one process that has imported torch already.

Most tests take less time than the imports before them.
"""

import importlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

# what nearly every test imports, or what takes seconds
PRELOADED = (
    "hypothesis",
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "datasets",
    "safetensors.torch",
    "tokenizers",
)
FAULT = 70
POLL_SECONDS = 0.05
OUTPUT_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job may take.

    Attributes:
        cpu_seconds: Of each process: that does not depend on what else the machine does.
        wall_seconds: For processes that wait.
    """

    cpu_seconds: int
    wall_seconds: int


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do in a process of its own.

    Attributes:
        name: What it is about.
        run: What is called there; returns the exit code.
        limits: What it may take.
    """

    name: str
    run: Callable[[], int]
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended.

    Attributes:
        name: The job's.
        exit_code: None if it took too long, and negative if another signal ended it.
        output: The end of what it printed.
    """

    name: str
    exit_code: int | None
    output: str


def preload(modules: Iterable[str]) -> None:
    """Import modules that every fork then has."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in modules:
        importlib.import_module(module)


def run_in_forks(jobs: Iterable[Job], *, processes: int = 1) -> Iterator[Result]:
    """Yield the result of each job as soon as it has ended."""
    waiting = iter(jobs)
    running: dict[int, tuple[Job, TextIO, float]] = {}
    try:
        while True:
            while len(running) < processes and (job := next(waiting, None)) is not None:
                output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
                running[fork(job, output)] = (job, output, time.monotonic())
            if not running:
                return
            time.sleep(POLL_SECONDS)
            for pid, (job, output, started) in list(running.items()):
                late = job.limits and time.monotonic() - started > job.limits.wall_seconds
                if late:
                    os.killpg(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    del running[pid]
                    yield Result(job.name, get_exit_code(status), read_end(output))
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGINT)


def fork(job: Job, output: TextIO) -> int:
    """Start a job and return the id of its process, which leads a group of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        # here too: whoever is first
        os.setpgid(pid, pid)
        return pid
    code = FAULT
    try:
        os.setpgid(0, 0)
        # processes that tests start would import the main module again
        sys.modules["__main__"] = ModuleType("__main__")
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        if job.limits is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (job.limits.cpu_seconds,) * 2)
        with tempfile.TemporaryDirectory(prefix="titanrun-fork-") as folder:
            os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
            code = job.run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def get_exit_code(status: int) -> int | None:
    """Return the exit code in what waitpid reports; None if a limit killed the process."""
    code = os.waitstatus_to_exitcode(status)
    return None if code in (-signal.SIGKILL, -signal.SIGXCPU) else code


def read_end(output: TextIO) -> str:
    """Return the end of what a job printed, and close it."""
    with output:
        output.seek(0)
        return output.read()[-OUTPUT_CHARACTERS:]


def run_pytest(folder: Path, arguments: Sequence[str], *plugins: object) -> int:
    """Run pytest in a repository until a test fails, and return its exit code."""
    os.chdir(folder)
    # these tests are to fail, and are no part of the record of the tests of this repository
    os.environ.pop("TITANRUN_TEST_OUTCOMES", None)
    # plug-ins that are preloaded
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-W", ignored]
    return int(pytest.main([*options, *arguments], list(plugins)))


@dataclass(frozen=True, slots=True)
class Case:
    """Tests to run in a fork.

    Attributes:
        name: What they are about.
        tests: Their ids.
        prepare: What is called before them.
        limits: What they may take.
    """

    name: str
    tests: Sequence[str]
    prepare: Callable[[], object]
    limits: Limits


class ForkedLoop:
    """A plug-in of pytest: collects tests once, then runs some of them in each of several forks.

    Args:
        cases: What each fork runs.
        report: Gets each result as soon as there is one.
    """

    def __init__(self, cases: Sequence[Case], report: Callable[[Result], object]) -> None:
        self.cases = cases
        self.report = report
        # of the fork that runs; pytest captures what it prints
        self.failed = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every case instead of the tests themselves."""
        jobs = [
            Job(case.name, lambda case=case: self.run_case(session, case), case.limits)
            for case in self.cases
        ]
        for result in run_in_forks(jobs):
            self.failed.seek(0)
            self.report(replace(result, output=self.failed.read() + result.output))
            self.failed.truncate(0)
        return True

    def run_case(self, session: pytest.Session, case: Case) -> int:
        """Run tests and note which of them fails."""
        case.prepare()
        items = select_items(session, case.tests)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                self.failed.seek(0)
                self.failed.write(f"FAILED {item.nodeid}\n")
                self.failed.flush()
                # what fixtures opened ends with this process
                return int(pytest.ExitCode.TESTS_FAILED)
        return int(pytest.ExitCode.OK if items else pytest.ExitCode.NO_TESTS_COLLECTED)


def select_items(session: pytest.Session, tests: Sequence[str]) -> list[pytest.Item]:
    """Return what was collected of tests; one without its parameters stands for all of them."""
    items: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in session.items:
        for name in {item.nodeid, item.nodeid.partition("[")[0]}:
            items[name].append(item)
    return [item for test in tests for item in items[test]]
