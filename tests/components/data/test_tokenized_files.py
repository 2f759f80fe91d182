"""Files that datatrove 0.10.1 and megatron-core 0.16.1 wrote, and what is made of them.

recorded/ holds 50 documents in two files, tokenized with the tokenizer that ships with titanrun:
`document F I` and I mod 7 times `word `. In Megatron's, every fifth document has two sequences.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from titanrun.components.data.config import TextDatasetConfig, TokensDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.data.token_dataset import build_token_dataset
from titanrun.components.data.token_records import ID_FACTOR, find_document_boundaries
from titanrun.components.data.tokenized_documents import FileTokens, open_tokenized_documents
from titanrun.components.data.tokenized_files import TokenizedFile
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound

RECORDED = Path(__file__).parent / "recorded"
LAYOUTS = {"datatrove": ".ds", "megatron": ".bin"}
TEXTS = [f"document {file} {at} " + "word " * (at % 7) for file in (0, 1) for at in range(25)]
TOKENIZER = Path(__file__).parents[3] / "titanrun" / "assets" / "tiny" / "tokenizer.json"


def expected_ids() -> list[list[int]]:
    """The ids of each document by the tokenizers library."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    return [tokenizer.encode(text).ids for text in TEXTS]


def rows_of(path: Path, layout: str, length: int = 33, **given: Any) -> IndexedDataset:
    config = TokensDatasetConfig(path=str(path), layout=layout, **given)  # type: ignore[arg-type]
    return build_token_dataset(config, sample_length=length)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_are_those_that_were_tokenized(layout: str) -> None:
    documents = open_tokenized_documents(str(RECORDED / layout), layout)
    starts, lengths = find_document_boundaries(documents.tokens)
    found = [
        documents.ids[start : start + length].tolist()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    assert found == expected_ids()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_are_those_of_one_array(tmp_path: Path, layout: str) -> None:
    np.save(tmp_path / "all.npy", np.concatenate(expected_ids()))
    plain = rows_of(tmp_path / "all.npy", "npy")
    windows = rows_of(RECORDED / layout, layout)
    assert len(windows) == len(plain) > 10
    for index in range(len(plain)):
        assert windows[index].tolist() == plain[index].tolist()
    assert windows.max_token_id == plain.max_token_id


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packing", ["documents", "best_fit", None])
@pytest.mark.parametrize("too_long", ["split", "drop"])
def test_packed_sequences_are_those_of_the_texts(
    tmp_path: Path, layout: str, packing: str | None, too_long: str
) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    options: dict[str, Any] = {"packing": packing, "too_long": too_long}
    texts = build_text_dataset(
        TextDatasetConfig(path=str(file), add_bos=False, add_eos=False, **options),
        tokenizer=build_tiny_tokenizer(TinyTokenizerConfig()),
        sample_length=20,
        cache_folder=tmp_path / "cache",
    )
    rows = rows_of(RECORDED / layout, layout, 20, **options)
    assert len(rows) == len(texts) > 10
    for index in range(len(texts)):
        np.testing.assert_array_equal(rows[index], texts[index])


def copied(folder: Path, layout: str) -> Path:
    shutil.copytree(RECORDED / layout, folder / layout)
    return folder / layout


def resized(path: Path, change: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0" * change)


@pytest.mark.parametrize(
    ("layout", "suffix", "change", "message"),
    [
        ("datatrove", ".ds", 2, "it has 346 tokens, 00001_unshuffled.ds.metadata says 345"),
        ("datatrove", ".ds", -1, "not a multiple of 2"),
        ("datatrove", ".ds.index", -8, "its documents end at token 330, and there are 345"),
        ("datatrove", ".ds.metadata", -200, "its first line does not end with |2 or |4"),
        ("megatron", ".bin", 4, "its documents end at token 345, and there are 346"),
        ("megatron", ".idx", -1, "bytes of 602"),
        ("megatron", ".idx", -600, "it is too short"),
    ],
)
def test_files_that_do_not_fit_together_are_named(
    tmp_path: Path, layout: str, suffix: str, change: int, message: str
) -> None:
    folder = copied(tmp_path, layout)
    file = max(path for path in folder.iterdir() if path.name.endswith(suffix))
    resized(file, change)
    with pytest.raises(ProblemsFound) as found:
        rows_of(folder, layout)
    (problem,) = found.value.problems
    assert message in problem.message and file.stem in problem.message
    assert problem.code == "data" and problem.path == ("path",)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"X", "not an index of Megatron"),
        (9, b"\2", "not an index of Megatron"),
        (17, b"\7", "its ids have the type 7"),
        (34 + 4 * 30 + 8, b"\1", "not stored one after another"),
        (34 + 12 * 30, b"\1", "its documents are not those of its sequences"),
    ],
)
def test_a_damaged_index_of_megatron_is_named(
    tmp_path: Path, position: int, value: bytes, message: str
) -> None:
    index = copied(tmp_path, "megatron") / "0.idx"
    content = bytearray(index.read_bytes())
    content[position : position + 1] = value
    index.write_bytes(content)
    with pytest.raises(ProblemsFound, match=message):
        rows_of(index.parent, "megatron")


@pytest.mark.parametrize(("layout", "suffix"), [("datatrove", ".ds.index"), ("megatron", ".idx")])
def test_a_missing_neighbour_is_named(tmp_path: Path, layout: str, suffix: str) -> None:
    folder = copied(tmp_path, layout)
    missing = min(path for path in folder.iterdir() if path.name.endswith(suffix))
    missing.unlink()
    with pytest.raises(ProblemsFound, match=f"{missing.name}' cannot be read: No such file"):
        rows_of(folder, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_changes_during_the_run_is_noticed(tmp_path: Path, layout: str) -> None:
    folder = copied(tmp_path, layout)
    rows = rows_of(folder, layout, packing="best_fit")
    rows.check()
    resized(next(path for path in folder.iterdir() if path.suffix == LAYOUTS[layout]), 4)
    with pytest.raises(ProblemsFound, match="changed while the run reads it"):
        rows.check()


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.data())
def test_any_span_of_several_files_is_that_of_their_sum(
    files: list[list[int]], data: st.DataObject
) -> None:
    ids = FileTokens(
        [
            TokenizedFile(Path("a"), Path("b"), np.array(file, np.uint16), np.zeros(0, np.int64))
            for file in files
        ]
    )
    whole = [number for file in files for number in file]
    start, stop = (data.draw(st.integers(0, len(whole) + 1)) for _ in range(2))
    assert ids[start:stop].tolist() == whole[start:stop]
    assert len(ids) == len(whole)


def test_the_highest_id_is_found_and_the_fingerprint_depends_on_documents(tmp_path: Path) -> None:
    documents = open_tokenized_documents(str(RECORDED / "megatron"), "megatron")
    highest = max(max(ids) for ids in expected_ids())
    assert documents.max_token_id == highest
    assert documents.summary.max_token_id // ID_FACTOR == highest
    one = rows_of(RECORDED / "megatron", "megatron", packing="best_fit")
    assert one.max_token_id == highest
    # a document more, the same tokens
    folder = copied(tmp_path, "megatron")
    content = bytearray((folder / "0.idx").read_bytes())
    at = len(content) - 8
    content[at - 8 : at] = content[at : at + 8]
    (folder / "0.idx").write_bytes(content)
    other = rows_of(folder, "megatron", packing="best_fit")
    assert other.fingerprint != one.fingerprint
