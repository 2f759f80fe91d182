"""Benchmarks that need titanrun with everything its tests need, by name."""

import argparse
import statistics
import sys

from browser_page import browser_page_report
from checkpoints import checkpoints_report
from compare import Comparison, compare
from data import data_report
from experiments import experiments_report
from families import families_report
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


def parse_options(description: str) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
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
        # of gpu_command.py
        "gpu",
    )
    parser.add_argument("what", nargs="?", choices=names)
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


def main(description: str) -> None:
    """Run one benchmark, or those that take a few minutes."""
    options = parse_options(description)
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
