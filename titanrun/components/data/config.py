"""The dataset slot and its choices."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.components.data.chat_layouts import Columns
from titanrun.components.data.role_weights import RoleWeights, check_weights
from titanrun.components.data.spelling import Commit, check_format
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import component, numerics, performance, section
from titanrun.config.types import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, Text

TINY_CHAT = Path(__file__).parents[2] / "assets" / "tiny_chat"


class DatasetConfig(ComponentConfig):
    """Where rows of tokens come from."""

    slot: ClassVar = "dataset"
    is_slot: ClassVar = True
    name: str = numerics()
    shuffle: bool = numerics(True)
    """Whether the rows are dealt in a seeded random order, another one each epoch; false: in the given order."""
    repeat: bool = numerics(True)
    """Whether the data starts again when it runs out; false: the run ends there, with a last checkpoint."""

    @property
    def needs_tokenizer(self) -> bool:
        """Whether it turns text into tokens."""
        return True

    @property
    def gives(self) -> str:
        """What its rows hold, tokens or images, which has to be what the model takes."""
        return "tokens"

    @property
    def weighs_tokens(self) -> bool:
        """Whether some of its tokens may weigh more in the loss than others, which the loss has to be made for."""
        return False

    @property
    def restarts_positions(self) -> bool:
        """Whether the positions of its rows start anew where a document begins."""
        return False


class TinyDatasetConfig(DatasetConfig):
    """The corpus of short documents that ships with titanrun."""

    name: Literal["tiny"] = numerics("tiny")
    builds: ClassVar = "titanrun.components.data.tiny:tiny_rows"
    split: Literal["train", "held_out"] = numerics("train")
    """Which part of the corpus; validation takes held_out."""


class Filter(Config):
    """Which records are read, by one column."""

    column: Text = numerics(examples=["language"])
    """Column that is looked at."""
    one_of: tuple[Text, ...] = numerics((), examples=[["en", "de"]])
    """Texts that it may hold; nothing here: any."""
    at_least: float | None = numerics(None, examples=[0.5])
    """Smallest number that it may hold; null: any."""
    at_most: float | None = numerics(None, examples=[0.9])
    """Largest number that it may hold; null: any."""
    min_characters: NonNegativeInt | None = numerics(None, unit="characters", examples=[200])
    """Shortest text that it may hold; null: any."""
    max_characters: NonNegativeInt | None = numerics(None, unit="characters", examples=[100000])
    """Longest text that it may hold; null: any."""

    @property
    def has_limits(self) -> bool:
        """Whether it keeps anything out."""
        limits = (self.at_least, self.at_most, self.min_characters, self.max_characters)
        return bool(self.one_of) or any(limit is not None for limit in limits)


class DocumentsConfig(DatasetConfig):
    """Rows of documents out of records with columns."""

    column: Text = numerics("text")
    """Column that holds the text."""
    format: Text | None = numerics(None, examples=["{title}\n\n{body}"])
    """Text with columns in braces, where a document is made of several; null: the column alone."""
    filters: tuple[Filter, ...] = numerics(
        (), examples=[[{"column": "language", "one_of": ["en"]}]]
    )
    """Only records that pass all of these are read."""
    max_documents: PositiveInt | None = numerics(None, unit="documents", examples=[10000])
    """How many documents are read, the first ones that pass the filters; null: all."""
    add_bos: bool = numerics(True)
    """Whether each document begins with the tokenizer's begin-of-text token, if it has one."""
    add_eos: bool = numerics(True)
    """Whether each document ends with the tokenizer's end-of-text token, if it has one."""
    packing: Literal["windows", "documents", "best_fit"] | None = numerics("windows")
    """windows: documents run on across rows and are attended to across their ends; documents: they run on across rows, and none
    sees another or is told from another; best_fit: as many whole documents in a row as fit, none of which sees another; null: each in a
    row of its own."""
    too_long: Literal["split", "drop", "cut", "refuse"] = numerics("split")
    """What becomes of documents longer than a row where rows hold whole ones (best_fit, null): split into several, left out, cut at the
    row's end, or the run does not start. How many is logged."""
    bad_records: Literal["refuse", "skip"] = numerics("refuse")
    """What becomes of records that cannot be read: the run does not start, or they are left out and counted."""
    max_bad_share: Fraction = numerics(0.001)
    """The largest share of all records that may be left out so."""

    @property
    def restarts_positions(self) -> bool:
        """Whether the positions of its rows start anew where a document begins."""
        return self.packing != "windows"

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        check_format(self.format)
        return self


class HubConfig(DocumentsConfig):
    """Documents of a dataset on the Hugging Face Hub, at one commit, tokenised once into an index."""

    repo: Text = numerics(examples=["allenai/c4"])
    """The dataset on the Hub: OWNER/NAME."""
    subset: Text | None = numerics(None, examples=["en"])
    """Which of its subsets, where it has several."""
    split: Text = numerics("train", examples=["validation"])
    """Which of its splits."""
    revision: Commit = numerics(examples=["1588ec454efa1a09f29cd18ddd04fe05fc8653a2"])
    """The commit, so that the data stay the same."""
    streaming: bool = performance(False)
    """Whether records are fetched as they are read, max_documents and no more; false: the whole split is fetched first, into the Hub's own
    cache."""


