"""Choices of the dataset slot for conversations."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.record_source_config import RecordSourceFields
from titanrun.components.data.role_weights_config import RoleWeights, check_role_weights
from titanrun.components.data.spec.chat_formats import ChatColumns
from titanrun.components.data.stream_config import CONVERSATION_SUFFIXES, StreamFields
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics, section
from titanrun.config.types import Text

TINY_CHAT = Path(__file__).parents[2] / "assets" / "tiny_chat"


class ConversationsConfig(DatasetConfig):
    """Sequences of conversations in which only assistant replies count in the loss."""

    packing: Literal["best_fit"] | None = numerics(None)
    """How conversations fill sequences. best_fit: as many per sequence as fit, without attention
    between them. null: one per sequence."""

    def to_chat_config(self) -> "ChatDatasetConfig":
        """Return the files of the conversations and how to read them."""
        raise TypeError(f"{type(self).__name__} does not name its conversations")

    @property
    def restarts_positions(self) -> bool:
        """True: each conversation has its own positions."""
        return True


class ChatDatasetConfig(StreamFields, RecordSourceFields, ConversationsConfig):
    """Conversations in files or on the Hub, templated and tokenized into an index.

    Files are jsonl, json, parquet or csv.
    """

    name: Literal["chat"] = numerics("chat")
    builds: ClassVar = "titanrun.components.data.chat_dataset:build_chat_dataset"
    encodes: ClassVar = "titanrun.components.data.window_encoders:ConversationEncoder"
    stream_suffixes: ClassVar = CONVERSATION_SUFFIXES
    layout: Literal["messages", "sharegpt", "alpaca", "prompt_completion"] = numerics("messages")
    """Format of the records. messages: a list of role and content. sharegpt: a list of from and
    value. alpaca: instruction, input, output. prompt_completion: two columns of texts or of lists
    of messages."""
    column: Text | None = numerics(None, examples=["conversation"])
    """Column of the list, for messages and sharegpt. If null, messages, or conversations for
    sharegpt."""
    prompt_column: Text | None = numerics(None, examples=["question"])
    """Column of the prompt, for prompt_completion. If null, prompt."""
    completion_column: Text | None = numerics(None, examples=["answer"])
    """Column of the completion, for prompt_completion. If null, completion."""
    system_column: Text | None = numerics(None, examples=["system"])
    """Column of a system text, which becomes the first message. An empty text, null or a record
    without the column is none. If null, only messages hold system texts."""
    train_on: Literal["replies", "last_reply", "all", "roles"] = numerics("replies")
    """Tokens that count in the loss: assistant replies, the last assistant reply, all tokens, or
    the roles in role_weights."""
    train_end_of_turn: bool = numerics(False)
    """Whether the token that ends an assistant's turn counts in the loss where the template writes
    it after the text that it marks as the reply. If false, only what the template marks counts."""
    role_weights: RoleWeights = section(RoleWeights)
    """Loss weight of the tokens of each role, with train_on: roles."""
    turn_weights: Text | None = numerics(None, examples=["weight"])
    """Key of a message that holds the loss weight of its tokens, multiplied by the weight of its
    role. 0 or false excludes the message, a missing key means 1. If null, messages have no
    weights."""
    too_long: Literal["drop", "cut", "refuse"] = numerics("drop")
    """Handling of conversations longer than a sequence: drop them, cut (truncate) them at its end,
    or refuse to start the run. Their number is logged."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        check_role_weights(self.train_on, self.role_weights, self.turn_weights)
        if self.train_end_of_turn and self.train_on == "all":
            message = "train_end_of_turn has no effect with train_on: all, which counts all tokens"
            raise conflict_error(message, "train_end_of_turn", hint="remove train_end_of_turn")
        return self

    def to_chat_config(self) -> "ChatDatasetConfig":
        """Return this config."""
        return self

    def get_columns(self) -> ChatColumns:
        """Return the columns that records are read from."""
        listed = "conversations" if self.layout == "sharegpt" else "messages"
        return ChatColumns(
            self.column or listed,
            self.prompt_column or "prompt",
            self.completion_column or "completion",
            self.turn_weights,
            self.system_column,
        )

    @property
    def has_token_weights(self) -> bool:
        """Whether roles or single messages have weights."""
        return self.train_on == "roles" or self.turn_weights is not None

    @property
    def trains_replies_only(self) -> bool:
        """Whether the tokens in the loss are those of replies, and no others."""
        return self.train_on in ("replies", "last_reply")


class TinyChatDatasetConfig(ConversationsConfig):
    """Short conversations that ship with titanrun: a few words to repeat."""

    name: Literal["tiny_chat"] = numerics("tiny_chat")
    builds: ClassVar = "titanrun.components.data.chat_dataset:build_tiny_chat_dataset"
    split: Literal["train", "held_out"] = numerics("train")
    """Part of the conversations. held_out shares no answer with train."""

    def to_chat_config(self) -> ChatDatasetConfig:
        """Return the config of the files that ship with titanrun."""
        return ChatDatasetConfig(path=str(TINY_CHAT / f"{self.split}.jsonl"), packing=self.packing)
