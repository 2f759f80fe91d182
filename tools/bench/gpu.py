"""titanrun against a bare loop on one GPU: rows by priority, each side in a process of its own."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy

from gpu_ceiling_sum import compute_ceiling
from gpu_commands import run_commands, run_limited
from gpu_earlier import EarlierSides, find_ceilings_row, read_earlier, read_machine
from gpu_files import read_json, write_json
from gpu_rows import ROWS, Row, toy_row
from gpu_verdicts import (
    NOT_RUN,
    TARGET,
    compare_sides,
    compare_with_torchtitan,
    fails,
    format_line,
)

ROW_TIMEOUT_SECONDS = 110
# a side may take as many times what it is estimated to take
SLOWER = 1.5
DATA, NUM_ROWS = "rows.npy", 512
# of earlier calls, a folder each
RESULTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
# of the tokenizer `characters`
END_OF_DOCUMENT = 0
# what a side is until it ended: what table.json says if the call ends before
CUT_OFF, ABSENT = {"state": "cut off"}, {"state": "absent"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a call was asked to do.

    Args:
        folder: where results go.
        budget: seconds for everything.
        toy: whether rows have toy size, on a CPU.
        with_commands: whether commands that must succeed come first.
    """

    folder: Path
    budget: float
    toy: bool
    with_commands: bool = False


def run_side(name: str, side: str, folder: Path, seconds: float, toy: bool) -> dict[str, Any]:
    """Run one side of a row in a process of its own, and return what it wrote."""
    out, log = (folder / f"{name}-{side}{suffix}" for suffix in (".json", ".log"))
    out.unlink(missing_ok=True)
    program = Path(__file__).with_name("gpu_row.py")
    command = [sys.executable, str(program), name, side, str(folder / DATA), str(out)]
    code = run_limited([*command, *(["--toy"] if toy else [])], log, seconds)
    found: dict[str, Any] = read_json(out) or {"phase": "start"}
    if code is None and found["phase"] in ("host", "profile"):
        # speed was measured
        found |= {"state": "done", "profile": None, "profile_missing": "its time was over"}
        found.setdefault("host_share", None)
    elif code is None:
        found["state"] = f"timeout in {found['phase']}"
    elif code:
        found["state"] = f"failed in {found['phase']}, see {log}"
    return found


