"""A cache that changed between two starts is not trained on. Row B2 of the defect list."""

import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tests.components.data.test_token_index import opened, record_of, refuse_to_build, write_old
from titanrun.components.data import token_file, token_writer
from titanrun.components.data.config import TextDatasetConfig, TokensDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.data.token_blocks import VerifiedTokens, hash_blocks
from titanrun.components.data.token_cache_maintenance import verify_token_cache
from titanrun.components.data.token_dataset import build_token_dataset
from titanrun.components.data.token_file_digests import prune_token_files, verify_token_files
from titanrun.components.data.token_writer import BLOCK_BYTES, BlockHasher
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound

DOCUMENTS = 3
DOCUMENT_CHARACTERS = BLOCK_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents whose tokens fill several blocks."""
    (tmp_path / "data").mkdir()
    for name in "abc"[:DOCUMENTS]:
        write_old(tmp_path / "data" / f"{name}.txt", name * DOCUMENT_CHARACTERS)
    return tmp_path


def tokens_of(folder: Path) -> Path:
    (file,) = (folder / "cache").glob("*.npy")
    return file


def change_in_place(file: Path, token: int) -> None:
    """Change one token; size and time stay."""
    status = file.stat()
    tokens = np.load(file, mmap_mode="r+")
    tokens[token] += 1
    tokens.flush()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("sizes", [[0], [1], [BLOCK_BYTES], [BLOCK_BYTES + 2, 6], [7, 3] * 30_000])
def test_digests_while_writing_are_those_of_the_whole(sizes: list[int]) -> None:
    content = os.urandom(sum(sizes))
    hasher, at = BlockHasher(), 0
    for size in sizes:
        hasher.update(content[at : at + size])
        at += size
    assert hasher.finish() == b"".join(
        xxhash.xxh3_128(content[start : start + BLOCK_BYTES]).digest()
        for start in range(0, len(content), BLOCK_BYTES)
    )


def test_every_kind_of_span_asks_for_all_of_its_blocks(tmp_path: Path) -> None:
    block = BLOCK_BYTES // 2
    tokens = np.arange(3 * block + 2, dtype=np.uint16) // 2
    digests = hash_blocks(tokens)
    changed = tokens.copy()
    changed[block] += 1
    changed[3 * block - 1] += 1

    def open_after(*read: slice) -> VerifiedTokens:
        """Return the ids, of which some have been read."""
        verified = VerifiedTokens(changed, digests, path=tmp_path / "ids.npy", discard=lambda: None)
        for span in read:
            verified[span]
        return verified

    ends = (slice(0, 5), slice(3 * block, 3 * block + 2))
    assert np.array_equal(open_after(*ends)[3 * block : 4 * block], tokens[3 * block :])
    for span in (
        slice(0, 3 * block + 2),  # both ends are checked, what is between them is not
        slice(None),
        slice(block - 1, None),
        slice(block - 1, block + 1),
        slice(3 * block - 2, 3 * block + 1),  # only its end is checked
        slice(3 * block - 5, 3 * block),
        slice(3 * block - 5, 9 * block),
        slice(-9, -1),  # begins in the block before the last
        slice(-block, None),
    ):
        with pytest.raises(ProblemsFound, match="holds other tokens than were written"):
            open_after(*ends)[span]


def test_only_the_block_that_changed_is_refused_and_only_when_it_is_read(
    folder: Path, tokenizer: Tokenizer
) -> None:
    first = opened(folder, tokenizer)
    block = BLOCK_BYTES // first.tokens.dtype.itemsize
    assert len(first.tokens) > 4 * block
    good = first.tokens[:].copy()
    change_in_place(tokens_of(folder), 2 * block + 5)
    tokens = opened(folder, tokenizer).tokens
    assert np.array_equal(tokens[: 2 * block], good[: 2 * block])
    assert np.array_equal(tokens[3 * block :], good[3 * block :])
    assert len(tokens[5:5]) == 0
    for span in (slice(2 * block - 1, 2 * block + 1), slice(3 * block - 1, 3 * block)):
        with pytest.raises(ProblemsFound) as error:
            tokens[span]
        (problem,) = error.value.problems
        assert (problem.code, problem.exit_code) == ("data", 3)
        assert f"'{tokens_of(folder)}' holds other tokens than were written" in problem.message
        assert f": block 2, tokens {2 * block} to {3 * block - 1}" in problem.message


def test_the_next_start_builds_a_damaged_index_again(folder: Path, tokenizer: Tokenizer) -> None:
    first = opened(folder, tokenizer)
    good, summary = first.tokens[:].copy(), first.summary
    change_in_place(tokens_of(folder), 0)
    with pytest.raises(ProblemsFound, match="holds other tokens"):
        opened(folder, tokenizer).tokens[:1]
    again = opened(folder, tokenizer)
    assert np.array_equal(again.tokens[:], good)
    assert again.summary == summary


def test_an_index_of_an_earlier_version_gets_digests_and_is_not_built_again(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(folder, tokenizer)
    (blocks,) = (folder / "cache").glob("*.blocks")
    written = blocks.read_bytes()
    blocks.unlink()
    refuse_to_build(monkeypatch)
    opened(folder, tokenizer)
    assert blocks.read_bytes() == written


@pytest.mark.parametrize("damage", ["missing", "cut", "in another order", "a flipped bit"])
@pytest.mark.parametrize("changed", [False, True])
def test_tokens_and_digests_that_are_damaged_together_are_noticed(
    folder: Path, tokenizer: Tokenizer, damage: str, changed: bool
) -> None:
    good = opened(folder, tokenizer).tokens[:].copy()
    (blocks,) = (folder / "cache").glob("*.blocks")
    written = bytearray(blocks.read_bytes())
    if damage == "missing":
        blocks.unlink()
    elif damage == "cut":
        blocks.write_bytes(written[:-1])
    elif damage == "in another order":
        blocks.write_bytes(written[:16] + written[16:32] + written[48:] + written[32:48])
    else:
        written[40] ^= 1
        blocks.write_bytes(written)
    if changed:
        change_in_place(tokens_of(folder), 77)
    assert np.array_equal(opened(folder, tokenizer).tokens[:], good)


def test_a_header_with_another_type_is_noticed(folder: Path, tokenizer: Tokenizer) -> None:
    good = opened(folder, tokenizer).tokens[:].copy()
    path = tokens_of(folder)
    content = path.read_bytes()
    assert b"'<u2'" in content
    path.write_bytes(content.replace(b"'<u2'", b"'>u2'", 1))
    assert np.array_equal(opened(folder, tokenizer).tokens[:], good)


def test_tokens_written_over_while_they_are_mapped_are_checked_again(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(folder, tokenizer)
    file = index.get_unchanged_file()
    size = len(index.tokens)
    index.tokens[:]
    # of a file beyond this size, the guard reads a sample: the first and the last block
    monkeypatch.setattr(token_file, "MAX_FULL_READ_BYTES", 2 * token_file.HASH_BLOCK_BYTES)
    monkeypatch.setattr(
        file, "_digest", token_file.summarize_tokens(index.tokens[:], source="").digest
    )
    tokens = np.load(tokens_of(folder), mmap_mode="r+")
    tokens[size // 2] += 1
    tokens.flush()
    os.utime(tokens_of(folder), (1, 1))
    file.check()
    with pytest.raises(ProblemsFound, match="holds other tokens"):
        index.tokens[size // 2 : size // 2 + 1]


def test_data_verify_reads_every_block(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "MAX_FULL_READ_BYTES", 2 * token_file.HASH_BLOCK_BYTES)
    first = opened(folder, tokenizer)
    size = len(first.tokens)
    assert [found["damage"] for found in verify_token_cache(folder / "cache")] == [None]
    change_in_place(tokens_of(folder), size // 2)
    (found,) = verify_token_cache(folder / "cache")
    block = size // 2 // (BLOCK_BYTES // first.tokens.dtype.itemsize)
    assert found["damage"].startswith("its tokens are other ones than when it was written, from")
    assert found["damage"].endswith(f"(block {block})")
    assert record_of(folder).is_file()


@pytest.mark.parametrize("packing", ["windows", "documents", None, "best_fit"])
def test_no_kind_of_sequence_is_made_of_changed_tokens(
    folder: Path, tokenizer: Tokenizer, packing: str | None
) -> None:
    config = TextDatasetConfig(path=str(folder / "data"), packing=packing)

    def build() -> list[list[int]]:
        dataset = build_text_dataset(
            config, tokenizer=tokenizer, sample_length=4096, cache_folder=folder / "cache"
        )
        return [dataset[number].tolist() for number in range(len(dataset))]

    rows = build()
    change_in_place(tokens_of(folder), len(np.load(tokens_of(folder))) // 2)
    with pytest.raises(ProblemsFound, match="holds other tokens"):
        build()
    assert build() == rows


def test_blocks_hold_whole_ids() -> None:
    assert all(token_writer.BLOCK_BYTES % size == 0 for size in (2, 4, 8))
    ids = np.arange(BLOCK_BYTES, dtype=np.uint32)
    assert len(hash_blocks(ids)) == 4 * 16


@pytest.mark.parametrize("shape", ["stream", "rows", "columns first"])
def test_a_file_of_the_user_is_checked_by_what_it_was_at_its_first_use(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of a larger file, no digest of the whole is known
    monkeypatch.setattr(token_file, "MAX_FULL_READ_BYTES", 2 * token_file.HASH_BLOCK_BYTES)
    ids = np.random.default_rng(0).integers(0, 999, size=(1024, 1024), dtype=np.uint16)
    whole = {"stream": ids.ravel(), "rows": ids, "columns first": np.asfortranarray(ids)}[shape]
    path, cache = tmp_path / "own.npy", tmp_path / "cache"
    np.save(path, whole)

    def build() -> IndexedDataset:
        config = TokensDatasetConfig(path=str(path))
        return build_token_dataset(config, sample_length=1024, cache_folder=cache)

    first = build()
    assert [first[row].tolist() for row in (0, 700)] == ids[[0, 700]].tolist()
    # a place that the sample of the whole file does not see
    block = BLOCK_BYTES // ids.itemsize
    status, stored = path.stat(), np.load(path, mmap_mode="r+")
    stored.ravel(order="K")[3 * block + 5] ^= 1
    stored.flush()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = build()
    assert again.fingerprint == first.fingerprint
    changed = 3 * block // 1024
    if shape != "columns first":
        assert again[changed - 1].tolist() == ids[changed - 1].tolist()
    with pytest.raises(ProblemsFound) as error:
        again[changed]
    (problem,) = error.value.problems
    assert (problem.code, problem.path, problem.exit_code) == ("data", ("path",), 3)
    told = f"holds other tokens than were written: block 3, tokens {3 * block} to "
    assert told in problem.message
    assert problem.hint is not None and problem.hint.startswith("copy the file again")
    (found,) = verify_token_files(cache)
    assert found["source"] == str(path) and f"from token {3 * block:,} on" in found["damage"]
    assert prune_token_files(cache, should_delete_all=False, should_delete=True) == []
    # written anew: another file, whose digests replace those before
    np.save(path, whole)
    os.utime(path, (1, 1))
    assert build()[changed].tolist() == ids[changed].tolist()
    assert [one["changed"] for one in verify_token_files(cache)].count([]) == 1
    (gone,) = prune_token_files(cache, should_delete_all=False, should_delete=True)
    assert "is missing or has changed" in gone["why"]
    assert [one["damage"] for one in verify_token_files(cache)] == [None]
    assert len(prune_token_files(cache, should_delete_all=True, should_delete=True)) == 1
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_keeps_no_digests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "own.npy", np.arange(100, dtype=np.uint16))
    (tmp_path / "cache").write_text("a file")
    config = TokensDatasetConfig(path=str(tmp_path / "own.npy"))
    dataset = build_token_dataset(config, sample_length=10, cache_folder=tmp_path / "cache")
    assert dataset[9].tolist() == list(range(90, 100))
    assert "cannot be kept in" in caplog.text


def test_sources_that_have_changed_or_are_gone_are_listed(
    folder: Path, tokenizer: Tokenizer
) -> None:
    opened(folder, tokenizer)
    files = [folder / "data" / f"{name}.txt" for name in "abc"]
    (found,) = verify_token_cache(folder / "cache")
    assert (found["damage"], found["changed"]) == (None, [])
    write_old(files[0], "other text")
    files[1].unlink()
    (found,) = verify_token_cache(folder / "cache")
    assert [Path(name).name for name in found["changed"]] == ["a.txt", "b.txt"]
