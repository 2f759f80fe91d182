"""Ignore one setting after the other, and tell which tests do not notice.

The tests are those in tests/recipe/leaves.yaml.

python tools/try_leaves.py --all                # a few seconds each: an hour on two cores
python tools/try_leaves.py --rotating 10        # every tenth, others with every commit
python tools/try_leaves.py optimizer:adamw.lr   # these
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from forked_pytest import (
    PRELOADED,
    Case,
    ForkedLoop,
    Job,
    Limits,
    Result,
    preload,
    run_in_forks,
    run_pytest,
)
from recipe_leaves import NOT_BUILT, ignore, leaves, table

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent
# a length that is ignored makes a run of ten thousand steps
TOO_LONG = Limits(cpu_seconds=120, wall_seconds=900)
# tests run at the same time
NUM_PROCESSES = 2


def main(arguments: list[str]) -> int:
    """Exit code 1 where a test passes though its setting is ignored."""
    tests = table()
    names = select_names(arguments, [name for name in leaves() if tests[name] != NOT_BUILT])
    tried = [name for name in names if leaves()[name].has_a_choice]
    preload((*PRELOADED, "titanrun.worker.rank_main", "titanrun.cli.main"))
    files: dict[str, list[str]] = {}
    for name in tried:
        files.setdefault(tests[name].partition("::")[0], []).append(name)
    with tempfile.NamedTemporaryFile("w+") as noticed:
        jobs = [Job(file, FileOfTests(held, noticed.name).run) for file, held in files.items()]
        for result in run_in_forks(jobs, processes=NUM_PROCESSES):
            if result.exit_code != 0:
                print(f"{result.name}: ended with {result.exit_code}:\n{result.output}")
        seen = noticed.read().splitlines()
    print(f"{len(seen)} of {len(tried)} settings: their test notices that they are ignored")
    return 0 if len(seen) == len(tried) else 1


def select_names(arguments: list[str], built: list[str]) -> list[str]:
    """Return the names of the settings that the command line asks for."""
    match arguments:
        case ["--all"]:
            return built
        case ["--rotating", count]:
            done = subprocess.run(
                ["git", "rev-list", "--count", "HEAD"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            # a copy without a history always tries the first share
            return built[int(done.stdout or 0) % int(count) :: int(count)]
        case []:
            raise SystemExit(__doc__)
        case names:
            return names


class FileOfTests:
    """The tests of one file, each without a setting that it is to notice.

    Args:
        names: The settings.
        noticed: A file that gets the name of each setting whose test fails.
    """

    def __init__(self, names: Sequence[str], noticed: str) -> None:
        self.names = names
        self.noticed = Path(noticed)
        self.console = os.dup(sys.stdout.fileno())

    def run(self) -> int:
        """Try every setting and return pytest's exit code."""
        tests = {name: f"tests/{table()[name]}" for name in self.names}
        cases = [
            Case(name, [test], lambda name=name: leave_out(name), TOO_LONG)
            for name, test in tests.items()
        ]
        loop = ForkedLoop(cases, self.report)
        code = run_pytest(ROOT, ["-m", "", *dict.fromkeys(tests.values())], loop)
        return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code

    def report(self, result: Result) -> None:
        """Print whether the test failed, and note it if it did."""
        about = f"{result.name}: {table()[result.name]}"
        if result.exit_code == pytest.ExitCode.TESTS_FAILED:
            text = f"{result.name}: noticed\n"
        elif result.exit_code is None:
            text = f"{about}: does not end, which counts as noticed\n"
        elif result.exit_code == 0:
            text = f"{about}: the test passes\n"
        else:
            text = f"{about}: pytest ended with {result.exit_code}:\n{result.output}\n"
        os.write(self.console, text.encode())
        if result.exit_code in (pytest.ExitCode.TESTS_FAILED, None):
            with self.noticed.open("a", encoding="utf-8") as file:
                file.write(f"{result.name}\n")


def leave_out(name: str) -> None:
    """Ignore a setting here, and in all processes that a test starts."""
    paths = [str(TOOLS / "ignoring"), str(TOOLS), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["TITANRUN_IGNORED"] = name
    ignore(leaves()[name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
