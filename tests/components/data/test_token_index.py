"""Text tokenised once."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from titanrun.components.data import document_index as index_module
from titanrun.components.data import encode_documents
from titanrun.components.data.document_index import open_column_index
from titanrun.components.data.spec import data_files
from titanrun.components.data.spec.data_files import describe_file, resolve_data_files
from titanrun.components.data.token_cache import FORMAT
from titanrun.components.data.token_file import open_token_memmap
from titanrun.components.data.token_index import TokenIndex
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two documents whose files are old enough for their times to vouch for them."""
    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.txt"):
        write_old(tmp_path / "data" / name, f"document {name}")
    return tmp_path


def write_old(file: Path, text: str, age: float = 100) -> None:
    file.write_text(text)
    os.utime(file, (time.time() - age, time.time() - age))


def opened(folder: Path, tokenizer: Tokenizer, column: str = "text") -> TokenIndex:
    source = str(folder / "data")
    return open_column_index(
        resolve_data_files(source),
        source=source,
        column=column,
        tokenizer=tokenizer,
        cache_folder=folder / "cache",
    )


def record_of(folder: Path) -> Path:
    (record,) = (
        file for file in (folder / "cache").glob("*.json") if not file.name.endswith(".files.json")
    )
    return record


def refuse_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "READER", "no.such.module")


def test_the_index_holds_every_document_and_tells_what_it_was_made_from(
    folder: Path, tokenizer: Tokenizer
) -> None:
    index = opened(folder, tokenizer)
    assert index.tokens[:].tolist() == tokenizer.encode("document a.txt") + tokenizer.encode(
        "document b.txt"
    )
    assert index.tokens.dtype == np.uint16 and not index.tokens[:].flags.owndata
    record = json.loads(record_of(folder).read_text())
    assert (
        record["documents"] == 2
        and record["tokens"] == len(index.tokens)
        and record["max_token_id"] == ord("x") + 3
    )
    assert [Path(file["path"]).name for file in record["files"]] == ["a.txt", "b.txt"]
    assert record["tokenizer"] == "bytes" and '"column": "text"' in record["settings"]
    assert index.summary.max_token_id == record["max_token_id"]


def test_an_index_is_used_again(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folder, tokenizer)
    refuse_to_build(monkeypatch)
    assert opened(folder, tokenizer).summary == first.summary


def test_files_with_new_times_and_the_same_bytes_keep_their_index(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(folder, tokenizer)
    write_old(folder / "data" / "a.txt", "document a.txt", age=50)
    refuse_to_build(monkeypatch)
    opened(folder, tokenizer)
    # from now on the new time vouches for the bytes, and nothing is hashed again
    monkeypatch.setattr(data_files, "hashlib", None)
    opened(folder, tokenizer)


@pytest.mark.parametrize("change", ["bytes", "one more", "one less", "renamed"])
def test_other_files_are_tokenised_again(folder: Path, tokenizer: Tokenizer, change: str) -> None:
    first = opened(folder, tokenizer)
    data = folder / "data"
    if change == "bytes":
        write_old(data / "b.txt", "document B.txt", age=50)
    elif change == "one more":
        write_old(data / "c.txt", "document c.txt")
    elif change == "one less":
        (data / "b.txt").unlink()
    else:
        (data / "a.txt").rename(data / "c.txt")
    second = opened(folder, tokenizer)
    assert second.summary != first.summary
    # the first one stays readable for a process that has it mapped
    assert first.tokens[:3].tolist() == tokenizer.encode("do", add_eos=False)


def test_bytes_that_change_right_after_they_were_read_are_noticed(
    folder: Path, tokenizer: Tokenizer
) -> None:
    file = folder / "data" / "a.txt"
    file.write_text("document 1.txt")
    status = file.stat()
    first = opened(folder, tokenizer)
    file.write_text("document 2.txt")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert opened(folder, tokenizer).summary != first.summary


def test_another_tokenizer_or_column_has_an_index_of_its_own(
    folder: Path, tokenizer: Tokenizer
) -> None:
    opened(folder, tokenizer)
    tokenizer.fingerprint = "other"
    opened(folder, tokenizer)
    opened(folder, tokenizer, column="body")
    assert len(list((folder / "cache").iterdir())) == 10


@pytest.mark.parametrize(
    "damage", ["torn record", "no tokens", "short tokens", "other format", "torn tokens"]
)
def test_a_damaged_index_is_built_again(folder: Path, tokenizer: Tokenizer, damage: str) -> None:
    first = opened(folder, tokenizer)
    content = first.tokens[:].tolist()
    record, tokens = record_of(folder), next((folder / "cache").glob("*.npy"))
    if damage == "torn record":
        record.write_text(record.read_text()[:100])
    elif damage == "no tokens":
        tokens.unlink()
    elif damage == "short tokens":
        tokens.unlink()
        np.save(tokens, np.arange(3, dtype=np.uint16))
    elif damage == "torn tokens":
        data = tokens.read_bytes()
        tokens.unlink()
        tokens.write_bytes(data[:-4])
    else:
        record.write_text(record.read_text().replace(f'"format": {FORMAT}', '"format": 0'))
    assert opened(folder, tokenizer).tokens[:].tolist() == content
    assert len(list((folder / "cache").iterdir())) == 4


def test_a_build_that_breaks_off_leaves_nothing(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> list[list[int]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "encode_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened(folder, tokenizer)
    assert not list((folder / "cache").iterdir())


def test_a_file_that_changes_while_it_is_read_is_a_problem(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_batch = tokenizer.encode_batch

    def encode_while_writing(*args: object, **options: object) -> list[list[int]]:
        (folder / "data" / "a.txt").write_text("another document")
        return encode_batch(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tokenizer, "encode_batch", encode_while_writing)
    with pytest.raises(ProblemsFound, match=r"a\.txt' changed while it was read"):
        opened(folder, tokenizer)


def test_a_file_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match=r"gone\.txt' cannot be read: No such file"):
        describe_file(tmp_path / "gone.txt", None)


def test_many_documents_are_written_in_order(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_documents, "ENCODE_CHARACTERS", 200)
    texts = [str(number) * (number % 7) for number in range(300)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    assert opened(tmp_path, tokenizer).tokens[:].tolist() == [
        token for text in texts for token in tokenizer.encode(text)
    ]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(2048, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_ids_are_stored_in_the_smallest_type_that_holds_the_vocabulary(
    tmp_path: Path, vocab_size: int, dtype: str
) -> None:
    blocks = [[1, 2], [], [vocab_size - 1], list(range(1000))]
    with (tmp_path / "ids.npy").open("wb") as file:
        writer = TokenWriter(file, vocab_size=vocab_size)
        for block in blocks:
            writer.write(block)
        writer.finish()
    expected = [token for block in blocks for token in block]
    tokens = open_token_memmap(tmp_path / "ids.npy")
    assert tokens.dtype == dtype and tokens.tolist() == expected
    assert np.load(tmp_path / "ids.npy").tolist() == expected
