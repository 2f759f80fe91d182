"""The dataset slot and its choices."""

from typing import Any, ClassVar, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from titanrun.components.data.spec.shuffle_condition import SHUFFLES
from titanrun.components.data.stream_config import HUB_STREAM_SUFFIXES, StreamFields
from titanrun.components.data.validators_config import (
    CommitHash,
    check_column_format,
    refuse_path_list,
)
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import ReadWhen, component, numerics
from titanrun.config.types import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, Text


class DatasetConfig(ComponentConfig):
    """Source of token sequences."""

    slot: ClassVar = "dataset"
    is_slot: ClassVar = True
    builds_what: ClassVar = (
        "a dataset with len(), items by index, check(), fingerprint, max_token_id"
    )
    built_attributes: ClassVar = ("__len__", "__getitem__", "check", "fingerprint", "max_token_id")
    name: str = numerics()
    shuffle: bool = numerics(True, read_when=SHUFFLES)
    """Whether to shuffle sequences with a seed, in another order each epoch. If false, they keep
    their order."""
    repeat: bool = numerics(True)
    """Whether to restart the data when it is exhausted. If false, the run ends there, with a last
    checkpoint."""
    missing_path_hint: ClassVar[str | None] = None
    """How to get the data if its path does not exist, for data that one known place has."""
    compares: ClassVar[Literal["pairs", "labels"] | None] = None
    """What each sequence is for a loss: a pair of replies, a reply with a label, or None for
    tokens."""

    @field_validator("path", mode="before", check_fields=False)
    @classmethod
    def _check_path(cls, value: Any, info: ValidationInfo) -> Any:
        return refuse_path_list(value, info.data.get("name"))

    @property
    def needs_tokenizer(self) -> bool:
        """Whether the dataset tokenizes text."""
        return True

    @property
    def modality(self) -> str:
        """Modality of the samples, tokens or images, which must match the model."""
        return "tokens"

    @property
    def is_streamed(self) -> bool:
        """Whether documents are tokenized while the run trains."""
        return False

    @property
    def has_token_weights(self) -> bool:
        """Whether tokens may have different loss weights, which the loss must support."""
        return False

    @property
    def restarts_positions(self) -> bool:
        """Whether positions restart at each document within a sequence."""
        return False


class TinyDatasetConfig(DatasetConfig):
    """Corpus of short documents that ships with titanrun."""

    name: Literal["tiny"] = numerics("tiny")
    builds: ClassVar = "titanrun.components.data.tiny_dataset:build_tiny_dataset"
    split: Literal["train", "held_out"] = numerics("train")
    """Part of the corpus. Validation uses held_out."""


class Filter(Config):
    """Filter of records by one column."""

    column: Text = numerics(examples=["language"])
    """Column to compare."""
    one_of: tuple[Text, ...] = numerics((), examples=[["en", "de"]])
    """Allowed texts. If empty, any."""
    at_least: float | None = numerics(None, examples=[0.5])
    """Smallest allowed number. If null, any."""
    at_most: float | None = numerics(None, examples=[0.9])
    """Largest allowed number. If null, any."""
    min_characters: NonNegativeInt | None = numerics(None, unit="characters", examples=[200])
    """Shortest allowed text. If null, any."""
    max_characters: NonNegativeInt | None = numerics(None, unit="characters", examples=[100000])
    """Longest allowed text. If null, any."""

    @property
    def has_limits(self) -> bool:
        """Whether the filter excludes anything."""
        limits = (self.at_least, self.at_most, self.min_characters, self.max_characters)
        return bool(self.one_of) or any(limit is not None for limit in limits)