class HubDatasetConfig(HubConfig):
    """Documents of a dataset on the Hugging Face Hub, at one commit, tokenised once into an index."""

    name: Literal["hub"] = numerics("hub")
    builds: ClassVar = "titanrun.components.data.hub:hub_rows"


class FilesConfig(DocumentsConfig):
    """Documents of local files, tokenised once into an index."""

    path: Text = numerics(examples=["data/*.jsonl"])
    """A file, a folder or a glob; files are read in sorted order. A .txt file is one document, with the one column text."""


class TextDatasetConfig(FilesConfig):
    """Local text: jsonl, json, parquet, csv, arrow or txt files, tokenised once into an index."""

    name: Literal["text"] = numerics("text")
    builds: ClassVar = "titanrun.components.data.text:text_rows"


class TokensDatasetConfig(DatasetConfig):
    """Token ids from a .npy file: [rows, seq_len + 1] is taken row by row, one dimension is cut into such rows."""

    name: Literal["tokens"] = numerics("tokens")
    builds: ClassVar = "titanrun.components.data.tokens:tokens_rows"
    path: Text = numerics(examples=["data/tokens.npy"])
    """The .npy file, of an integer type."""
    shuffle: bool = numerics(False)
    """Whether the rows are dealt in a seeded random order; false: in the given order."""

    @property
    def needs_tokenizer(self) -> bool:
        """What it holds are tokens."""
        return False


class ConversationsConfig(DatasetConfig):
    """Rows of conversations, of which only what the assistant says counts in the loss."""

    packing: Literal["best_fit"] | None = numerics(None)
    """best_fit: as many conversations in a row as fit, none of which sees another; null: each in a row of its own."""

    def as_chat(self) -> "ChatDatasetConfig":
        """Which files hold the conversations, and how they are read."""
        raise TypeError(f"{type(self).__name__} does not say where its conversations are")

    @property
    def restarts_positions(self) -> bool:
        """Each conversation has positions of its own."""
        return True


class ChatDatasetConfig(ConversationsConfig):
    """Local conversations: jsonl, json, parquet or csv files, put into words by a chat template and tokenised once into an index."""

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
    train_on: Literal["replies", "last_reply", "all", "roles"] = numerics("replies")
    """Which tokens count in the loss: what the assistant says, the last thing it says, everything, or what role_weights names."""
    role_weights: RoleWeights = section(RoleWeights)
    """What the tokens of each role weigh, with train_on: roles."""
    turn_weights: Text | None = numerics(None, examples=["weight"])
    """Key of a message that holds what its tokens weigh in the loss, times the weight of its role: 0 or false, nothing is learned of it;
    without the key 1. null: messages are not asked."""
    too_long: Literal["drop", "cut", "refuse"] = numerics("drop")
    """What becomes of conversations longer than a row: left out, cut at its end, or the run does not start. How many is logged."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        check_weights(self.train_on, self.role_weights, self.turn_weights)
        return self

    def as_chat(self) -> "ChatDatasetConfig":
        """This very config."""
        return self

    def columns(self) -> Columns:
        """The columns that records are read from."""
        listed = "conversations" if self.layout == "sharegpt" else "messages"
        return Columns(
            self.column or listed,
            self.prompt_column or "prompt",
            self.completion_column or "completion",
            self.turn_weights,
        )

    @property
    def weighs_tokens(self) -> bool:
        """Whether weights are named: of roles, or of single messages."""
        return self.train_on == "roles" or self.turn_weights is not None


class PreferenceDatasetConfig(DatasetConfig):
    """Pairs of replies to the same question, of which one is preferred, for the loss dpo: jsonl, parquet or csv files.

    The last reply of each conversation is compared.
    """

    name: Literal["preference"] = numerics("preference")
    builds: ClassVar = "titanrun.components.data.preference:preference_rows"
    path: Text = numerics(examples=["data/pairs.jsonl"])
    """A file, a folder or a glob; files are read in sorted order."""
    prompt_column: Text = numerics("prompt", examples=["question"])
    """Column of what was said before both replies, a text or a list of messages; records without it hold whole conversations."""
    chosen_column: Text = numerics("chosen", examples=["better"])
    """Column of the reply that is preferred: a text, or a list of messages."""
    rejected_column: Text = numerics("rejected", examples=["worse"])
    """Column of the other reply."""
    template: Text | None = numerics(None, examples=["chat_template.jinja"])
    """File with a Jinja chat template; null: the one in the tokenizer's folder."""
    too_long: Literal["drop", "refuse"] = numerics("drop")
    """What becomes of pairs longer than a row: left out, or the run does not start. How many is logged."""

    @property
    def restarts_positions(self) -> bool:
        """Each conversation has positions of its own."""
        return True


