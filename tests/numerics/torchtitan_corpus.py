"""Documents laid out as C4 is on the Hub, for torchtitan's loader and for ours."""

import gzip
import json
from pathlib import Path

import numpy as np

CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/c4-train.*.json.gz}
---
"""
WORDS = [
    "the",
    "a",
    "one",
    "two",
    "sea",
    "house",
    "light",
    "reads",
    "writes",
    "slowly",
    "again",
    "never",
    "blue",
    "of",
    "and",
    "to",
]
COUNTS = (30, 25, 28, 33, 40, 22, 31, 29)
BATCH, SEQ_LEN = 2, 32
# by the number of ranks: within the first pass over the files, after which torchtitan shuffles them
NUM_BATCHES = {1: 90, 2: 44, 4: 20}


def write_corpus(folder: Path) -> None:
    """Write the files: a card, and compressed json lines."""
    (folder / "en").mkdir()
    (folder / "README.md").write_text(CARD)
    random = np.random.PCG64(7)
    for part, count in enumerate(COUNTS):
        lines = []
        for number in range(count):
            draws = random.random_raw(3 + int(random.random_raw(1)[0] % 20))
            text = " ".join(WORDS[int(draw % len(WORDS))] for draw in draws)
            lines.append(json.dumps({"text": f"{part}.{number} {text}", "url": "x"}) + "\n")
        name = f"c4-train.{part:05}-of-{len(COUNTS):05}.json.gz"
        (folder / "en" / name).write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
