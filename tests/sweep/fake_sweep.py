"""`titanrun sweep FILE` with a fake trainer: the whole search but the training."""

import sys
from argparse import Namespace
from pathlib import Path

from titanrun.cli.sweep_search import train_search
from titanrun.sweep import sweep_runner
from titanrun.sweep.search_points import build_planner
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.sweep_runner import LocalStarter

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_train.py")))


def main(file: str, *overrides: str) -> int:
    """Train the remaining trials of a search. Return the exit code."""
    # a run that takes a tenth of a second need not wait as long again for its successor
    sweep_runner.POLL_SECONDS = 0.03
    planner = build_planner(read_sweep(Path(file)), overrides, {})
    planner.sweep.folder.mkdir(parents=True, exist_ok=True)
    starter = LocalStarter(planner.sweep.recipe, planner.sweep.config.slots, FAKE)
    return train_search(planner, [], Namespace(quiet=False), starter=starter)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
