"""Measure the mutation score: change one expression at a time, and count what tests notice.

    mutants.py                          20 random mutants of each group in tests/mutants.yaml
    mutants.py --count 40 --seed 7      others, and more
    mutants.py titanrun/config          only modules below this path
    mutants.py titanrun/config/x.py:31  all mutants of this line

A mutant lives in a copy of the repository, so that other work in the tree goes on. It meets the
tests of its group that call its function, or that start processes, those with its name and the
fastest first; outside of functions all tests of its group. Those of functions meet tests that are
imported already, and what survives that those of a process of its own. It is killed if one of them
fails. Where they take many times as long as without it, there is no verdict: it may loop for ever,
or the machine may be busy. Each is printed with file, line, change and the test that failed.
Equivalent mutants, listed in tests/mutants.yaml with the reason, are left out. Exit with 1 if fewer
than 90% of those with a verdict are killed, or if there is no verdict at all.
"""

import argparse
import ast
import compileall
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from ruamel.yaml import YAML

from called_functions import CallRecorder, iter_test_files, name_record, read_record
from forked_pytest import FAULT, PRELOADED, Job, Limits, Result, preload, run_in_forks, run_pytest
from mutant_changes import iter_changes, iter_nodes
from mutant_session import Trial, is_noticed, run_trials, write_line

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "mutants.yaml"
WANTED_SCORE = 0.9
TESTS_FAILED, NO_TESTS = 1, 5
SURVIVED, TIMEOUT = "survived", "no verdict: timeout"


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the characters from `start` to `end` become `text`.

    Attributes:
        function: The innermost function around it, by its qualified name; None outside.
        tests: The files and folders of tests of its group.
    """

    file: Path
    line: int
    start: int
    end: int
    before: str
    text: str
    function: str | None
    tests: tuple[str, ...]

    def __str__(self) -> str:
        """Return the place and the change on one line."""
        return f"{self.file}:{self.line}: {self.before!r} -> {self.text!r}"

    @property
    def key(self) -> str:
        """The mutant as tests/mutants.yaml names equivalent ones: lines move, functions stay."""
        before = " ".join(self.before.split())
        return f"{self.file}:{self.function}: {before} -> {self.text}"


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="modules, folders or lines below titanrun/")
    parser.add_argument("--count", type=int, default=20, help="mutants of each group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60, help="of tests for each mutant")
    parser.add_argument("--calls", type=Path, help="keep here what tests call, for the next time")
    options = parser.parse_args()
    chosen = choose_mutants(options.paths, options.count, options.seed)
    preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="titanrun-mutants-") as scratch:
        copies = [copy_repository(Path(scratch, str(n))) for n in range(options.processes)]
        records = options.calls or Path(scratch, "calls")
        records.mkdir(exist_ok=True)
        record_calls(chosen, copies[0], records)
        ends, rest = run_in_sessions(chosen, copies, records, options.seconds)
        ends += run_mutants(rest, copies, records, options.seconds)
    print(describe_score(ends))
    return int(measure_score(ends) < WANTED_SCORE)


def measure_score(ends: Sequence[str]) -> float:
    """Return the share of the killed among the mutants with a verdict; 0 without any."""
    verdicts = [end for end in ends if end != TIMEOUT]
    return sum(end != SURVIVED for end in verdicts) / max(len(verdicts), 1)


def describe_score(ends: Sequence[str]) -> str:
    """Return the score in words, and on a line of its own how many mutants are not in it."""
    timeouts = ends.count(TIMEOUT)
    text = f"{measure_score(ends):.1%} of {len(ends) - timeouts} mutants killed"
    left_out = (
        f"NO VERDICT on {timeouts} of {len(ends)} mutants, which the score leaves out: timeout"
    )
    return f"{left_out}\n{text}" if timeouts else text


def choose_mutants(paths: list[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` random mutants of each group, or all of the lines that `paths` names."""
    table = YAML(typ="safe").load(TABLE.read_text(encoding="utf-8"))
    equivalent = table.pop("equivalent", {})
    chosen: list[Mutant] = []
    seen: set[Path] = set()
    for pattern, tests in table.items():
        mutants = []
        for path in sorted(ROOT.glob(pattern)):
            file = path.relative_to(ROOT)
            if path.suffix == ".py" and file not in seen:
                seen.add(file)
                mutants += find_mutants(file, tuple(tests))
        mutants = [mutant for mutant in mutants if mutant.key not in equivalent]
        lines = [one for one in mutants if f"{one.file}:{one.line}" in paths]
        below = tuple(path for path in paths if ":" not in path)
        rest = [one for one in mutants if not paths or str(one.file).startswith(below or ":")]
        chosen += lines + Random(seed).sample(rest, min(count, len(rest)))
    return chosen


