"""Tokens of the documents in a window of a stream, for each kind of dataset."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.bin_packing import PACKERS
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.chat_dataset import (
    check_chat_tokenizer,
    load_dataset_end_tokens,
    serialize_chat_settings,
)
from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.conversation_writer import (
    ConversationWriter,
    encode_conversations,
    is_conversation_chosen,
)
from titanrun.components.data.document_reader import DocumentReader
from titanrun.components.data.document_split import HOLDOUT_BY, DocumentSplit, Holdout
from titanrun.components.data.encode_documents import iter_encoded_chunks
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.loss_mask import MaskedConversation
from titanrun.components.data.packed_sequences import (
    PackingOptions,
    build_packed_dataset,
    find_unusable_documents,
    split_long_documents,
    tell_long_documents,
)
from titanrun.components.data.preference_dataset import pack_pairs, serialize_preference_settings
from titanrun.components.data.preference_writer import PreferencePairWriter
from titanrun.components.data.record_readers import BadRecordHandler, LocatedRecord
from titanrun.components.data.replies_config import PreferenceDatasetConfig
from titanrun.components.data.spec.file_columns import RequiredColumns, get_required_columns
from titanrun.components.data.spec.holdout_hash import compute_holdout_threshold
from titanrun.components.data.spec.long_documents import suggest_sequence_length
from titanrun.components.data.stream_config import StreamFields
from titanrun.components.data.text_dataset import build_sequences
from titanrun.components.data.token_index import TokenIndex, serialize_document_settings
from titanrun.components.data.token_records import (
    ID_FACTOR,
    WEIGHT_FACTOR,
    find_document_boundaries,
)
from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)

Spans = list[tuple[int, int]]
"""Start and length of each document in a sequence."""
ENCODE_CHARACTERS = 2**16
"""Characters tokenized at a time: a lane needs few tokens for its next sequence, and there are many
lanes."""
ENCODE_BATCH_SIZE = 32
"""Conversations tokenized at a time."""
T = TypeVar("T")


class WindowEncoder(Protocol):
    """Tokens of the documents in the records of a window.

    Args:
        settings: Everything that the tokens and sequences depend on, besides files, tokenizer and
            sequence length.
        required: Columns that are read, None for all.
        packing: windows or documents if documents continue across sequences, None if sequences hold
            whole documents of one window.
        has_weights: Whether tokens have loss weights.
    """

    settings: str
    required: RequiredColumns | None
    packing: str | None
    has_weights: bool

    def encode(
        self, records: Iterable[LocatedRecord], on_bad_record: BadRecordHandler
    ) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of each document, encoded as in token_records.py.

        With packing windows, they are plain ids.
        """
        ...

    def plan_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> list[Spans]:
        """Return the documents of each sequence, for consecutive documents of a window."""
        ...

    def count_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> float:
        """Return the number of sequences that a document fills, at least."""
        ...

    @property
    def token_bound(self) -> int:
        """Upper bound of the encoded tokens, exclusive."""
        ...

    def build_dataset(self, index: TokenIndex, sample_length: int, source: str) -> IndexedDataset:
        """Build the sequences of an index of these documents."""
        ...


def load_encoder(
    config: StreamFields, tokenizer: Tokenizer, holdout: Holdout | None
) -> WindowEncoder:
    """Build the encoder of a stream, for one side of a split of its documents."""
    module, _, attribute = type(config).encodes.partition(":")
    encoder: WindowEncoder = getattr(import_module(module), attribute)(config, tokenizer, holdout)
    return encoder


@dataclass(slots=True)
class LongDocumentLog:
    """Handling of documents longer than a sequence, of which the first ones are logged."""

    was_logged: bool = False

    def find_fitting(
        self,
        tokens: NDArray[np.integer],
        spans: tuple[NDArray[np.int64], NDArray[np.int64]],
        options: PackingOptions,
    ) -> NDArray[np.integer]:
        """Return the indices of the documents that fit a sequence, whole or truncated.

        Raises:
            ProblemsFound: A data problem if longer documents are refused.
        """
        starts, lengths = spans
        if not (lengths > options.sample_length).any():
            return np.arange(len(lengths))
        text = tell_long_documents(lengths, options)
        if options.too_long == "refuse":
            longest = suggest_sequence_length(int(lengths.max()))
            hint = f"{longest} in this window, or set too_long: drop or cut"
            raise problem_error("data", f"in a window, {text}", path=("too_long",), hint=hint)
        if not self.was_logged:
            log.warning("the first window with long documents has %s: %s", text, options.too_long)
            self.was_logged = True
        dropped = find_unusable_documents(tokens, starts, lengths, options)
        return np.setdiff1d(np.arange(len(lengths)), dropped)


