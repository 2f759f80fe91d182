"""The validation section."""

from dataclasses import replace

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, component, section
from titanrun.config.types import OrAuto, PositiveInt, Text


class HeldOutConfig(Config):
    """Additional set of held-out data."""

    id: Text = bookkeeping(examples=["code"])
    """Name of its loss: validation/<id>/loss."""
    dataset: DatasetConfig = component()
    """Held-out data."""


VALIDATING = ReadWhen(
    "settings-need-validation",
    ".enable",
    "is false",
    "set validation.enable: true, or remove it",
    values=(True,),
)
EVALUATING = replace(VALIDATING, fact="is_evaluated")


class ValidationConfig(Config):
    """Loss on held-out data, every `freq` steps."""

    enable: bool = bookkeeping(False)
    """Whether validation runs."""
    dataset: OrAuto[DatasetConfig] | None = component("auto", read_when=EVALUATING)
    """Held-out data. `auto` is the held-out part of tiny or tiny_chat if that is the training
    dataset, else null."""
    further: tuple[HeldOutConfig, ...] = bookkeeping(
        (),
        examples=[[{"id": "code", "dataset": {"name": "text", "path": "code.jsonl"}}]],
        read_when=VALIDATING,
    )
    """More held-out sets, each with its own loss. The best checkpoint is that of `dataset`."""
    # torchtitan 0.2.2 always validates 8 sequences of 2048 tokens, regardless of the training
    # batches
    local_batch_size: OrAuto[PositiveInt] = bookkeeping(
        "auto", unit="sequences", examples=[8], read_when=VALIDATING
    )
    """Sequences per forward pass on each data-parallel rank. `auto` is
    training.local_batch_size."""
    seq_len: OrAuto[PositiveInt] = bookkeeping(
        "auto", unit="tokens", examples=[2048], read_when=EVALUATING
    )
    """Sequence length. `auto` is training.seq_len."""
    freq: PositiveInt = bookkeeping(10, unit="steps", read_when=VALIDATING)
    """Steps between validations. The first and the last step are always validated."""
    steps: PositiveInt | None = bookkeeping(None, examples=[100], read_when=VALIDATING)
    """Batches per validation, always the same ones. If null, the whole set, once."""
    dataloader: DataLoaderConfig = section(DataLoaderConfig, read_when=VALIDATING)
