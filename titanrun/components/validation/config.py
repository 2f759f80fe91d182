"""The validation section."""

from titanrun.components.data.config import DataLoaderConfig, DatasetConfig
from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, section
from titanrun.config.types import OrAuto, PositiveInt, Text


class HeldOutConfig(Config):
    """One more set of held-out data."""

    id: Text = bookkeeping(examples=["code"])
    """What its loss is called: validation/<id>/loss."""
    dataset: DatasetConfig = component()
    """Held-out data."""


class ValidationConfig(Config):
    """Loss on held-out data, every `freq` steps."""

    enable: bool = bookkeeping(False)
    """Whether validation runs."""
    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """Held-out data; `auto` is the held-out part of tiny or tiny_chat where that trains, else none."""
    further: tuple[HeldOutConfig, ...] = bookkeeping(
        (), examples=[[{"id": "code", "dataset": {"name": "text", "path": "code.jsonl"}}]]
    )
    """More held-out sets, each with a loss of its own; the best checkpoint is that of `dataset`."""
    # torchtitan 0.2.2 validates 8 rows of 2048 tokens whatever it trains on
    local_batch_size: OrAuto[PositiveInt] = bookkeeping("auto", unit="rows", examples=[8])
    """Rows a forward pass takes on each data-parallel rank; `auto` is training.local_batch_size."""
    seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[2048])
    """Length of a row; `auto` is training.seq_len."""
    freq: PositiveInt = bookkeeping(10, unit="steps")
    """Steps between validations; the first and the last step are always validated."""
    steps: PositiveInt | None = bookkeeping(None, examples=[100])
    """Batches per validation, always the same ones; null: the whole set, once."""
    dataloader: DataLoaderConfig = section(DataLoaderConfig)
