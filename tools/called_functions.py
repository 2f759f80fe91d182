"""Record which functions each test calls, so that a mutant meets only tests that can notice it."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

# where a test starts processes, whose calls are not recorded
PROCESS_STARTS = frozenset({subprocess.Popen.__init__.__code__, BaseProcess.start.__code__})


@dataclass(slots=True)
class FileOfCalls:
    """What the tests of one file call.

    Attributes:
        calls: By function, as `path:qualified name`: the tests that call it, or the file where
            fixtures and the collection do.
        seconds: CPU time of each test that passed, with its processes.
        starts_processes: Tests that start processes.
        elapsed: Seconds on the clock of each test in `seconds`.
    """

    calls: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    starts_processes: list[str] = field(default_factory=list)
    elapsed: dict[str, float] = field(default_factory=dict)

    def get_tests(self, function: str | None) -> list[str]:
        """Return the tests that call a function, and those that start processes; None: all."""
        callers = self.calls.get(function, ()) if function else ()
        whole_file = function is None or any("::" not in name for name in callers)
        return [
            test
            for test in self.seconds
            if whole_file or test in callers or test in self.starts_processes
        ]


class CallRecorder:
    """A plug-in of pytest that records calls of functions of the package.

    Args:
        root: The repository.
    """

    def __init__(self, root: Path) -> None:
        self.prefix = f"{root}{os.sep}titanrun{os.sep}"
        self.root = root
        self.context = ""
        self.called: dict[str, set[CodeType]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.elapsed: dict[str, float] = {}
        self.not_passed: set[str] = set()
        self.starts_processes: set[str] = set()

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Count what happens during collection for the file."""
        self.context = collector.nodeid.partition("::")[0]

    def pytest_sessionstart(self) -> None:
        """Start to record."""
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Measure a test; count what its fixtures do for the file: others may share them."""
        self.context = item.nodeid.partition("::")[0]
        before = os.times()
        sys.settrace(self.trace)
        result = yield
        after = os.times()
        self.seconds[item.nodeid] = sum(after[:4]) - sum(before[:4])
        self.elapsed[item.nodeid] = after.elapsed - before.elapsed
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        """Count what the test itself does for the test."""
        file, self.context = self.context, item.nodeid
        try:
            return (yield)
        finally:
            self.context = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out tests that fail or skip without any mutant."""
        if report.outcome != "passed":
            self.not_passed.add(report.nodeid)

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        """Note the function that is called; lines are not traced."""
        code = frame.f_code
        if code.co_filename.startswith(self.prefix):
            self.called[self.context].add(code)
        elif code in PROCESS_STARTS:
            self.starts_processes.add(self.context)

    def split_by_file(self, folder: Path, names: dict[str, Path]) -> None:
        """Write what was recorded: for each file of tests into the file that `names` has for it."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        files = {name: FileOfCalls() for name in names}
        for context, codes in self.called.items():
            file = files.get(context.partition("::")[0])
            for code in codes if file else ():
                path = Path(code.co_filename).relative_to(self.root)
                file.calls.setdefault(f"{path}:{code.co_qualname}", []).append(context)
        for test, seconds in self.seconds.items():
            file = files.get(test.partition("::")[0])
            if file and test not in self.not_passed:
                file.seconds[test] = seconds
                file.elapsed[test] = self.elapsed[test]
        for test in self.starts_processes:
            if file := files.get(test.partition("::")[0]):
                file.starts_processes.append(test)
        for name, file in files.items():
            text = json.dumps([getattr(file, one.name) for one in fields(file)])
            (folder / names[name]).write_text(text, encoding="utf-8")


def name_record(root: Path, file: str) -> Path:
    """Return the name of the record of a file of tests; another one when its text changes."""
    digest = hashlib.sha256((root / file).read_bytes()).hexdigest()[:16]
    return Path(f"{file.replace('/', '.')}-{digest}.json")


def read_record(path: Path) -> FileOfCalls:
    """Read what `CallRecorder` wrote."""
    return FileOfCalls(*json.loads(path.read_text(encoding="utf-8")))


def iter_test_files(root: Path, tests: Sequence[str]) -> Iterator[str]:
    """Yield the files of tests in folders and files."""
    for test in tests:
        path = root / test
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            yield str(file.relative_to(root))
