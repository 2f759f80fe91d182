"""Benchmarks: what titanrun costs, as ratios to bare PyTorch measured in the same run.

Not a test: machines are noisy.

python tools/bench                    training, start-up, recipes and checkpoints on the CPU
python tools/bench train              the debug model against a bare loop, one thread
python tools/bench ranks              two gloo ranks, FSDP and TP, against a bare script; the start
of two workers against one
python tools/bench families           each family against transformers' or diffusers' class, experts
against dense layers
python tools/bench startup            validate, --help, the first step
python tools/bench recipes            validate of large and many recipes, diff-config
python tools/bench checkpoints        a save against a raw write, the digest, a save in the
background
python tools/bench interruptions      what a save takes from a run, SIGTERM to committed, SIGKILL to
the next step
python tools/bench data               tokenising against the library alone, a batch from the cache
python tools/bench streams            memory over gigabytes of a stream, waits for its batches
python tools/bench experiments        the live display, runs ls of many runs, plot of long ones
python tools/bench ui                 the page's server: start, 10,000 runs, long curves, idle
python tools/bench lsp                titanrun lsp: from an edit to the diagnostics
python tools/bench overlap            RL with generation beside training against one after the other
(--carrier ray: in an actor of Ray)
python tools/bench torchtitan         the debug model against torchtitan's trainer, in pairs
python tools/bench gpu [--toy]        rows against a bare loop on one GPU, each side in a process of
its own; --toy: the whole program at toy size on a CPU
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from browser_page import browser_page_report
from checkpoints import checkpoints_report
from compare import Comparison, compare
from data import data_report
from experiments import experiments_report
from families import families_report
from gpu import gpu_report
from gpu_rows import CALLS, ROWS
from gpu_wheels import wheels_report
from interruptions import interruptions_report
from language_server import language_server_report
from overlap import CARRIERS, overlap_report
from recipes import recipes_report
from startup import DEBUG_RECIPE, startup_report, workers_report
from streams import streams_report
from torchtitan_pairs import torchtitan_report
from two_ranks import two_ranks_report

TINY_MODEL = (
    "model.dim=32",
    "model.n_layers=1",
    "model.n_heads=2",
    "training.local_batch_size=1",
    "training.seq_len=16",
    "training.mixed_precision_param=float32",
)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (
        "train",
        "ranks",
        "families",
        "startup",
        "recipes",
        "checkpoints",
        "interruptions",
        "data",
        "streams",
        "experiments",
        "ui",
        "lsp",
        "overlap",
        "torchtitan",
        "gpu",
    )
    parser.add_argument("what", nargs="?", choices=names)
    parser.add_argument(
        "--toy",
        action="store_true",
        help="gpu: toy size on the CPU, so that the code stays alive without a GPU",
    )
    parser.add_argument("--rows", help="gpu: rows, comma-separated; default: all, by priority")
    parser.add_argument(
        "--call",
        choices=tuple(CALLS),
        help="gpu: rows of the first, second or third short loan of a machine; runs: doctor, the "
        "tests of GPUs, a run and its resume come first",
    )
    parser.add_argument(
        "--check-wheels",
        type=Path,
        metavar="FOLDER",
        help="gpu: only look whether these wheels are enough for a machine without a network",
    )
    parser.add_argument("--budget", type=float, default=480, help="gpu: seconds for all rows")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench-gpu"), help="gpu: folder of the results"
    )
    parser.add_argument("--batches", type=int, default=5000, help="streams: of 64 x 1024 tokens")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    parser.add_argument(
        "--runs", type=int, default=7, help="startup, recipes, checkpoints: runs of each"
    )
    parser.add_argument(
        "--carrier",
        choices=tuple(CARRIERS),
        default="local",
        help="overlap: what runs the generator",
    )
    return parser.parse_args()


def main() -> None:
    """Run one benchmark, or those for the CPU."""
    options = parse_options()
    if options.what in (None, "train"):
        train_report(options.blocks, options.steps)
    if options.what in (None, "ranks"):
        two_ranks_report(DEBUG_RECIPE, options.blocks, options.steps)
        workers_report(options.runs)
    if options.what in (None, "families"):
        families_report(options.blocks, min(options.steps, 2))
    if options.what in (None, "startup"):
        startup_report(options.runs)
    if options.what in (None, "data"):
        data_report(options.runs)
    if options.what in (None, "recipes"):
        recipes_report(options.runs)
    if options.what in (None, "checkpoints"):
        checkpoints_report(options.runs)
    if options.what in (None, "interruptions"):
        interruptions_report(min(options.runs, 3))
    if options.what in (None, "experiments"):
        experiments_report(options.runs)
    run_reports_by_request(options)


def run_reports_by_request(options: argparse.Namespace) -> None:
    """Run what takes too long, or needs too much, to be part of all benchmarks."""
    if options.what == "streams":
        streams_report(options.batches)
    if options.what == "ui":
        browser_page_report(min(options.runs, 3))
    if options.what == "lsp":
        language_server_report()
    if options.what == "overlap":
        overlap_report(min(options.runs, 3), options.carrier)
    if options.what == "torchtitan" and not torchtitan_report(options.blocks, options.steps):
        sys.exit(1)
    if options.what == "gpu":
        if options.check_wheels is not None:
            sys.exit(not wheels_report(options.check_wheels))
        named = options.rows.split(",") if options.rows else ROWS
        passed = gpu_report(
            list(CALLS[options.call] if options.call else named),
            budget=options.budget,
            folder=options.out,
            toy=options.toy,
            with_commands=options.call == "runs",
        )
        sys.exit(not passed)


def train_report(blocks: int, steps: int) -> None:
    """Print the debug model against the bare loop, and the host's share.

    The share is that of a model too small to matter.
    """
    report(
        "debug model, one thread",
        compare(DEBUG_RECIPE, ["device=cpu"], blocks=blocks, steps_per_block=steps, threads=1),
        "target 0.98",
    )
    tiny = compare(
        DEBUG_RECIPE, ["device=cpu", *TINY_MODEL], blocks=2 * blocks, steps_per_block=200, threads=1
    )
    print(
        f"host overhead a step: {tiny.overhead_seconds * 1e6:.0f} us CPU (target: at most 50 us "
        f"or 0.5% of a step)"
    )


def report(name: str, comparison: Comparison, note: str) -> None:
    """Median ratio and spread of the blocks."""
    ratios = sorted(comparison.ratios)
    tokens = comparison.tokens_per_step / statistics.median(comparison.titanrun)
    median = statistics.median(ratios)
    print(
        f"{name}: {tokens:,.0f} tokens/s; {median:.3f} of the bare loop (blocks {ratios[0]:.3f} "
        f"to {ratios[-1]:.3f}; {note})"
    )


if __name__ == "__main__":
    main()
