"""Token ids and loss masks of compared replies, imported only to build an index."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from titanrun.components.data.conversation_writer import (
    is_record_chosen,
    write_masked_conversations,
)
from titanrun.components.data.document_split import DocumentFilter
from titanrun.components.data.loss_mask import MaskedConversation, mask_all_but_last_reply
from titanrun.components.data.record_readers import LocatedRecord
from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    PreferenceDatasetConfig,
)
from titanrun.components.data.spec.holdout_hash import make_messages_key, make_pair_key
from titanrun.components.data.spec.preference_formats import parse_labelled, parse_preference_pair
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer


@dataclass(frozen=True, slots=True)
class PreferencePairWriter:
    """Writer of pairs into an index, each as two conversations.

    Tokens are encoded as in token_records.py. The last reply of each conversation counts in the
    loss, with one of `end_tokens` after it.
    """

    config: PreferenceDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer
    end_tokens: Collection[str] = ()
    chosen: DocumentFilter | None = None

    def write(self, records: Iterable[LocatedRecord], writer: TokenWriter) -> int:
        """Write the pairs of the records that are chosen, and return their number.

        Raises:
            ProblemsFound: A data problem if one cannot be read or has no replies to compare.
        """
        return write_masked_conversations(
            records, self.iter_masked_conversations, self.tokenizer, writer
        )

    def iter_masked_conversations(
        self, located_record: LocatedRecord
    ) -> Iterator[MaskedConversation]:
        """Yield both conversations of a record, or none if it is not chosen."""
        place, record = located_record
        pair = parse_preference_pair(self.config, record, place)
        if self.chosen is not None:
            key = make_pair_key(*(conversation.messages for conversation in pair))
            if not is_record_chosen(self.chosen, located_record, key):
                return
        for conversation in pair:
            template = self.template.with_tools(conversation.tools)
            yield mask_all_but_last_reply(
                template, conversation.messages, place, end_tokens=self.end_tokens
            )


@dataclass(frozen=True, slots=True)
class LabelledReplyWriter:
    """Writer of labelled conversations into an index.

    Tokens are encoded as in token_records.py, the label as the value of each: 1 for desirable, else
    0. The last reply of each conversation counts in the loss, with one of `end_tokens` after it.
    """

    config: LabelledDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer
    end_tokens: Collection[str] = ()
    chosen: DocumentFilter | None = None

    def write(self, records: Iterable[LocatedRecord], writer: TokenWriter) -> int:
        """Write the conversations of the records that are chosen; return the number of records.

        Raises:
            ProblemsFound: A data problem if one cannot be read or has no reply.
        """
        return write_masked_conversations(
            records, self.iter_masked_conversations, self.tokenizer, writer
        )

    def iter_masked_conversations(
        self, located_record: LocatedRecord
    ) -> Iterator[MaskedConversation]:
        """Yield the conversations of a record, two if it is a pair, or none if it is not chosen."""
        place, record = located_record
        labelled = parse_labelled(self.config, record, place)
        if self.chosen is not None:
            # all replies to one prompt are on one side
            key = make_messages_key(labelled[0][0].messages[:-1])
            if not is_record_chosen(self.chosen, located_record, key):
                return
        for conversation, is_desirable in labelled:
            template = self.template.with_tools(conversation.tools)
            masked = mask_all_but_last_reply(
                template, conversation.messages, place, end_tokens=self.end_tokens
            )
            yield replace(masked, value=float(is_desirable))
