"""The corpus that ships with titanrun."""

from pathlib import Path

import numpy as np

from titanrun.components.data.config import TinyDatasetConfig
from titanrun.components.data.rows import Rows
from titanrun.components.data.tiny import tiny_rows
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import tiny_tokenizer
from titanrun.components.tokenizers.tokenizer import Tokenizer


def stream(rows: Rows) -> list[int]:
    return np.concatenate([rows[index] for index in range(len(rows))]).tolist()


def test_the_shipped_tokens_are_used_with_the_shipped_tokenizer(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(TinyTokenizerConfig())
    rows = tiny_rows(
        TinyDatasetConfig(), tokenizer=tokenizer, row_length=257, cache_folder=tmp_path / "cache"
    )
    assert rows[0][0] == tokenizer.bos_id and len(rows) > 100
    assert rows.max_token_id < tokenizer.vocab_size == 2048
    assert not (tmp_path / "cache").exists()


def test_the_shipped_tokens_are_what_the_shipped_tokenizer_makes_of_the_text(
    tmp_path: Path,
) -> None:
    tokenizer, config = tiny_tokenizer(TinyTokenizerConfig()), TinyDatasetConfig(split="held_out")
    shipped = tiny_rows(config, tokenizer=tokenizer, row_length=65, cache_folder=tmp_path)
    tokenizer.fingerprint = "unknown"
    tokenised = tiny_rows(config, tokenizer=tokenizer, row_length=65, cache_folder=tmp_path)
    assert stream(tokenised) == stream(shipped)
    assert list(tmp_path.glob("*.npy"))


def test_another_tokenizer_reads_the_same_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = tiny_rows(
        TinyDatasetConfig(split="held_out"),
        tokenizer=tokenizer,
        row_length=33,
        cache_folder=tmp_path,
    )
    shipped = tiny_tokenizer(TinyTokenizerConfig())
    ours = tiny_rows(
        TinyDatasetConfig(split="held_out"), tokenizer=shipped, row_length=33, cache_folder=tmp_path
    )
    assert tokenizer.decode(stream(rows)[:2000]) in shipped.decode(stream(ours))


def test_the_two_parts_are_different_data(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(TinyTokenizerConfig())
    prints = {
        tiny_rows(
            TinyDatasetConfig(split=split), tokenizer=tokenizer, row_length=9, cache_folder=tmp_path
        ).fingerprint
        for split in ("train", "held_out")
    }
    assert len(prints) == 2
