"""Long documents in parts."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrun.components.data import encode_documents
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.text_chunks import iter_chunks
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer


class RunTokenizer:
    """A token for each run of letters and each run of spaces and line feeds, so that only some line
    ends can be cut at."""

    vocab_size, bos_id, eos_id, fingerprint = 100_000, None, None, "runs"

    def encode(self, text: str, *, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        return [sum(map(ord, run)) for run in re.findall(r"\s+|\S+", text)]

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = True, add_eos: bool = True
    ) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError


@given(
    lines=st.lists(st.text("ab \n", max_size=6), min_size=1, max_size=40), length=st.integers(1, 30)
)
def test_parts_have_the_tokens_and_the_text_of_the_whole(lines: list[str], length: int) -> None:
    text, tokenizer = "".join(f"{line}\n" for line in lines), RunTokenizer()
    for document in ([text], text.splitlines(keepends=True), [text.replace("\n", " ")]):
        found = list(iter_chunks(document, tokenizer, length=length))
        whole = "".join(document)
        assert "".join(part.text for part in found) == whole
        assert [
            token for part in found for token in tokenizer.encode(part.text)
        ] == tokenizer.encode(whole)
        assert [part.is_first for part in found] == [True] + [False] * (len(found) - 1)
        assert [part.is_last for part in found] == [False] * (len(found) - 1) + [True]


def test_parts_are_about_as_long_as_asked() -> None:
    # 96: as soon as it is reached, and not a character earlier
    for length in (100, 96):
        found = list(iter_chunks(["word\n"] * 1000, RunTokenizer(), length=length))
        assert {len(part.text) for part in found} == {100}


def test_a_long_line_is_split_between_words_with_the_tokens_of_the_library() -> None:
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    line = " ".join(f"word{'s' * (number % 7)}{' ' * (number % 5)}" for number in range(3000))
    found = [part.text for part in iter_chunks([line], tokenizer, length=100)]
    assert len(found) > 50 and max(map(len, found)) < 1000
    encoded = tokenizer.encode_batch([*found, line], add_bos=False, add_eos=False)
    assert [token for part in encoded[:-1] for token in part] == encoded[-1]


def test_text_without_a_place_to_cut_stays_whole() -> None:
    assert len(list(iter_chunks(["\n"] * 50, RunTokenizer(), length=10))) == 1
    assert len(list(iter_chunks(["x" * 500], RunTokenizer(), length=10))) == 1


def test_a_long_document_has_one_bos_and_one_eos(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iter_chunks, "__kwdefaults__", {"length": 100})
    monkeypatch.setattr(encode_documents, "ENCODE_CHARACTERS", 150)
    text = "".join(f"line {number}\n" for number in range(500))
    (tmp_path / "long.txt").write_text(text)
    rows = build_text_dataset(
        TextDatasetConfig(path=str(tmp_path / "long.txt")),
        tokenizer=tokenizer,
        sample_length=2,
        cache_folder=tmp_path / "cache",
    )
    ids = [token for index in range(len(rows)) for token in rows[index].tolist()]
    assert ids == tokenizer.encode(text)[: len(ids)] and len(ids) >= len(text)