def find_mutants(file: Path, tests: tuple[str, ...]) -> list[Mutant]:
    """Return the mutants of a file."""
    source = (ROOT / file).read_text(encoding="utf-8")
    offsets = [0]
    for line in source.split("\n"):
        offsets.append(offsets[-1] + len(line.encode()) + 1)
    encoded, found = source.encode(), []
    for node, function in iter_nodes(ast.parse(source), "", None):
        for target, text in iter_changes(node):
            assert target.end_lineno is not None and target.end_col_offset is not None
            start = offsets[target.lineno - 1] + target.col_offset
            end = offsets[target.end_lineno - 1] + target.end_col_offset
            before = encoded[start:end].decode()
            found.append(Mutant(file, target.lineno, start, end, before, text, function, tests))
    return found


def copy_repository(folder: Path) -> Path:
    """Copy the tree with its bytecode, of which that of a mutant is too old."""
    ignore = shutil.ignore_patterns(".git", ".venv*", "node_modules", "*_cache")

    def ignore_unneeded(place: str, names: list[str]) -> set[str]:
        # the runs of a user, not the package titanrun.runs
        return ignore(place, names) | ({"runs"} if Path(place) == ROOT else set())

    shutil.copytree(ROOT, folder, ignore=ignore_unneeded)
    compileall.compile_dir(folder / "titanrun", quiet=2)
    return folder


def record_calls(mutants: list[Mutant], copy: Path, records: Path) -> None:
    """Run the tests of all mutants once, and write what each file of them calls."""
    files = {file for one in mutants for file in iter_test_files(copy, one.tests)}
    missing = {file: name_record(copy, file) for file in sorted(files)}
    missing = {file: name for file, name in missing.items() if not (records / name).exists()}

    def record() -> int:
        enter_copy(copy)
        recorder = CallRecorder(copy)
        code = run_pytest(copy, ["--maxfail=0", *missing], recorder)
        # tests that fail without a mutant, as where git is missing, are left out
        if code in (0, TESTS_FAILED):
            recorder.split_by_file(records, missing)
        return code

    for result in run_in_forks([Job("calls", record)] if missing else []):
        if result.exit_code not in (0, TESTS_FAILED):
            raise RuntimeError(result.output)


def enter_copy(copy: Path) -> None:
    """Take the package and the tests from a copy, here and in processes that tests start."""
    os.environ["PYTHONPATH"] = str(copy)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))


def run_in_sessions(
    mutants: list[Mutant], copies: list[Path], records: Path, seconds: int
) -> tuple[list[str], list[Mutant]]:
    """Let tests that are collected once meet the mutants of functions.

    Tests that start processes are left to `run_mutants`, as is what runs on import.

    Returns:
        What became of mutants, and the mutants that are left.
    """
    ended = copies[0].parent / "ended"
    ended.mkdir()
    trials = {
        str(number): Trial(str(number), mutant.file, mutant.function, source, *chosen)
        for number, mutant in enumerate(mutants)
        if mutant.function is not None
        and (source := change_source((copies[0] / mutant.file).read_bytes(), mutant))
        and (chosen := select_tests(mutant, copies[0], records, seconds, with_processes=False))[0]
    }

    def run_share(copy: Path, names: list[str], console: int) -> int:
        enter_copy(copy)

        def report(result: Result) -> None:
            if is_noticed(result):
                end = describe_end(result)
                write_line(console, f"{end}: {mutants[int(result.name)]}")
                (ended / result.name).write_text(end, encoding="utf-8")

        own = [replace(trials[name], file=copy / trials[name].file) for name in names]
        return run_trials(copy, own, report)

    shares = {copy: list(trials)[number :: len(copies)] for number, copy in enumerate(copies)}
    console = os.dup(1)
    jobs = [
        Job(str(copy), lambda copy=copy, names=names: run_share(copy, names, console))
        for copy, names in shares.items()
    ]
    for result in run_in_forks(jobs, processes=len(copies)):
        if result.exit_code not in (0, NO_TESTS):
            raise RuntimeError(result.output)
    ends = {int(file.name): file.read_text(encoding="utf-8") for file in ended.iterdir()}
    return list(ends.values()), [one for n, one in enumerate(mutants) if n not in ends]


