"""Choices of the dataset slot for replies that losses of preferences compare."""

from pathlib import Path
from typing import ClassVar, Literal

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.record_source_config import RecordSourceFields
from titanrun.components.data.stream_config import CONVERSATION_SUFFIXES, StreamFields
from titanrun.config.fields import ReadWhen, numerics
from titanrun.config.types import Text

FROM_LABELS = ReadWhen(
    "columns-fit-pairs",
    ".from_pairs",
    "is true",
    "set from_pairs: false, or remove it",
    values=(False,),
)
FROM_PAIRS = ReadWhen(
    "columns-fit-pairs",
    ".from_pairs",
    "is false",
    "set from_pairs: true, or remove it",
    values=(True,),
)
PAIRS = Path(__file__).parents[2] / "assets" / "tiny_pairs"
Columns = tuple[tuple[str, str], ...]


class RepliesConfig(RecordSourceFields, DatasetConfig):
    """Conversations whose last replies are compared with other replies, or have labels."""

    prompt_column: Text = numerics("prompt", examples=["question"])
    """Column of the messages before a reply, a text or a list of messages. Records without it hold
    whole conversations. Messages have role and content, or from and value as in ShareGPT."""
    system_column: Text | None = numerics(None, examples=["system"])
    """Column of a system text, which becomes the message before the prompt. An empty text or null
    is none. If null, records have no such column."""
    train_end_of_turn: bool = numerics(False)
    """Whether the token that ends an assistant's turn counts in the loss where the template writes
    it after the text that it marks as the reply. If false, only what the template marks counts."""
    too_long: Literal["drop", "refuse"] = numerics("drop")
    """Handling of pairs and conversations longer than a sequence: drop them, or refuse to start the
    run. Their number is logged."""

    @property
    def restarts_positions(self) -> bool:
        """True: each conversation has its own positions."""
        return True

    def get_reply_columns(self) -> Columns:
        """Return the columns that every record must have, each with the field that names it."""
        raise TypeError(f"{type(self).__name__} does not say where its replies are")


class PreferenceDatasetConfig(StreamFields, RepliesConfig):
    """Pairs of replies to the same prompt, one of them preferred, for losses of pairs such as dpo.

    Reads jsonl, parquet or csv files, or the Hub. The last reply of each conversation is compared.
    """

    name: Literal["preference"] = numerics("preference")
    compares: ClassVar[Literal["pairs", "labels"] | None] = "pairs"
    builds: ClassVar = "titanrun.components.data.preference_dataset:build_preference_dataset"
    encodes: ClassVar = "titanrun.components.data.window_encoders:PreferencePairEncoder"
    stream_suffixes: ClassVar = CONVERSATION_SUFFIXES
    chosen_column: Text = numerics("chosen", examples=["better"])
    """Column of the preferred reply: a text, a message, or a list of messages."""
    rejected_column: Text = numerics("rejected", examples=["worse"])
    """Column of the rejected reply."""

    def get_reply_columns(self) -> Columns:
        """Return the columns of both replies."""
        return (
            (self.chosen_column, "chosen_column"),
            (self.rejected_column, "rejected_column"),
        )


class LabelledDatasetConfig(RepliesConfig):
    """Replies with a label, desirable or not, for the loss kto.

    Reads jsonl, parquet or csv files, or the Hub. The last reply of each conversation counts.
    """

    name: Literal["labelled"] = numerics("labelled")
    compares: ClassVar = "labels"
    builds: ClassVar = "titanrun.components.data.labelled_dataset:build_labelled_dataset"
    from_pairs: bool = numerics(False)
    """Whether records are pairs as for the dataset preference, of which the preferred reply is
    desirable and the other one is not. If false, each record is a reply with a label."""
    completion_column: Text = numerics("completion", examples=["reply"], read_when=FROM_LABELS)
    """Column of the reply: a text, a message, or a list of messages."""
    label_column: Text = numerics("label", examples=["thumbs_up"], read_when=FROM_LABELS)
    """Column of the label: true for desirable, false for undesirable."""
    chosen_column: Text = numerics("chosen", examples=["better"], read_when=FROM_PAIRS)
    """Column of the preferred reply of a pair."""
    rejected_column: Text = numerics("rejected", examples=["worse"], read_when=FROM_PAIRS)
    """Column of the rejected reply of a pair."""

    def get_reply_columns(self) -> Columns:
        """Return the columns of a reply and its label, or of both replies of a pair."""
        if self.from_pairs:
            return (
                (self.chosen_column, "chosen_column"),
                (self.rejected_column, "rejected_column"),
            )
        return (
            (self.completion_column, "completion_column"),
            (self.label_column, "label_column"),
        )


class TinyPairsConfig(DatasetConfig):
    """Pairs of short replies that ship with titanrun: a few words to repeat without shouting."""

    split: Literal["train", "held_out"] = numerics("train")
    """Part of the pairs. held_out shares no reply with train."""

    @property
    def restarts_positions(self) -> bool:
        """True: each conversation has its own positions."""
        return True

    @property
    def path(self) -> str:
        """File that ships with titanrun."""
        return str(PAIRS / f"{self.split}.jsonl")


class TinyPairsDatasetConfig(TinyPairsConfig):
    """Pairs of short replies that ship with titanrun: a few words to repeat without shouting."""

    name: Literal["tiny_pairs"] = numerics("tiny_pairs")
    builds: ClassVar = "titanrun.components.data.preference_dataset:build_tiny_pairs_dataset"
    compares: ClassVar = "pairs"


class TinyLabelledDatasetConfig(TinyPairsConfig):
    """Short replies with labels that ship with titanrun: a few words to repeat without shouting."""

    name: Literal["tiny_labelled"] = numerics("tiny_labelled")
    builds: ClassVar = "titanrun.components.data.labelled_dataset:build_tiny_labelled_dataset"
    compares: ClassVar = "labels"
