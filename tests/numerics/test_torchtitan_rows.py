"""Streams against sequences recorded from torchtitan 0.2.2; see tools/record_torchtitan_rows.py."""

from pathlib import Path

import numpy as np
import pytest

from tests.components.data.lane_streams import Ranks
from tests.numerics.torchtitan_corpus import BATCH, NUM_BATCHES, SEQ_LEN, write_corpus
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer

REFERENCE = Path(__file__).with_name("torchtitan_rows.npz")


@pytest.mark.parametrize("ranks", NUM_BATCHES)
def test_sequences_of_each_rank_are_those_of_torchtitan(ranks: int, tmp_path: Path) -> None:
    """With one lane per rank and without shuffling, in the first pass over the files."""
    write_corpus(tmp_path)
    config = TextDatasetConfig(path=str(tmp_path / "en"), streaming=True, shuffle=False)
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    loaders = Ranks(config, tokenizer, ranks, lanes=ranks, batch=BATCH * ranks, length=SEQ_LEN + 1)
    batches = np.stack(loaders.batches(NUM_BATCHES[ranks])).reshape(-1, ranks, BATCH, SEQ_LEN + 1)
    with np.load(REFERENCE) as recorded:
        for rank in range(ranks):
            assert np.array_equal(batches[:, rank], recorded[f"{rank} of {ranks}"])