def read_memory_gib() -> float | None:
    """Return the memory of the GPU, None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    # in MiB, a line for each GPU
    return float(done.stdout.splitlines()[0]) / 1024


@dataclass(kw_only=True)
class Call:
    """The rows of a call so far. Its files are written after each side: it may be cut off.

    Args:
        options: what was asked.
        run_side: what runs a side of a row.
        now: the clock, in seconds.
        read_memory: returns the memory of the GPU in GiB, None if it is unknown.
    """

    options: Options
    run_side: Callable[[str, str, Path, float, bool], dict[str, Any]] = run_side
    now: Callable[[], float] = time.monotonic
    read_memory: Callable[[], float | None] = read_memory_gib
    table: list[dict[str, Any]] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, str | None] = field(default_factory=dict)
    earlier: EarlierSides = field(default_factory=EarlierSides)

    def run(self, rows: list[str]) -> None:
        """Run commands and rows, and print a line for each."""
        folder = self.options.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.end = self.now() + self.options.budget
        self.clocks["before"] = read_clocks()
        machine = read_machine(self.clocks["before"], toy=self.options.toy)
        self.earlier = read_earlier([*RESULTS.glob("*/"), folder], machine)
        self.write()
        if self.options.with_commands:
            for name, said in run_commands(folder, end=self.end, toy=self.options.toy):
                self.commands[name] = said
                self.write()
        try:
            for name in sorted(self.add_ceilings_rows(rows), key=list(ROWS).index):
                if name in rows or self.may_use_ceilings(name, rows):
                    self.run_row(name)
                    self.clocks["after"] = read_clocks()
                    self.write()
                    print(format_line(self.table[-1]), flush=True)
        finally:
            # results travel, and are kept: the data are the same each time
            (folder / DATA).unlink(missing_ok=True)

    def add_ceilings_rows(self, rows: list[str]) -> set[str]:
        """Return rows with those of the ceilings that they need and no earlier call measured."""
        missing = {find_ceilings_row(name) for name in rows if not self.earlier.find_ceilings(name)}
        return {*rows, *(name for name in missing if name is not None)}

    def may_use_ceilings(self, ceilings: str, rows: list[str]) -> bool:
        """Return whether a row with the shapes of ceilings was measured or is still to come."""
        failed = {found["row"] for found in self.table if "ms" not in found["titanrun"]}
        return any(find_ceilings_row(name) == ceilings for name in rows if name not in failed)

    def run_row(self, name: str) -> None:
        """Run the sides of a row, titanrun first, and compare them with it."""
        options = self.options
        row = toy_row(ROWS[name]) if options.toy else ROWS[name]
        sides = list_sides(row)
        found: dict[str, Any] = {"bare": ABSENT, "torchtitan": ABSENT}
        self.table.append({"row": name, "what": row.what} | found | dict.fromkeys(sides, CUT_OFF))
        self.compare()
        write_rows(options.folder / DATA, row)
        # torchtitan decides nothing: a row is worth it without
        needed = sum(
            self.earlier.estimate_seconds(name, side, row) for side in sides if side != "torchtitan"
        )
        ours = self.run_side_in_time("titanrun", row, needed)
        for side in sides[1:]:
            if ours["state"].startswith(NOT_RUN):
                self.add_side(side, ours)
            else:
                # the others do the same work as the first
                self.run_side_in_time(side, row, ours.get("seconds", row.seconds))

    def run_side_in_time(self, side: str, row: Row, needed: float) -> dict[str, Any]:
        """Run a side of the last row if what is needed fits into what is left."""
        options, left = self.options, self.end - self.now()
        memory = None if options.toy else self.read_memory()
        if memory is not None and memory < row.memory_gib:
            said = f"{NOT_RUN}: needs {row.memory_gib:.0f} GiB, the GPU has {memory:.0f}"
            return self.add_side(side, {"state": said})
        if left < needed:
            said = f"{NOT_RUN}: {left:.0f} s left, needs about {needed:.0f} s"
            return self.add_side(side, {"state": said})
        limit = min(left, max(ROW_TIMEOUT_SECONDS, SLOWER * row.seconds))
        name = self.table[-1]["row"]
        return self.add_side(side, self.run_side(name, side, options.folder, limit, options.toy))

    def add_side(self, side: str, found: dict[str, Any]) -> dict[str, Any]:
        """Add what became of a side to the last row."""
        self.table[-1][side] = found
        self.compare()
        return found

    def compare(self) -> None:
        """Say what is known of the last row, here and on the disk."""
        found = self.table[-1]
        found |= compare_sides(found["titanrun"], found["bare"])
        found |= compare_with_torchtitan(found["titanrun"], found["torchtitan"])
        add_ceilings(self.table, self.earlier, toy=self.options.toy)
        self.write()

    def write(self) -> None:
        """Write what is known."""
        for name in ("table", "commands", "clocks"):
            write_json(self.options.folder / f"{name}.json", getattr(self, name))

    def list_faults(self) -> list[str]:
        """Return a line for each command and row that fails the call."""
        commands = (
            f"{name}: {said}" for name, said in self.commands.items() if said.startswith("FAILED")
        )
        rows = (
            f"{found['row']}: {found['verdict']}"
            for found in self.table
            if fails(found["verdict"], toy=self.options.toy)
        )
        return [*commands, *rows]


def gpu_report(call: Call, rows: list[str]) -> bool:
    """Run the rows that fit into the budget, by value; print a line a row at once and a table last.

    Return whether all rows were measured, both sides computed the same and, but for toy sizes,
    each row reached the target. Commands come first and must succeed too. What failed is last.
    """
    call.run(rows)
    print("\n".join(["", *map(format_line, call.table)]))
    print("\n".join(f"{when}: {found}" for when, found in call.clocks.items()))
    print(
        f"target: {TARGET} of the bare loop; void rows and timeouts count as failed"
        + (", speed at toy size does not" if call.options.toy else ", so do rows below the target")
    )
    faults = call.list_faults()
    if faults:
        print("\n".join(["", f"{len(faults)} OF THESE DO NOT COUNT OR FAILED:", *faults]))
    return not faults


def add_ceilings(table: list[dict[str, Any]], earlier: EarlierSides, *, toy: bool) -> None:
    """Add to rows their share of the ceilings at their shapes, of this call or of an earlier."""
    sides = [found["titanrun"] for found in table if found["titanrun"]["state"] == "done"]
    known = EarlierSides((*earlier.sides, *sides))
    for found in table:
        row, ceilings = ROWS[found["row"]], known.find_ceilings(found["row"])
        if ceilings is not None and "ms" in found["titanrun"]:
            ceiling = compute_ceiling(toy_row(row) if toy else row, ceilings["parts"])
            if ceiling is not None:
                found["ceiling_ms"] = ceiling
                found["ceiling_share"] = ceiling / found["titanrun"]["ms"]


def list_sides(row: Row) -> list[str]:
    """Return the sides of a row: titanrun, and others that have what the row asks for."""
    if row.bare is None:
        return ["titanrun"]
    lacks_settings = row.bare.get("bf16_states") or row.bare.get("bf16_storage")
    if find_spec("torchtitan") is None or lacks_settings:
        return ["titanrun", "bare"]
    return ["titanrun", "bare", "torchtitan"]


def write_rows(path: Path, row: Row) -> None:
    """Write random ids over the whole vocabulary, the same each time, and ends of documents."""
    generator, shape = numpy.random.default_rng(0), (NUM_ROWS, row.seq_len + 1)
    drawn = generator.integers(0, row.sizes["vocab_size"], shape)
    if row.document_tokens is not None:
        drawn[generator.random(shape) < 1 / row.document_tokens] = END_OF_DOCUMENT
    numpy.save(path, drawn.astype("uint32"))


def read_clocks() -> str | None:
    """Return clocks and power of the GPU, None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
