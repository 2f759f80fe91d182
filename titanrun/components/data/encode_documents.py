"""Tokens of documents, encoded in large batches."""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.text_chunks import TextChunk, iter_chunks
from titanrun.components.data.token_records import encode_document
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.distributed.heartbeat import send_heartbeat

ENCODE_CHARACTERS = 2**20
"""Characters of text tokenized at a time, on all processors."""


def write_documents(
    documents: Iterable[Iterable[str]],
    tokenizer: Tokenizer,
    writer: TokenWriter,
    *,
    config: DocumentsConfig,
) -> int:
    """Write every document with its begin and end tokens; return the number of documents."""
    count = 0
    for ids, is_last in iter_encoded_chunks(documents, tokenizer, config=config):
        writer.write(ids)
        count += is_last
    return count


def iter_encoded_chunks(
    documents: Iterable[Iterable[str]],
    tokenizer: Tokenizer,
    *,
    config: DocumentsConfig,
    characters: int = ENCODE_CHARACTERS,
) -> Iterator[tuple[NDArray[np.int64], bool]]:
    """Yield the tokens of every chunk of every document, and whether it ends the document.

    They are encoded as in token_records.py if the dataset separates documents. About `characters`
    characters are tokenized at a time.
    """
    before = tokenizer.encode("", add_bos=True, add_eos=False) if config.add_bos else []
    after = tokenizer.encode("", add_bos=False, add_eos=True) if config.add_eos else []
    chunks = chain.from_iterable(iter_chunks(document, tokenizer) for document in documents)
    for batch in iter_chunk_batches(chunks, characters):
        for part, ids in zip(
            batch,
            tokenizer.encode_batch([part.text for part in batch], add_bos=False, add_eos=False),
            strict=True,
        ):
            whole = np.array(
                [*(before if part.is_first else ()), *ids, *(after if part.is_last else ())],
                dtype=np.int64,
            )
            encodes = config.restarts_positions
            yield (
                encode_document(whole, is_document_start=part.is_first) if encodes else whole,
                part.is_last,
            )
        send_heartbeat()


def iter_chunk_batches(stream: Iterable[TextChunk], characters: int) -> Iterator[list[TextChunk]]:
    """Yield batches of chunks, each large enough for one call of the tokenizer."""
    batch: list[TextChunk] = []
    size = 0
    for part in stream:
        batch.append(part)
        # every chunk counts, so that a batch of empty documents also ends
        size += len(part.text) + 64
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
