"""The dataset slot and its choices."""

from pathlib import Path
from typing import ClassVar, Literal

from titanrun.components.data.chat_layouts import Columns
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import numerics, performance
from titanrun.config.types import NonNegativeInt, PositiveInt, Text

TINY_CHAT = Path(__file__).parents[2] / "assets" / "tiny_chat"
LOADER_PROCESSES = "data loading in processes of its own"


class DatasetConfig(ComponentConfig):
    """Where rows of tokens come from."""

    slot: ClassVar = "dataset"
    is_slot: ClassVar = True
    name: str = numerics()
    needs_tokenizer: ClassVar[bool] = True
    restarts_positions: ClassVar[bool] = False
    """Whether the positions of its rows start anew where a document begins."""

    shuffle: bool = numerics(True)
    """Whether the rows are dealt in a seeded random order, another one each epoch; false: in the given order."""
    repeat: bool = numerics(True)
    """Whether the data starts again when it runs out; false: the run ends there, with a last checkpoint."""


class TinyDatasetConfig(DatasetConfig):
    """The corpus of short documents that ships with titanrun."""

    name: Literal["tiny"] = numerics("tiny")
    builds: ClassVar = "titanrun.components.data.tiny:tiny_rows"
    split: Literal["train", "held_out"] = numerics("train")
    """Which part of the corpus; validation takes held_out."""


class TextDatasetConfig(DatasetConfig):
    """Local text: jsonl, parquet or txt files, tokenised once into an index in the run directory."""

    name: Literal["text"] = numerics("text")
    builds: ClassVar = "titanrun.components.data.text:text_rows"
    path: Text = numerics(examples=["data/*.jsonl"])
    """A file, a folder or a glob; files are read in sorted order. A .txt file is one document."""
    column: Text = numerics("text")
    """Column that holds the text, in jsonl and parquet files."""


class TokensDatasetConfig(DatasetConfig):
    """Token ids from a .npy file: [rows, seq_len + 1] is taken row by row, one dimension is cut into such rows."""

    name: Literal["tokens"] = numerics("tokens")
    builds: ClassVar = "titanrun.components.data.tokens:tokens_rows"
    needs_tokenizer: ClassVar[bool] = False
    path: Text = numerics(examples=["data/tokens.npy"])
    """The .npy file, of an integer type."""
    shuffle: bool = numerics(False)
    """Whether the rows are dealt in a seeded random order; false: in the given order."""


class ConversationsConfig(DatasetConfig):
    """Rows of conversations, of which only what the assistant says counts in the loss."""

    restarts_positions: ClassVar[bool] = True
    packing: Literal["best_fit"] | None = numerics(None)
    """best_fit: as many conversations in a row as fit, none of which sees another; null: each in a row of its own."""

    def as_chat(self) -> "ChatDatasetConfig":
        """Which files hold the conversations, and how they are read."""
        raise TypeError(f"{type(self).__name__} does not say where its conversations are")


class ChatDatasetConfig(ConversationsConfig):
    """Local conversations: jsonl, parquet or csv files, put into words by a chat template and tokenised once into the run directory."""

    name: Literal["chat"] = numerics("chat")
    builds: ClassVar = "titanrun.components.data.chat:chat_rows"
    path: Text = numerics(examples=["data/chats.jsonl"])
    """A file, a folder or a glob; files are read in sorted order."""
    layout: Literal["messages", "sharegpt", "alpaca", "prompt_completion"] = numerics("messages")
    """messages: a list of role and content; sharegpt: a list of from and value; alpaca: instruction, input, output; prompt_completion: two
    columns."""
    column: Text | None = numerics(None, examples=["conversation"])
    """Column of the list, for messages and sharegpt; null: messages, or conversations for sharegpt."""
    prompt_column: Text | None = numerics(None, examples=["question"])
    """Column of what the user asks, for prompt_completion; null: prompt."""
    completion_column: Text | None = numerics(None, examples=["answer"])
    """Column of what the assistant answers, for prompt_completion; null: completion."""
    template: Text | None = numerics(None, examples=["chat_template.jinja"])
    """File with a Jinja chat template; null: the one in the tokenizer's folder."""
    train_on: Literal["replies", "last_reply", "all"] = numerics("replies")
    """Which tokens count in the loss: what the assistant says, the last thing it says, or everything."""
    too_long: Literal["drop", "cut", "refuse"] = numerics("drop")
    """What becomes of conversations longer than a row: left out, cut at its end, or the run does not start. How many is logged."""

    def as_chat(self) -> "ChatDatasetConfig":
        """This very config."""
        return self

    def columns(self) -> Columns:
        """The columns that records are read from."""
        listed = "conversations" if self.layout == "sharegpt" else "messages"
        return Columns(self.column or listed, self.prompt_column or "prompt", self.completion_column or "completion")


class TinyChatDatasetConfig(ConversationsConfig):
    """The short conversations that ship with titanrun: a few words to say again."""

    name: Literal["tiny_chat"] = numerics("tiny_chat")
    builds: ClassVar = "titanrun.components.data.chat:tiny_chat_rows"
    split: Literal["train", "held_out"] = numerics("train")
    """Which part; held_out shares no answer with train."""

    def as_chat(self) -> ChatDatasetConfig:
        """The files that ship."""
        return ChatDatasetConfig(path=str(TINY_CHAT / f"{self.split}.jsonl"), packing=self.packing)


class DataLoaderConfig(Config):
    """How rows get from the data to the device; which rows, and in which order, does not depend on it."""

    num_workers: NonNegativeInt = performance(0, unit="processes", resume=True, not_built=LOADER_PROCESSES)
    """Processes on each rank that prepare rows; 0: the rank does it between its steps."""
    persistent_workers: bool = performance(False, resume=True, not_built=LOADER_PROCESSES)
    """Whether these processes stay when the data starts again."""
    prefetch_factor: PositiveInt | None = performance(None, unit="batches", resume=True, not_built=LOADER_PROCESSES)
    """Batches that each process prepares ahead; null: PyTorch's default of 2."""
    pin_memory: bool = performance(False, resume=True, not_built="pinned memory for batches")
    """Whether batches wait in page-locked memory, from which they are copied while the device computes."""