def run_mutants(
    mutants: list[Mutant], copies: list[Path], records: Path, seconds: int
) -> list[str]:
    """Let tests meet mutants in a process that imports them; print and return how each ends."""
    free, used = list(copies), dict[str, tuple[Mutant, Path, bytes]]()
    ends = []

    def iter_jobs() -> Iterator[Job]:
        for number, mutant in enumerate(mutants):
            copy = free.pop()
            tests, limits = select_tests(mutant, copies[0], records, seconds)
            used[str(number)] = (mutant, copy, write_change(copy, mutant))
            yield Job(str(number), lambda copy=copy, tests=tests: run_tests(copy, tests), limits)

    for result in run_in_forks(iter_jobs(), processes=len(copies)):
        mutant, copy, source = used.pop(result.name)
        (copy / mutant.file).write_bytes(source)
        free.append(copy)
        ends.append(describe_end(result))
        print(f"{ends[-1]}: {mutant}", flush=True)
    return ends


def write_change(copy: Path, mutant: Mutant) -> bytes:
    """Write a mutant into a copy and return the source as it was."""
    source = (copy / mutant.file).read_bytes()
    (copy / mutant.file).write_bytes(change_source(source, mutant))
    return source


def change_source(source: bytes, mutant: Mutant) -> bytes:
    """Return the text of a file with a mutant."""
    return source[: mutant.start] + mutant.text.encode() + source[mutant.end :]


def run_tests(copy: Path, tests: list[str]) -> int:
    """Run tests of a copy and return pytest's exit code."""
    enter_copy(copy)
    return run_pytest(copy, tests) if tests else NO_TESTS


def is_survivor(result: Result) -> bool:
    """Return whether no test noticed a mutant.

    Raises:
        RuntimeError: The tests could not be run, whatever the mutant does.
    """
    if result.exit_code == FAULT or "ERROR: not found: " in result.output:
        raise RuntimeError(result.output)
    return result.exit_code in (0, NO_TESTS)


def describe_end(result: Result) -> str:
    """Return what became of a mutant, with the test that killed it."""
    if is_survivor(result):
        return SURVIVED
    if result.exit_code is None:
        return TIMEOUT
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", result.output, re.MULTILINE)
    return f"killed by {failed[1] if failed else f'exit code {result.exit_code}'}"


def limit_tests(seconds: float, elapsed: float) -> Limits:
    """Return what tests may take that took this CPU time and this time without a mutant.

    A minute more is for imports; how long tests take depends on what else the machine does.
    """
    return Limits(
        cpu_seconds=int(60 + 3 * seconds), wall_seconds=int(10 * (60 + 3 * max(seconds, elapsed)))
    )


def select_tests(
    mutant: Mutant, copy: Path, records: Path, seconds: int, *, with_processes: bool = True
) -> tuple[list[str], Limits]:
    """Return the tests that may notice a mutant, for about `seconds`, and what they may take.

    Those named after its function or module come first, even if they start processes.
    """
    times: dict[str, tuple[bool, bool, float, float]] = {}
    function = mutant.function and f"{mutant.file}:{mutant.function}"
    for file in iter_test_files(copy, mutant.tests):
        record = read_record(records / name_record(copy, file))
        for test in record.get_tests(function):
            starts = test in record.starts_processes
            if with_processes or not starts:
                near = is_near(mutant, test)
                times[test] = (not near, starts, record.seconds[test], record.elapsed[test])
    chosen: list[str] = []
    total, elapsed = 0.0, 0.0
    for test in sorted(times, key=lambda test: times[test]):
        *_, test_seconds, test_elapsed = times[test]
        if chosen and total + test_seconds > seconds:
            break
        chosen.append(test)
        total, elapsed = total + test_seconds, elapsed + test_elapsed
    return chosen, limit_tests(total, elapsed)


def is_near(mutant: Mutant, test: str) -> bool:
    """Return whether a test is named after the function of a mutant or after its module."""
    function = (mutant.function or "").rpartition(".")[2]
    name = test.replace("-", "_")
    return f"test_{mutant.file.stem}.py" in name or (bool(function) and function in name)


if __name__ == "__main__":
    raise SystemExit(main())
