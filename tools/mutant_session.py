"""Try mutants of functions on tests that are collected once, each in a fork with a new function."""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from forked_pytest import Case, ForkedLoop, Limits, Result, run_pytest


@dataclass(frozen=True)
class Trial:
    """A changed file of a copy of the repository, and the tests that may notice it.

    Attributes:
        name: What it is about.
        file: The file in the copy.
        function: The qualified name of the function that is changed.
        source: The changed text of the file.
        tests: The ids of the tests, in order.
        limits: What they may take.
    """

    name: str
    file: Path
    function: str
    source: bytes
    tests: Sequence[str]
    limits: Limits


def run_trials(copy: Path, trials: Sequence[Trial], report: Callable[[Result], object]) -> int:
    """Try every change and return pytest's exit code; the files are left as they were."""
    files = {trial.name: trial.file for trial in trials}
    sources = {file: file.read_bytes() for file in files.values()}

    def restore(result: Result) -> None:
        file = files[result.name]
        file.write_bytes(sources[file])
        report(result)

    cases = [
        Case(one.name, one.tests, lambda one=one: apply_trial(one), one.limits) for one in trials
    ]
    tests = dict.fromkeys(test.partition("::")[0] for one in trials for test in one.tests)
    return run_pytest(copy, list(tests), ForkedLoop(cases, restore)) if tests else 0


def apply_trial(trial: Trial) -> None:
    """Change the file, for processes that tests start too, and the function if it is imported."""
    trial.file.write_bytes(trial.source)
    outermost = trial.function.partition(".<locals>.")[0]
    changed = {
        code.co_firstlineno: code
        for code in iter_codes(compile(trial.source, str(trial.file), "exec"))
        if code.co_qualname == outermost
    }
    # the tests' own process freezes what is imported, and that is not listed
    gc.unfreeze()
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__code__.co_qualname != outermost:
            continue
        old = function.__code__
        new = changed.get(old.co_firstlineno)
        if new is not None and old.co_filename == str(trial.file):
            function.__code__ = new


def iter_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from iter_codes(constant)


def is_noticed(result: Result) -> bool:
    """Return whether a test fails, or does not end."""
    return result.exit_code in (pytest.ExitCode.TESTS_FAILED, None)


def write_line(console: int, text: str) -> None:
    """Print a line where pytest captures what is printed."""
    os.write(console, f"{text}\n".encode())
