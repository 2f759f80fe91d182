"""Measure the mutation score: change one expression at a time, and count what tests notice.

    mutants.py                          20 random mutants of each group in tests/mutants.yaml
    mutants.py --count 40 --seed 7      others, and more
    mutants.py titanrun/config          only modules below this path
    mutants.py titanrun/config/x.py:31  all mutants of this line

A mutant lives in a copy of the repository, so that other work in the tree goes on. It meets the
tests of its group that call its function, or that start processes, those with its name and the
fastest first; outside of functions all tests of its group. Those of functions meet tests that are
imported already, and what survives that those of a process of its own. It is killed if one of them
fails, or does not end. Each is printed with file, line, change and the test that failed. Equivalent
mutants, listed in tests/mutants.yaml with the reason, are left out. Exit with 1 if fewer than 90%
are killed.
"""

import argparse
import ast
import compileall
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from ruamel.yaml import YAML

from called_functions import CallRecorder, iter_test_files, name_record, read_record
from forked_pytest import FAULT, PRELOADED, Job, Limits, Result, preload, run_in_forks, run_pytest
from mutant_session import Trial, is_noticed, run_trials, write_line

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "mutants.yaml"
WANTED_SCORE = 0.9
TESTS_FAILED, NO_TESTS = 1, 5
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


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
        rest = run_in_sessions(chosen, copies, records, options.seconds)
        survivors = run_mutants(rest, copies, records, options.seconds)
    score = 1 - len(survivors) / max(len(chosen), 1)
    print(f"{score:.1%} of {len(chosen)} mutants killed")
    return int(score < WANTED_SCORE)


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


def iter_nodes(
    node: ast.AST, prefix: str, function: str | None
) -> Iterator[tuple[ast.AST, str | None]]:
    """Yield a node and those in it with the function that they run in.

    Decorators and defaults run where the function is defined.
    """
    yield node, function
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            name = prefix + node.name
            inside: list[ast.AST] = list(node.body)
            for child in ast.iter_child_nodes(node):
                if child not in inside:
                    yield from iter_nodes(child, prefix, function)
            for child in inside:
                yield from iter_nodes(child, f"{name}.<locals>.", name)
        case ast.ClassDef():
            for child in ast.iter_child_nodes(node):
                yield from iter_nodes(child, f"{prefix}{node.name}.", function)
        case ast.Call(func=ast.Name(id="dataclass")) | ast.keyword(arg="strict" | "examples"):
            # frozen, slots and strict forbid what nothing here does
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from iter_nodes(child, prefix, function)


def iter_changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the expressions and statements to replace at a node, with their replacement."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            changed = ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
            yield node, f"({ast.unparse(changed)})"
        case ast.BinOp(op=op) if type(op) in OPERATORS and not is_text(node):
            yield node, f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(op)](), node.right))})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"bool({ast.unparse(operand)})"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool()):
            yield node, repr(not node.value)
        case ast.Constant(value=int() | float()):
            yield node, repr(node.value + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"


def is_text(node: ast.BinOp) -> bool:
    """Return whether an operation joins texts or the parts of a path."""
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        or (isinstance(node.op, ast.Div) and isinstance(side, ast.Name) and side.id.isupper())
        for side in (node.left, node.right)
    )


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
) -> list[Mutant]:
    """Return the mutants that are left when tests, collected once, have met those of functions.

    Tests that start processes are left to `run_mutants`, as is what runs on import.
    """
    killed = copies[0].parent / "killed"
    killed.mkdir()
    trials = {
        str(number): Trial(str(number), mutant.file, mutant.function, source, tests)
        for number, mutant in enumerate(mutants)
        if mutant.function is not None
        and (source := change_source((copies[0] / mutant.file).read_bytes(), mutant))
        and (tests := select_tests(mutant, copies[0], records, seconds, with_processes=False))
    }

    def run_share(copy: Path, names: list[str], console: int) -> int:
        enter_copy(copy)

        def report(result: Result) -> None:
            if is_noticed(result):
                write_line(console, f"{describe_end(result)}: {mutants[int(result.name)]}")
                (killed / result.name).touch()

        own = [replace(trials[name], file=copy / trials[name].file) for name in names]
        return run_trials(copy, own, limit_tests(seconds), report)

    shares = {copy: list(trials)[number :: len(copies)] for number, copy in enumerate(copies)}
    console = os.dup(1)
    jobs = [
        Job(str(copy), lambda copy=copy, names=names: run_share(copy, names, console))
        for copy, names in shares.items()
    ]
    for result in run_in_forks(jobs, processes=len(copies)):
        if result.exit_code not in (0, NO_TESTS):
            raise RuntimeError(result.output)
    return [one for number, one in enumerate(mutants) if not (killed / str(number)).exists()]


def run_mutants(
    mutants: list[Mutant], copies: list[Path], records: Path, seconds: int
) -> list[Mutant]:
    """Return the mutants that no test notices in a process that imports them; print each."""
    free, used = list(copies), dict[str, tuple[Mutant, Path, bytes]]()
    survivors = []

    def iter_jobs() -> Iterator[Job]:
        for number, mutant in enumerate(mutants):
            copy, tests = free.pop(), select_tests(mutant, copies[0], records, seconds)
            used[str(number)] = (mutant, copy, write_change(copy, mutant))
            yield Job(str(number), lambda copy=copy, tests=tests: run_tests(copy, tests))

    for result in run_in_forks(iter_jobs(), processes=len(copies), limits=limit_tests(seconds)):
        mutant, copy, source = used.pop(result.name)
        (copy / mutant.file).write_bytes(source)
        free.append(copy)
        if is_survivor(result):
            survivors.append(mutant)
        print(f"{describe_end(result)}: {mutant}", flush=True)
    return survivors


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
        return "survived"
    if result.exit_code is None:
        return "killed by its time limit"
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", result.output, re.MULTILINE)
    return f"killed by {failed[1] if failed else f'exit code {result.exit_code}'}"


def limit_tests(seconds: int) -> Limits:
    """Return what tests may take that have taken about `seconds` without a mutant."""
    return Limits(cpu_seconds=20 + 2 * seconds, wall_seconds=20 * (20 + 2 * seconds))


def select_tests(
    mutant: Mutant, copy: Path, records: Path, seconds: int, *, with_processes: bool = True
) -> list[str]:
    """Return the tests that may notice a mutant, for about `seconds`.

    Those named after its function or module come first, then the fastest.
    """
    times: dict[str, tuple[bool, bool, float]] = {}
    function = mutant.function and f"{mutant.file}:{mutant.function}"
    for file in iter_test_files(copy, mutant.tests):
        record = read_record(records / name_record(copy, file))
        for test in record.get_tests(function):
            seconds_taken = record.seconds[test]
            times[test] = (
                test in record.starts_processes,
                not is_near(mutant, test),
                seconds_taken,
            )
    chosen, total = [], 0.0
    for test in sorted(times, key=lambda test: times[test]):
        if times[test][0] and not with_processes:
            continue
        total += times[test][-1]
        if chosen and total > seconds:
            break
        chosen.append(test)
    return chosen


def is_near(mutant: Mutant, test: str) -> bool:
    """Return whether a test is named after the function of a mutant or after its module."""
    function = (mutant.function or "").rpartition(".")[2]
    name = test.replace("-", "_")
    return f"test_{mutant.file.stem}.py" in name or (bool(function) and function in name)


if __name__ == "__main__":
    raise SystemExit(main())
