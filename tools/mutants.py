"""Measure the mutation score: change one expression at a time, and count what tests notice.

    mutants.py                          100 random mutants of all modules in tests/mutants.yaml
    mutants.py --count 400 --seed 7     others, and more
    mutants.py titanrun/config          only modules below this path

A mutant lives in a copy of the repository, so that other work in the tree goes on. It is killed if
one of its tests fails, or does not end. Survivors are printed with file, line and change; a line
that ends with `# mutants: equivalent` is left alone. Exit with 1 if fewer than 90% are killed.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from random import Random

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "mutants.yaml"
WANTED_SCORE = 0.9
NUM_PROCESSES = 2
TIMEOUT_SECONDS = 240
KEPT_MARK = "# mutants: equivalent"
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
    """One change of one file: the characters from `start` to `end` become `text`."""

    file: Path
    line: int
    start: int
    end: int
    before: str
    text: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        """Return the place and the change on one line."""
        return f"{self.file}:{self.line}: {self.before!r} -> {self.text!r}"


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="modules or folders below titanrun/")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in iter_mutants()
        if not options.paths or str(mutant.file).startswith(tuple(options.paths))
    ]
    chosen = Random(options.seed).sample(mutants, min(options.count, len(mutants)))
    survivors = run_mutants(chosen)
    score = 1 - len(survivors) / max(len(chosen), 1)
    print(f"{score:.1%} of {len(chosen)} mutants killed, of {len(mutants)} possible ones")
    return int(score < WANTED_SCORE)


def iter_mutants() -> Iterator[Mutant]:
    """Yield every mutant of the modules in tests/mutants.yaml."""
    seen: set[Path] = set()
    for pattern, tests in YAML(typ="safe").load(TABLE.read_text(encoding="utf-8")).items():
        for path in sorted(ROOT.glob(pattern)):
            file = path.relative_to(ROOT)
            if path.suffix == ".py" and file not in seen:
                seen.add(file)
                yield from find_mutants(file, tuple(tests))


def find_mutants(file: Path, tests: tuple[str, ...]) -> list[Mutant]:
    """Return the mutants of a file."""
    source = (ROOT / file).read_text(encoding="utf-8")
    lines = source.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line.encode()) + 1)
    encoded, found = source.encode(), []
    for node in ast.walk(ast.parse(source)):
        for target, text in iter_changes(node):
            assert target.end_lineno is not None and target.end_col_offset is not None
            start = offsets[target.lineno - 1] + target.col_offset
            end = offsets[target.end_lineno - 1] + target.end_col_offset
            if not lines[target.end_lineno - 1].endswith(KEPT_MARK):
                before = encoded[start:end].decode()
                found.append(Mutant(file, target.lineno, start, end, before, text, tests))
    return found


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


def run_mutants(mutants: list[Mutant]) -> list[Mutant]:
    """Return the mutants that no test notices; print each when it is found."""
    copies: Queue[Path] = Queue()
    survivors = []
    with tempfile.TemporaryDirectory(prefix="titanrun-mutants-") as folder:
        for number in range(NUM_PROCESSES):
            copy = Path(folder) / str(number)
            ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "runs")
            shutil.copytree(ROOT, copy, ignore=ignored)
            copies.put(copy)

        def is_killed(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return kill(mutant, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(NUM_PROCESSES) as pool:
            for mutant, killed in zip(mutants, pool.map(is_killed, mutants), strict=True):
                if not killed:
                    survivors.append(mutant)
                    print(f"survived: {mutant}", flush=True)
    return survivors


def kill(mutant: Mutant, copy: Path) -> bool:
    """Return whether a test fails with the mutant in this copy of the repository."""
    path = copy / mutant.file
    source = path.read_bytes()
    path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
    relative = mutant.file.relative_to("titanrun")
    mirror = Path("tests") / relative.with_name(f"test_{relative.name}")
    try:
        if (copy / mirror).exists() and not passes(copy, [str(mirror)]):
            return True
        return not passes(copy, mutant.tests)
    finally:
        path.write_bytes(source)


def passes(copy: Path, tests: Sequence[str]) -> bool:
    """Return whether tests of a copy pass; False if they do not end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
