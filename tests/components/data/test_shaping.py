"""How documents come into rows: across them, by document, packed, one each."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.spec.flavors import resolve_model_sizes

TEXTS = ["x" * (number * 5 % 23) for number in range(30)]


def rows_of(
    folder: Path,
    tokenizer: Tokenizer,
    row_length: int = 12,
    texts: list[str] = TEXTS,
    **options: Any,
) -> IndexedDataset:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = TextDatasetConfig(path=str(folder / "a.jsonl"), **options)
    return build_text_dataset(
        config, tokenizer=tokenizer, sample_length=row_length, cache_folder=folder / "cache"
    )


def all_rows(rows: IndexedDataset) -> np.ndarray:
    return np.stack([rows[index] for index in range(len(rows))])


def test_by_document_no_label_crosses_an_end_and_positions_start_anew(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    windows, rows = (
        rows_of(tmp_path, tokenizer, packing=packing) for packing in ("windows", "documents")
    )
    found = all_rows(rows)
    assert (
        np.array_equal(found[:, 0], all_rows(windows)) and rows.fingerprint != windows.fingerprint
    )
    # token by token, as it would be said
    place = [
        (number, offset) for number, text in enumerate(TEXTS) for offset in range(len(text) + 2)
    ]
    for index, (_, counts, positions) in enumerate(found):
        first = index * 12
        for column, (document, offset) in enumerate(place[first : first + 12]):
            begins = column if document == place[first][0] else offset
            assert positions[column] == begins
            assert counts[column] == (offset > 0)
    assert rows.max_token_id == ord("x") + 3


def test_packed_documents_are_whole_and_there_once(tmp_path: Path, tokenizer: Tokenizer) -> None:
    apart, packed = (
        rows_of(tmp_path, tokenizer, row_length=25, packing=packing)
        for packing in (None, "best_fit")
    )
    assert len(apart) == 30 and len(packed) < 20
    assert (
        sorted(documents(apart))
        == sorted(documents(packed))
        == sorted(tokenizer.encode(text) for text in TEXTS)
    )


def documents(rows: IndexedDataset) -> list[list[int]]:
    """The ids of each document, found by positions; what fills a row counts nothing and begins with
    id 0."""
    found = []
    for ids, _, positions in all_rows(rows):
        found += [
            part.tolist() for part in np.split(ids, np.flatnonzero(positions == 0)[1:]) if part[0]
        ]
    return found


@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_long_documents_are_split_and_no_token_is_lost(
    packing: str | None, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    rows = rows_of(tmp_path, tokenizer, packing=packing)
    pieces = [
        ids[at : at + 12] for ids in map(tokenizer.encode, TEXTS) for at in range(0, len(ids), 12)
    ]
    assert sorted(documents(rows)) == sorted(pieces)
    firsts = all_rows(rows)[:, 1][all_rows(rows)[:, 2] == 0]
    assert not firsts.any()


@pytest.mark.parametrize(("too_long", "count"), [("drop", 16), ("cut", 30)])
def test_what_is_too_long_is_treated_as_asked(
    too_long: str,
    count: int,
    tmp_path: Path,
    tokenizer: Tokenizer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        rows = rows_of(tmp_path, tokenizer, packing=None, too_long=too_long)
    assert documents(rows) == [
        tokenizer.encode(text)[:12] for text in TEXTS if too_long == "cut" or len(text) <= 10
    ]
    assert (
        len(rows) == count
        and "14 documents of 30 longer than a sequence of 12 tokens" in caplog.text
    )


def test_documents_that_are_too_long_can_be_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ProblemsFound) as caught:
        rows_of(tmp_path, tokenizer, packing=None, too_long="refuse")
    assert caught.value.problems[0].path == ("too_long",)


def test_empty_documents_without_begin_and_end_take_no_place(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    options: dict[str, Any] = {"add_bos": False, "add_eos": False, "packing": "best_fit"}
    rows = rows_of(tmp_path, tokenizer, texts=["", "ab", "", "c"], **options)
    assert sorted(documents(rows)) == [[ord("a") + 3, ord("b") + 3], [ord("c") + 3]]
    with pytest.raises(ProblemsFound, match="every document is empty"):
        rows_of(tmp_path, tokenizer, texts=["", ""], **options)


def test_packed_and_unpacked_rows_have_the_same_loss(tmp_path: Path, tokenizer: Tokenizer) -> None:
    attention = {"mask": "block_causal", "documents": "positions"}
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 259, "attention": attention}
    written = Llama3Config.model_validate(sizes)
    config = Llama3Config.model_validate(resolve_model_sizes(written))
    model = config.load_builder()(config, seq_len=24)
    model.init_weights(torch.Generator().manual_seed(0))
    loss = CrossEntropyConfig().load_builder()(CrossEntropyConfig())
    found = {}
    for packing in (None, "best_fit"):
        rows = rows_of(tmp_path, tokenizer, row_length=25, packing=packing)
        batch = document_ids_from_positions(TokenBatch.from_sequences(all_rows(rows)))
        logits = model(batch.tokens, batch.positions, batch.document_ids)
        found[packing] = (float(loss(logits, batch).detach()), int(batch.num_valid_tokens()))
    assert found[None][1] == found["best_fit"][1] == sum(len(text) + 1 for text in TEXTS)
    assert found["best_fit"][0] == pytest.approx(found[None][0], rel=1e-6)