class DocumentsConfig(DatasetConfig):
    """Sequences of documents from records with columns."""

    column: Text = numerics("text")
    """Column that holds the text."""
    format: Text | None = numerics(None, examples=["{title}\n\n{body}"])
    """Template with column names in braces, for documents made of several columns. If null, the
    text is the column alone."""
    filters: tuple[Filter, ...] = numerics(
        (), examples=[[{"column": "language", "one_of": ["en"]}]]
    )
    """Filters of the records. A record must pass all of them."""
    max_documents: PositiveInt | None = numerics(None, unit="documents", examples=[10000])
    """Maximum number of documents, the first ones that pass the filters. If null, all."""
    add_bos: bool = numerics(True)
    """Whether each document begins with the tokenizer's begin-of-text token, if it has one."""
    add_eos: bool = numerics(True)
    """Whether each document ends with the tokenizer's end-of-text token, if it has one."""
    packing: Literal["windows", "documents", "best_fit"] | None = numerics("windows")
    """How documents fill sequences. windows: documents continue across sequences, and attention
    crosses their boundaries. documents: documents continue across sequences, but neither attention
    nor labels cross their boundaries. best_fit: as many whole documents per sequence as fit,
    without attention between them. null: one document per sequence."""
    too_long: Literal["split", "drop", "cut", "refuse"] = numerics("split")
    """Handling of documents longer than a sequence, with packing best_fit or null: split, drop or
    cut (truncate) them, or refuse to start the run. Their number is logged."""
    bad_records: Literal["refuse", "skip"] = numerics("refuse")
    """Handling of records that cannot be read: refuse to start the run, or skip and count them."""
    max_bad_share: Fraction = numerics(0.001)
    """Largest share of all records that may be skipped."""

    @property
    def restarts_positions(self) -> bool:
        """Whether positions restart at each document within a sequence."""
        return self.packing != "windows"

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        check_column_format(self.format)
        return self


class HubConfig(StreamFields, DocumentsConfig):
    """Documents of a Hugging Face Hub dataset at one commit.

    They are tokenized once into an index, or while the run trains.
    """

    encodes: ClassVar = "titanrun.components.data.window_encoders:DocumentEncoder"
    # the library reads a line of a .txt file as a record
    stream_suffixes: ClassVar = HUB_STREAM_SUFFIXES

    repo: Text = numerics(examples=["allenai/c4"])
    """Dataset on the Hub: OWNER/NAME."""
    subset: Text | None = numerics(None, examples=["en"])
    """Subset of the dataset, if it has several."""
    split: Text = numerics("train", examples=["validation"])
    """Split of the dataset."""
    revision: CommitHash | None = numerics(
        None, examples=["1588ec454efa1a09f29cd18ddd04fe05fc8653a2"]
    )
    """Commit, so that the data stays the same. If null, `titanrun train` asks the Hub which commit
    main is. `titanrun data pin RECIPE` does so for a recipe."""


class HubDatasetConfig(HubConfig):
    """Documents of a Hugging Face Hub dataset at one commit.

    They are tokenized once into an index, or while the run trains.
    """

    name: Literal["hub"] = numerics("hub")
    builds: ClassVar = "titanrun.components.data.hub_dataset:build_hub_dataset"


class FilesConfig(StreamFields, DocumentsConfig):
    """Documents of files, tokenized once into an index, or while the run trains."""

    encodes: ClassVar = "titanrun.components.data.window_encoders:DocumentEncoder"
    path: Text = numerics(examples=["data/*.jsonl"])
    """File, folder or glob. Files are read in sorted order. A .txt file is one document, in a
    column named text. A stream also reads addresses: https, hf, s3, gs, az."""


class TextDatasetConfig(FilesConfig):
    """Text: jsonl, json, parquet, csv, arrow or txt files, tokenized once into an index."""

    name: Literal["text"] = numerics("text")
    builds: ClassVar = "titanrun.components.data.text_dataset:build_text_dataset"


HAS_DOCUMENTS = ReadWhen(
    "settings-need-documents",
    ".layout",
    "is npy",
    "set layout to datatrove or megatron, or remove the setting",
    not_values=("npy",),
)


class TokensDatasetConfig(DatasetConfig):
    """Token ids that other software has written.

    Each row of a .npy array [sequences, seq_len + 1] is one sequence. A one-dimensional array is
    split into such sequences. Files of datatrove and Megatron hold documents.
    """

    name: Literal["tokens"] = numerics("tokens")
    builds: ClassVar = "titanrun.components.data.token_dataset:build_token_dataset"
    path: Text = numerics(examples=["data/tokens.npy"])
    """The .npy file, of an integer type; of the other layouts a file, folder or glob."""
    layout: Literal["npy", "datatrove", "megatron"] = numerics("npy")
    """What wrote the files: numpy.save, datatrove's DocumentTokenizer (.ds with .ds.index and
    .ds.metadata), or Megatron's IndexedDataset (.bin with .idx)."""
    packing: Literal["windows", "documents", "best_fit"] | None = numerics(
        "windows", read_when=HAS_DOCUMENTS
    )
    """How documents fill sequences, as in dataset text."""
    too_long: Literal["split", "drop", "cut", "refuse"] = numerics("split", read_when=HAS_DOCUMENTS)
    """Handling of documents longer than a sequence, as in dataset text."""
    shuffle: bool = numerics(False, read_when=SHUFFLES)
    """Whether to shuffle sequences with a seed. If false, they keep their order."""

    @property
    def needs_tokenizer(self) -> bool:
        """False: the file holds token ids already."""
        return False

    @property
    def restarts_positions(self) -> bool:
        """Whether positions restart at each document within a sequence."""
        return self.layout != "npy" and self.packing != "windows"


