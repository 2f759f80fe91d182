"""Exits 1 unless the last loss of a run is at least a given share below the first.

Usage: python tools/check_loss_falls.py RUN/metrics.jsonl --share 0.4
"""

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """0 when the loss fell far enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metrics", type=Path)
    parser.add_argument(
        "--share",
        type=float,
        default=0.4,
        help="how far it must fall, as a share of the first loss",
    )
    options = parser.parse_args()
    losses = [
        line["loss"]
        for line in map(json.loads, options.metrics.read_text(encoding="utf-8").splitlines())
        if "loss" in line
    ]
    fell = 1 - losses[-1] / losses[0]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}: {fell:.0%} lower")
    return 0 if fell >= options.share else 1


if __name__ == "__main__":
    sys.exit(main())
