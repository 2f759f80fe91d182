"""Token ids and loss masks of preference pairs, imported only to build an index."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.components.data.conversation_writer import write_masked_conversations
from titanrun.components.data.loss_mask import MaskedConversation, mask_all_but_last_reply
from titanrun.components.data.record_readers import LocatedRecord, iter_records
from titanrun.components.data.spec.preference_formats import parse_preference_pair
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer


@dataclass(frozen=True, slots=True)
class PreferencePairWriter:
    """Writer of the pairs of files into an index, each as two conversations.

    Tokens are encoded as in token_records.py. The last reply of each conversation counts in the
    loss.
    """

    config: PreferenceDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer

    def write(self, files: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
        """Write the pairs of the files and return their number.

        Raises:
            ProblemsFound: A data problem if one cannot be read or has no replies to compare.
        """
        return write_masked_conversations(
            iter_records(files, scratch=scratch),
            self.iter_masked_conversations,
            self.tokenizer,
            writer,
        )

    def iter_masked_conversations(
        self, located_record: LocatedRecord
    ) -> Iterator[MaskedConversation]:
        """Yield both conversations of a record."""
        place, record = located_record
        for conversation in parse_preference_pair(self.config, record, place):
            template = self.template.with_tools(conversation.tools)
            yield mask_all_but_last_reply(template, conversation.messages, place)