class ImagesConfig(DatasetConfig):
    """Images with captions, cropped to a square at a new random position each time."""

    extra: ClassVar = "flux"
    package: ClassVar = "PIL"
    image_size: PositiveInt = numerics(256, unit="pixels")
    """Side length of the square. Smaller images are dropped, larger ones are resized so that the
    shorter side has this length."""

    @property
    def needs_tokenizer(self) -> bool:
        """False: text encoders have their own tokenizers."""
        return False

    @property
    def modality(self) -> str:
        """Modality of the samples: images with captions."""
        return "images"


class FolderImagesConfig(ImagesConfig):
    """Local images (jpg, png, webp), each with a caption in a text file of the same name."""

    name: Literal["images"] = numerics("images")
    builds: ClassVar = "titanrun.components.data.image_dataset:build_image_folder_dataset"
    path: Text = numerics(examples=["data/pictures"])
    """Folder, searched recursively, or a glob. Images are read in sorted order."""


class WebDatasetConfig(ImagesConfig):
    """Local tar files (webdataset) of images and texts, paired by names up to the first dot."""

    name: Literal["webdataset"] = numerics("webdataset")
    builds: ClassVar = "titanrun.components.data.image_dataset:build_webdataset"
    path: Text = numerics(examples=["data/cc12m/*.tar"])
    """File, folder or glob. Files are read in sorted order. They must not be compressed."""


class TinyImagesConfig(ImagesConfig):
    """Images of colored shapes that ship with titanrun."""

    name: Literal["tiny_images"] = numerics("tiny_images")
    builds: ClassVar = "titanrun.components.data.image_dataset:build_tiny_image_dataset"
    split: Literal["train", "held_out"] = numerics("train")
    """Part of the images. held_out shares no combination of shape, color and position with
    train."""


class MixtureSource(Config):
    """One dataset of a mixture."""

    dataset: DatasetConfig = component()
    """Source of the sequences. shuffle and repeat are set at the mixture."""
    weight: PositiveFloat = numerics(1.0)
    """Share of the sequences, relative to the other weights."""
    max_rows: PositiveInt | None = numerics(None, unit="sequences", examples=[10000])
    """Maximum number of sequences to use, the first ones. If null, all."""
    epochs: PositiveFloat | None = numerics(None, unit="epochs", examples=[2.0])
    """Maximum number of times that a run reads this dataset: the first epoch of the mixture ends
    when it has been read that often. Later ones read the others. If null, there is no maximum."""


class MixtureDatasetConfig(DatasetConfig):
    """Sequences of several datasets, in shares given by weights.

    If no source sets epochs, one epoch of the mixture reads every sequence at least once. The next
    one goes on in each source where the last one ended.
    """

    name: Literal["mixture"] = numerics("mixture")
    builds: ClassVar = "titanrun.components.data.mixture_dataset:build_mixture_dataset"
    sources: tuple[MixtureSource, ...] = numerics(
        (),
        examples=[
            [
                {"dataset": {"name": "text", "path": "web/*.jsonl"}, "weight": 0.8},
                {"dataset": "tiny", "weight": 0.2},
            ]
        ],
    )
    """Datasets with their weights."""

    @property
    def modality(self) -> str:
        """Modality of the samples: tokens. Images cannot be mixed."""
        return (
            "tokens"
            if all(source.dataset.modality == "tokens" for source in self.sources)
            else "a mixture with images"
        )

    @property
    def is_streamed(self) -> bool:
        """Whether one of the sources is a stream."""
        return any(source.dataset.is_streamed for source in self.sources)

    @property
    def needs_tokenizer(self) -> bool:
        """Whether one of the sources tokenizes text."""
        return any(source.dataset.needs_tokenizer for source in self.sources)

    @property
    def restarts_positions(self) -> bool:
        """Whether positions restart at each document in the sequences of some source."""
        return any(source.dataset.restarts_positions for source in self.sources)
