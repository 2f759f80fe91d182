"""Records of small data files, read before a run to count what it would train on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.replies_config import PreferenceDatasetConfig, RepliesConfig
from titanrun.components.data.spec.compression import open_decompressed_text
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.file_columns import (
    iter_valid_csv_records,
    iter_valid_json_records,
)
from titanrun.components.data.spec.json_lines import parse_jsonl_line
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.recipe.rules.chat import parse_conversations

MAX_COUNTED_BYTES = 2**20
"""Size of all files up to which they are read before a run: their tokens take some tenths of a
second."""
MAX_COUNTED_RECORDS = 5_000
"""Records up to which they are counted: a compressed file is longer than its size."""
LIBRARY_TOKENIZERS = "titanrun.components.tokenizers.huggingface"

Record: TypeAlias = tuple[str, Mapping[str, Any]]
"""Location of a record, for messages, and the record."""
RecordReader: TypeAlias = Callable[[Path], Iterator[Record]]


def read_small_records(
    path: str, readers: Mapping[str, RecordReader] | None = None
) -> list[Record] | None:
    """Return the records of the files at a path, None of large ones.

    Args:
        path: File, folder or glob.
        readers: Readers by suffix, None for those of conversations.

    Raises:
        ProblemsFound: If there is no file, or a record is damaged.
        OSError, ValueError: If a file cannot be read.
    """
    readers = readers or READERS
    files = resolve_data_files(path, tuple(readers))
    if sum(file.stat().st_size for file in files) > MAX_COUNTED_BYTES:
        return None
    records = (record for file in files for record in readers[get_data_suffix(file)](file))
    found = list(islice(records, MAX_COUNTED_RECORDS + 1))
    return found if len(found) <= MAX_COUNTED_RECORDS else None


def count_document_tokens(
    dataset: ChatDatasetConfig | RepliesConfig,
    tokenizer: TokenizerConfig,
    records: Sequence[Record],
) -> list[list[int]] | None:
    """Return for each record the tokens of its documents, or None if a plug-in encodes them.

    A document is what takes a place in a sequence: a conversation, a labelled reply, or a pair.

    Raises:
        ProblemsFound: If the records, the template or the tokenizer cannot be read.
    """
    if not str(type(tokenizer).builds).startswith(LIBRARY_TOKENIZERS):
        return None
    # jinja and the library are imported only if there are conversations
    template = import_module("titanrun.components.tokenizers.chat_template").load_chat_template(
        tokenizer
    )
    encoder = import_module(LIBRARY_TOKENIZERS).open_tokenizer(tokenizer)
    groups = [parse_conversations(dataset, record, place) for place, record in records]
    texts = [
        template.with_tools(one.tools).render(one.messages) for group in groups for one in group
    ]
    encoded = iter(encoder.encode_batch(texts, add_bos=False, add_eos=False))
    lengths = [[len(next(encoded)) for _ in group] for group in groups]
    if isinstance(dataset, PreferenceDatasetConfig):
        return [[sum(both)] for both in lengths]
    return lengths


def count_text_tokens(
    column: str, tokenizer: TokenizerConfig, records: Sequence[Record]
) -> list[int] | None:
    """Return the tokens of each text, or None if a plug-in encodes them.

    Args:
        column: Column of the texts.
        tokenizer: Tokenizer that encodes them, with begin and end of text.
        records: Records of small files.

    Raises:
        ProblemsFound: If the tokenizer cannot be read.
    """
    if not str(type(tokenizer).builds).startswith(LIBRARY_TOKENIZERS):
        return None
    encoder = import_module(LIBRARY_TOKENIZERS).open_tokenizer(tokenizer)
    texts = [str(record.get(column) or "") for _, record in records]
    return [len(one) for one in encoder.encode_batch(texts, add_bos=True, add_eos=True)]


def count_filled_sequences(
    dataset: ChatDatasetConfig | RepliesConfig, lengths: Sequence[int], *, sample_length: int
) -> int:
    """Return the number of sequences that documents fill."""
    packing = dataset.packing if isinstance(dataset, ChatDatasetConfig) else None
    if getattr(dataset, "too_long", None) == "cut":
        lengths = [min(length, sample_length) for length in lengths]
    kept = [length for length in lengths if length <= sample_length]
    packers = import_module("titanrun.components.data.bin_packing").PACKERS
    return len(packers[packing](kept, sample_length=sample_length))


def locate_jsonl_records(file: Path) -> Iterator[Record]:
    """Yield the record of each line, with its number."""
    with open_decompressed_text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                place = f"'{file}' line {number}"
                yield place, parse_jsonl_line(line, place)


def locate_json_records(file: Path) -> Iterator[Record]:
    """Yield the records of an array, or of lines."""
    yield from locate_records(file, iter_valid_json_records(file))


def locate_csv_records(file: Path) -> Iterator[Record]:
    """Yield the rows."""
    yield from locate_records(file, iter_valid_csv_records(file))


def locate_parquet_records(file: Path) -> Iterator[Record]:
    """Yield the rows."""
    opened = import_module("pyarrow.parquet").ParquetFile(file)
    rows = (row for batch in opened.iter_batches() for row in batch.to_pylist())
    yield from locate_records(file, rows)


def locate_text(file: Path) -> Iterator[Record]:
    """Yield the whole text of a file as one record."""
    with open_decompressed_text(file) as opened:
        yield f"'{file}'", {"text": opened.read()}


def locate_records(file: Path, records: Iterator[Mapping[str, Any]]) -> Iterator[Record]:
    """Yield each record with its place in the file."""
    for number, record in enumerate(records, start=1):
        yield f"'{file}' record {number}", record


LIGHT_READERS: dict[str, RecordReader] = {
    ".jsonl": locate_jsonl_records,
    ".json": locate_json_records,
    ".csv": locate_csv_records,
}
"""Readers that need no library which takes long to import."""
READERS: dict[str, RecordReader] = {**LIGHT_READERS, ".parquet": locate_parquet_records}
TEXT_READERS: dict[str, RecordReader] = {**READERS, ".txt": locate_text}
