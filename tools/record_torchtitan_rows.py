r"""Record the sequences that torchtitan 0.2.2 reads from a streamed dataset, as a test's reference.

torchtitan goes into a folder of its own:

    pip install --no-deps --target FOLDER torchtitan==0.2.2 torchdata==0.11.0 triton tyro \
        docstring-parser typeguard shtab
    PYTHONPATH=FOLDER:. python tools/record_torchtitan_rows.py

It writes tests/numerics/torchtitan_rows.npz: for 1, 2 and 4 ranks the inputs of each rank's first
batches, and the last label of each sequence.
"""

import tempfile
from pathlib import Path

import numpy as np
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.config import JobConfig
from torchtitan.hf_datasets.text_datasets import build_text_dataloader

from tests.numerics.torchtitan_corpus import BATCH, NUM_BATCHES, SEQ_LEN, write_corpus
from titanrun.components.tokenizers.config import TinyTokenizerConfig

REFERENCE = Path(__file__).parents[1] / "tests" / "numerics" / "torchtitan_rows.npz"


def record_rank(folder: Path, rank: int, num_ranks: int) -> np.ndarray:
    """Return the sequences of a rank, [batches, sequences, seq_len + 1]."""
    config = JobConfig()
    config.training.dataset, config.training.dataset_path = "c4", str(folder)
    config.training.local_batch_size, config.training.seq_len = BATCH, SEQ_LEN
    tokenizer = HuggingFaceTokenizer(str(TinyTokenizerConfig().folder))
    loader = iter(build_text_dataloader(num_ranks, rank, tokenizer, config))
    rows = []
    for _ in range(NUM_BATCHES[num_ranks]):
        inputs, labels = next(loader)
        rows.append(np.concatenate([inputs["input"].numpy(), labels.numpy()[:, -1:]], axis=1))
    return np.stack(rows).astype(np.uint16)


def main() -> None:
    """Write the reference."""
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        found = {
            f"{rank} of {count}": record_rank(Path(folder), rank, count)
            for count in NUM_BATCHES
            for rank in range(count)
        }
    np.savez_compressed(REFERENCE, **found)


if __name__ == "__main__":
    main()