class TinyChatDatasetConfig(ConversationsConfig):
    """The short conversations that ship with titanrun: a few words to say again."""

    name: Literal["tiny_chat"] = numerics("tiny_chat")
    builds: ClassVar = "titanrun.components.data.chat:tiny_chat_rows"
    split: Literal["train", "held_out"] = numerics("train")
    """Which part; held_out shares no answer with train."""

    def as_chat(self) -> ChatDatasetConfig:
        """The files that ship."""
        return ChatDatasetConfig(path=str(TINY_CHAT / f"{self.split}.jsonl"), packing=self.packing)


class ImagesConfig(DatasetConfig):
    """Rows of pictures with captions, each a square cut out of the picture at a place that is drawn each time."""

    extra: ClassVar = "flux"
    package: ClassVar = "PIL"
    image_size: PositiveInt = numerics(256, unit="pixels")
    """Side of the square; smaller pictures are left out, the shorter side of larger ones is made so long."""

    @property
    def needs_tokenizer(self) -> bool:
        """Text encoders have tokenizers of their own."""
        return False

    @property
    def gives(self) -> str:
        """Pictures with captions."""
        return "images"


class FolderImagesConfig(ImagesConfig):
    """Local pictures (jpg, png, webp), each with a text file of the same name beside it that holds its caption."""

    name: Literal["images"] = numerics("images")
    builds: ClassVar = "titanrun.components.data.images:folder_rows"
    path: Text = numerics(examples=["data/pictures"])
    """A folder, which is searched at every depth, or a glob; pictures are taken in sorted order."""


class WebDatasetConfig(ImagesConfig):
    """Local tar files of pictures and texts (webdataset): members with the same name up to the first dot belong together."""

    name: Literal["webdataset"] = numerics("webdataset")
    builds: ClassVar = "titanrun.components.data.images:webdataset_rows"
    path: Text = numerics(examples=["data/cc12m/*.tar"])
    """A file, a folder or a glob; files are read in sorted order. They must not be compressed."""


class TinyImagesConfig(ImagesConfig):
    """The pictures of coloured shapes that ship with titanrun."""

    name: Literal["tiny_images"] = numerics("tiny_images")
    builds: ClassVar = "titanrun.components.data.images:tiny_rows"
    split: Literal["train", "held_out"] = numerics("train")
    """Which part; held_out shares no combination of shape, colour and place with train."""


class MixtureSource(Config):
    """One dataset of a mixture."""

    dataset: DatasetConfig = component()
    """Where its rows come from; shuffle and repeat are the mixture's."""
    weight: PositiveFloat = numerics(1.0)
    """Its share of the rows, beside the other weights."""
    max_rows: PositiveInt | None = numerics(None, unit="rows", examples=[10000])
    """How many of its rows are used, the first ones; null: all."""
    epochs: PositiveFloat | None = numerics(None, unit="epochs", examples=[2.0])
    """How often a pass over the mixture reads it at most: the pass ends where a source has been read so often; null: as often as the
    weights ask."""


class MixtureDatasetConfig(DatasetConfig):
    """Rows of several datasets, in shares that weights say. Without epochs a pass reads every row at least once."""

    name: Literal["mixture"] = numerics("mixture")
    builds: ClassVar = "titanrun.components.data.mixture:mixture_rows"
    sources: tuple[MixtureSource, ...] = numerics(
        (),
        examples=[
            [
                {"dataset": {"name": "text", "path": "web/*.jsonl"}, "weight": 0.8},
                {"dataset": "tiny", "weight": 0.2},
            ]
        ],
    )
    """The datasets, each with its weight."""

    @property
    def gives(self) -> str:
        """Tokens; pictures are not mixed."""
        return (
            "tokens"
            if all(source.dataset.gives == "tokens" for source in self.sources)
            else "a mixture with images"
        )

    @property
    def needs_tokenizer(self) -> bool:
        """Whether one of its sources turns text into tokens."""
        return any(source.dataset.needs_tokenizer for source in self.sources)

    @property
    def restarts_positions(self) -> bool:
        """Whether the positions of some of its rows start anew where a document begins."""
        return any(source.dataset.restarts_positions for source in self.sources)


class DataLoaderConfig(Config):
    """How rows get from the data to the device; which rows, and in which order, does not depend on it."""

    num_workers: NonNegativeInt = performance(0, unit="processes", resume=True)
    """Processes on each rank that prepare rows; 0: the rank does it between its steps."""
    persistent_workers: bool = performance(False, resume=True)
    """Whether these processes stay when the data starts again; false: an epoch, and a validation, starts its own."""
    prefetch_factor: PositiveInt | None = performance(None, unit="batches", resume=True)
    """Batches that each process prepares ahead; null: 2."""
    pin_memory: bool = performance(False, resume=True)
    """Whether batches of tokens wait in page-locked memory, from which they are copied while the device computes; the CPU needs no copy."""
