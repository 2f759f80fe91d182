"""The corpus that ships with titanrun."""

from pathlib import Path

import numpy as np

from titanrun.components.data.config import TinyDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.tiny_dataset import build_tiny_dataset
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer


def stream(rows: IndexedDataset) -> list[int]:
    return np.concatenate([rows[index] for index in range(len(rows))]).tolist()


def test_the_shipped_tokens_are_used_with_the_shipped_tokenizer(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    rows = build_tiny_dataset(
        TinyDatasetConfig(), tokenizer=tokenizer, sample_length=257, cache_folder=tmp_path / "cache"
    )
    assert rows[0][0] == tokenizer.bos_id and len(rows) > 100
    assert rows.max_token_id < tokenizer.vocab_size == 2048
    assert not (tmp_path / "cache").exists()


def test_the_shipped_tokens_are_what_the_shipped_tokenizer_makes_of_the_text(
    tmp_path: Path,
) -> None:
    tokenizer, config = (
        build_tiny_tokenizer(TinyTokenizerConfig()),
        TinyDatasetConfig(split="held_out"),
    )
    shipped = build_tiny_dataset(
        config, tokenizer=tokenizer, sample_length=65, cache_folder=tmp_path
    )
    tokenizer.fingerprint = "unknown"
    tokenised = build_tiny_dataset(
        config, tokenizer=tokenizer, sample_length=65, cache_folder=tmp_path
    )
    assert stream(tokenised) == stream(shipped)
    assert list(tmp_path.glob("*.npy"))


def test_another_tokenizer_reads_the_same_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = build_tiny_dataset(
        TinyDatasetConfig(split="held_out"),
        tokenizer=tokenizer,
        sample_length=33,
        cache_folder=tmp_path,
    )
    shipped = build_tiny_tokenizer(TinyTokenizerConfig())
    ours = build_tiny_dataset(
        TinyDatasetConfig(split="held_out"),
        tokenizer=shipped,
        sample_length=33,
        cache_folder=tmp_path,
    )
    assert tokenizer.decode(stream(rows)[:2000]) in shipped.decode(stream(ours))


def test_the_two_parts_are_different_data(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    prints = {
        build_tiny_dataset(
            TinyDatasetConfig(split=split),
            tokenizer=tokenizer,
            sample_length=9,
            cache_folder=tmp_path,
        ).fingerprint
        for split in ("train", "held_out")
    }
    assert len(prints) == 2