class DocumentEncoder:
    """Encoder of documents of text."""

    has_weights = False

    def __init__(
        self, config: DocumentsConfig, tokenizer: Tokenizer, holdout: Holdout | None = None
    ) -> None:
        self._config, self._tokenizer, self._holdout = config, tokenizer, holdout
        self._long, self._chosen = LongDocumentLog(), build_document_filter(holdout)
        self.required = {**get_required_columns(config), **get_holdout_column(holdout)}
        self.packing = config.packing if config.packing in ("windows", "documents") else None
        settings = serialize_document_settings(config)
        self.settings = serialize_settings([settings, config.packing, config.too_long], holdout)

    def encode(
        self, records: Iterable[LocatedRecord], on_bad_record: BadRecordHandler
    ) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of each document."""
        reader = DocumentReader(self._config, on_bad_record=on_bad_record, chosen=self._chosen)
        chunks: list[NDArray[np.uint32]] = []
        for chunk, is_last in iter_encoded_chunks(
            reader.iter_record_documents(records),
            self._tokenizer,
            config=self._config,
            characters=ENCODE_CHARACTERS,
        ):
            # the type of an index, half of the memory of a long document
            chunks.append(chunk.astype(np.uint32))
            if is_last:
                yield chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
                chunks = []

    def plan_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> list[Spans]:
        """Return the documents, or pieces of them, of each sequence."""
        options = PackingOptions(self._config.packing, self._config.too_long, sample_length)
        return plan_packed_sequences(tokens, options, self._long)

    def count_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> float:
        """Return the number of sequences that a document fills, at least."""
        if self.packing is not None:
            return len(tokens) / sample_length
        sequences = self.plan_sequences(tokens.astype(np.uint32), sample_length)
        return count_filled(sequences, sample_length, self._config.packing)

    @property
    def token_bound(self) -> int:
        """Upper bound of the encoded tokens, exclusive."""
        return self._tokenizer.vocab_size * (1 if self.packing == "windows" else ID_FACTOR)

    def build_dataset(self, index: TokenIndex, sample_length: int, source: str) -> IndexedDataset:
        """Build the sequences of an index of these documents."""
        return build_sequences(
            self._config,
            index,
            sample_length=sample_length,
            source=source,
            holdout=self._holdout,
        )


class ConversationEncoder:
    """Encoder of conversations."""

    packing = None
    required = None

    def __init__(
        self, config: ChatDatasetConfig, tokenizer: Tokenizer, holdout: Holdout | None = None
    ) -> None:
        chat_tokenizer = check_chat_tokenizer(tokenizer)
        template = load_chat_template(chat_tokenizer)
        self._config, self._tokenizer = config, chat_tokenizer
        end_tokens = load_dataset_end_tokens(config, template, chat_tokenizer)
        chosen = build_document_filter(holdout)
        self._writer = ConversationWriter(config, template, chat_tokenizer, end_tokens, chosen)
        self._long = LongDocumentLog()
        self.has_weights = config.has_token_weights
        settings = serialize_chat_settings(config, template, end_tokens)
        self.settings = serialize_settings([settings, config.packing, config.too_long], holdout)

    def encode(
        self, records: Iterable[LocatedRecord], on_bad_record: BadRecordHandler
    ) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of each conversation."""
        for batch in iter_batches(self._iter_masked(records), ENCODE_BATCH_SIZE):
            yield from encode_conversations(batch, self._tokenizer)

    def _iter_masked(self, records: Iterable[LocatedRecord]) -> Iterator[MaskedConversation]:
        """Yield the conversations that are chosen, with the spans in the loss."""
        for record in records:
            conversation = self._writer.parse(record)
            if is_conversation_chosen(self._writer.chosen, record, conversation):
                yield self._writer.build_mask(conversation, record[0])

    def plan_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> list[Spans]:
        """Return the conversations of each sequence."""
        options = PackingOptions(
            self._config.packing, self._config.too_long, sample_length, "conversation"
        )
        return plan_packed_sequences(tokens, options, self._long)

    def count_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> float:
        """Return the number of sequences that a conversation fills, at least."""
        dtype = np.uint64 if self.has_weights else np.uint32
        sequences = self.plan_sequences(tokens.astype(dtype), sample_length)
        return count_filled(sequences, sample_length, self._config.packing)

    @property
    def token_bound(self) -> int:
        """Upper bound of the encoded tokens, exclusive."""
        weights = WEIGHT_FACTOR if self.has_weights else 1
        return self._tokenizer.vocab_size * ID_FACTOR * weights

    def build_dataset(self, index: TokenIndex, sample_length: int, source: str) -> IndexedDataset:
        """Build the sequences of an index of these conversations."""
        options = PackingOptions(
            self._config.packing, self._config.too_long, sample_length, "conversation"
        )
        return build_packed_dataset(index, options)


