"""Token ids and loss masks of conversations, imported only to build an index."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.document_split import HOLDOUT_BY, DocumentFilter
from titanrun.components.data.loss_mask import (
    MaskedConversation,
    build_loss_mask,
    nothing_learned_error,
)
from titanrun.components.data.record_readers import LocatedRecord
from titanrun.components.data.spec.chat_formats import Conversation, parse_conversation
from titanrun.components.data.spec.file_columns import check_columns
from titanrun.components.data.spec.holdout_hash import (
    compute_holdout_hash,
    make_column_key,
    make_messages_key,
)
from titanrun.components.data.token_records import (
    ID_FACTOR,
    IN_LOSS,
    STARTS_DOCUMENT,
    attach_weights,
)
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, IdsWithOffsets
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.heartbeat import send_heartbeat

ENCODE_BATCH_SIZE = 512
"""Records tokenized at a time, on all processors."""


def write_masked_conversations(
    records: Iterable[LocatedRecord],
    iter_masked_conversations: Callable[[LocatedRecord], Iterable[MaskedConversation]],
    tokenizer: ChatTokenizer,
    writer: TokenWriter,
) -> int:
    """Write the conversations of each record in order; return the number of records with some.

    Tokens are encoded as in token_records.py.
    """
    stream, count = iter(records), 0
    while batch := [
        list(iter_masked_conversations(record)) for record in islice(stream, ENCODE_BATCH_SIZE)
    ]:
        count += sum(bool(of_record) for of_record in batch)
        for numbers in encode_conversations(
            [one for of_record in batch for one in of_record], tokenizer
        ):
            writer.write(numbers)
        send_heartbeat()
    return count


def encode_conversations(
    conversations: Sequence[MaskedConversation], tokenizer: ChatTokenizer
) -> Iterator[NDArray[np.integer]]:
    """Yield the encoded tokens of each conversation."""
    for placed, one in zip(
        tokenizer.encode_with_offsets([one.text for one in conversations]),
        conversations,
        strict=True,
    ):
        yield encode_conversation(placed, one)


@dataclass(frozen=True, slots=True)
class ConversationWriter:
    """Writer of conversations into an index.

    With `turn_weights`, at least one message must have a weight; with `system_column`, at least one
    record must have the column. `end_tokens` are added to the replies that they follow.
    """

    config: ChatDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer
    end_tokens: Collection[str] = ()
    chosen: DocumentFilter | None = None

    def write(self, records: Iterable[LocatedRecord], writer: TokenWriter) -> int:
        """Write the conversations of the records that are chosen, and return their number.

        Raises:
            ProblemsFound: A data problem if one cannot be read or has no token in the loss.
        """
        key, column = self.config.turn_weights, self.config.system_column
        has_weights = has_column = False

        def build_masks(record: LocatedRecord) -> list[MaskedConversation]:
            nonlocal has_weights, has_column
            conversation = self.parse(record)
            has_weights = has_weights or any(key in message for message in conversation.messages)
            has_column = has_column or column in record[1]
            if not is_conversation_chosen(self.chosen, record, conversation):
                return []
            return [self.build_mask(conversation, record[0])]

        count = write_masked_conversations(records, build_masks, self.tokenizer, writer)
        if count and key is not None and not has_weights:
            raise missing_name_error(
                "turn_weights", f"no message has a '{key}'", "the key that holds weights"
            )
        if count and column is not None and not has_column:
            raise missing_name_error(
                "system_column", f"no record has a '{column}'", "the column that holds system texts"
            )
        return count

    def parse(self, record: LocatedRecord) -> Conversation:
        """Return the conversation in a record."""
        place, columns = record
        return parse_conversation(self.config.layout, columns, self.config.get_columns(), place)

    def build_mask(self, conversation: Conversation, place: str) -> MaskedConversation:
        """Return the text of a conversation with the spans in the loss."""
        template = self.template.with_tools(conversation.tools)
        return build_loss_mask(
            self.config, template, conversation, place, end_tokens=self.end_tokens
        )


def is_conversation_chosen(
    chosen: DocumentFilter | None,
    located_record: LocatedRecord,
    conversation: Conversation,
) -> bool:
    """Return whether a conversation is chosen: by its prompt if it is one completion."""
    if chosen is None:
        return True
    return is_record_chosen(chosen, located_record, make_messages_key(conversation.asked))


def is_record_chosen(chosen: DocumentFilter, located_record: LocatedRecord, key: bytes) -> bool:
    """Return whether a record is chosen, by its key or by the column that the filter names.

    Raises:
        ProblemsFound: A data problem if it does not have that column.
    """
    place, record = located_record
    if chosen.by is not None:
        check_columns(record, {chosen.by: (HOLDOUT_BY,)}, place)
        key = make_column_key(record[chosen.by])
    return chosen.keeps(compute_holdout_hash(key))


def encode_conversation(
    ids_with_offsets: IdsWithOffsets, conversation: MaskedConversation
) -> NDArray[np.integer]:
    """Return the encoded tokens of one conversation.

    A token counts if it covers a character of a span, as in transformers' assistant mask. If it
    covers characters of two spans, it has the higher weight. The first token never counts: no token
    precedes it that could predict it.
    """
    ids, offsets = ids_with_offsets
    starts, ends = (
        np.array([offset[side] for offset in offsets], dtype=np.int64) for side in (0, 1)
    )
    weights = np.zeros(len(ids), dtype=np.float32)
    for (start, end), weight in zip(
        conversation.spans, conversation.weights or [1.0] * len(conversation.spans), strict=True
    ):
        inside = (ends > start) & (starts < end)
        weights[inside] = np.maximum(weights[inside], np.float32(weight))
    weights[:1] = 0
    if not weights.any():
        raise nothing_learned_error(conversation)
    numbers = np.array(ids, dtype=np.int64) * ID_FACTOR + (weights > 0) * IN_LOSS
    numbers[0] += STARTS_DOCUMENT
    if conversation.value is not None:
        return attach_weights(numbers, np.full(len(numbers), conversation.value, np.float32))
    return numbers if conversation.weights is None else attach_weights(numbers, weights)


def missing_name_error(field: str, message: str, what: str) -> ProblemsFound:
    """Build the problem of a field that names what no record has."""
    hint = f"name {what}, or remove {field}"
    return problem_error("data", message, path=(field,), hint=hint)
