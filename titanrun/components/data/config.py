"""The dataset slot and its choices."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import numerics, performance
from titanrun.config.types import NonNegativeInt, PositiveInt, Text

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