class PreferencePairEncoder:
    """Encoder of preference pairs, each as two documents."""

    packing = None
    required = None
    has_weights = False

    def __init__(
        self, config: PreferenceDatasetConfig, tokenizer: Tokenizer, holdout: Holdout | None = None
    ) -> None:
        chat_tokenizer = check_chat_tokenizer(tokenizer)
        template = load_chat_template(chat_tokenizer)
        self._config, self._tokenizer = config, chat_tokenizer
        end_tokens = load_dataset_end_tokens(config, template, chat_tokenizer)
        chosen = build_document_filter(holdout)
        self._writer = PreferencePairWriter(config, template, chat_tokenizer, end_tokens, chosen)
        self._long = LongDocumentLog()
        settings = serialize_preference_settings(config, template, end_tokens)
        self.settings = serialize_settings([settings, config.too_long], holdout)

    def encode(
        self, records: Iterable[LocatedRecord], on_bad_record: BadRecordHandler
    ) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of each pair, the preferred conversation first."""
        pairs = (list(self._writer.iter_masked_conversations(record)) for record in records)
        for batch in iter_batches(filter(None, pairs), ENCODE_BATCH_SIZE):
            both: list[MaskedConversation] = [one for pair in batch for one in pair]
            encoded = list(encode_conversations(both, self._tokenizer))
            for chosen, rejected in zip(encoded[::2], encoded[1::2], strict=True):
                yield np.concatenate([chosen, rejected])

    def plan_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> list[Spans]:
        """Return the two conversations of each sequence."""
        starts, lengths = find_document_boundaries(tokens)
        options = PackingOptions(None, self._config.too_long, sample_length, "pair")
        kept = self._long.find_fitting(tokens, (starts[::2], lengths[::2] + lengths[1::2]), options)
        return [
            [(int(starts[number]), int(lengths[number])) for number in (2 * pair, 2 * pair + 1)]
            for pair in kept.tolist()
        ]

    def count_sequences(self, tokens: NDArray[np.integer], sample_length: int) -> float:
        """Return 1 if a pair fits a sequence, else 0."""
        return float(len(tokens) <= sample_length)

    @property
    def token_bound(self) -> int:
        """Upper bound of the encoded tokens, exclusive."""
        return self._tokenizer.vocab_size * ID_FACTOR

    def build_dataset(self, index: TokenIndex, sample_length: int, source: str) -> IndexedDataset:
        """Build the sequences of an index of these pairs."""
        return pack_pairs(self._config, index, sample_length)


def count_filled(sequences: Sequence[Spans], sample_length: int, packing: str | None) -> float:
    """Return how many sequences are filled if others share them, or else how many there are."""
    if packing is None:
        return len(sequences)
    return sum(length for spans in sequences for _, length in spans) / sample_length


def plan_packed_sequences(
    tokens: NDArray[np.integer], options: PackingOptions, long_documents: LongDocumentLog
) -> list[Spans]:
    """Return the documents of each sequence, sequences in the order of their first documents.

    So sequences are not sorted by the length of their documents.
    """
    starts, lengths = find_document_boundaries(tokens)
    if options.too_long == "split":
        starts, lengths = split_long_documents(starts, lengths, sample_length=options.sample_length)
    else:
        kept = long_documents.find_fitting(tokens, (starts, lengths), options)
        starts, lengths = starts[kept], np.minimum(lengths[kept], options.sample_length)
    bins = PACKERS[options.method](lengths.tolist(), sample_length=options.sample_length)
    return [
        [(int(starts[number]), int(lengths[number])) for number in members]
        for members in sorted(bins, key=min)
    ]


def build_document_filter(holdout: Holdout | None) -> DocumentSplit | None:
    """Return the filter of the documents that a stream reads, None for all of them."""
    if holdout is None:
        return None
    assert holdout.size < 1, "a rule refuses a number of documents of a stream"
    return DocumentSplit(holdout, compute_holdout_threshold(holdout.size))


def get_holdout_column(holdout: Holdout | None) -> RequiredColumns:
    """Return the column that decides which documents are held out, if there is one."""
    return {} if holdout is None or holdout.by is None else {holdout.by: (HOLDOUT_BY,)}


def serialize_settings(settings: Sequence[object], holdout: Holdout | None) -> str:
    """Return settings with the side of a split that is read."""
    return json.dumps([*settings, *([] if holdout is None else [holdout.describe()])])


def iter_batches(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive items in lists of `size`."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
