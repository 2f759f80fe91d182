"""titanrun against a bare loop on one GPU: rows by their value, each side in a process of its own.

This process imports neither torch nor titanrun: it starts at once, and on a bare machine.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu import Call, Options, gpu_report
from gpu_rows import CALLS, ROWS

DESCRIPTION = "Rows against a bare loop on one GPU, each side in a process of its own."


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python tools/bench gpu", description=DESCRIPTION)
    parser.add_argument("what", choices=("gpu",))
    parser.add_argument(
        "--toy",
        action="store_true",
        help="toy size on the CPU, so that the code stays alive without a GPU",
    )
    parser.add_argument("--rows", help="rows, comma-separated, besides those of --call")
    parser.add_argument(
        "--call",
        choices=tuple(CALLS),
        help="rows of the first, second or third short loan of a machine; runs: doctor, the tests "
        "of GPUs, a run and its resume come first",
    )
    parser.add_argument(
        "--check-wheels",
        type=Path,
        metavar="FOLDER",
        help="only look whether these wheels are enough for a machine without a network",
    )
    parser.add_argument("--budget", type=float, default=480, help="seconds for all rows")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench-gpu"), help="folder of the results"
    )
    return parser.parse_args(arguments)


def list_rows(options: argparse.Namespace) -> set[str]:
    """Return the rows that are asked for: all if none is."""
    named = options.rows.split(",") if options.rows else []
    called = CALLS[options.call] if options.call else ()
    return {*named, *called} or {*ROWS}


def main() -> None:
    """Run rows, all without options, or look at wheels."""
    options = parse_options(sys.argv[1:])
    if options.check_wheels is not None:
        # packaging may be missing where rows run
        from gpu_wheels import wheels_report

        sys.exit(not wheels_report(options.check_wheels))
    rows = list_rows(options)
    if unknown := rows - {*ROWS}:
        sys.exit(f"no row {', '.join(sorted(unknown))}: the rows are {', '.join(ROWS)}")
    # so that a call that is cut off leaves no side running
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    asked = Options(
        folder=options.out,
        budget=options.budget,
        toy=options.toy,
        with_commands=options.call == "runs",
    )
    sys.exit(not gpu_report(Call(options=asked), list(rows)))
