"""The validation section."""

from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, component, numerics, section
from titanrun.config.types import OrAuto, PositiveInt, Text

MAX_SHARE = 0.5
MIN_COUNT = 2


class HoldoutSizeType:
    """Share of the documents, or their number: 0.05 or 500."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(validate_holdout_size, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        share = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SHARE}
        return {"anyOf": [share, {"type": "integer", "minimum": MIN_COUNT}]}


def validate_holdout_size(value: float) -> float:
    """Return a share as it is, and a number of documents as an integer."""
    if 0 < value <= MAX_SHARE:
        return value
    if value >= MIN_COUNT and value == int(value):
        return int(value)
    context = {"help": "0.05 holds out 5% of the documents, 500 holds out 500"}
    raise PydanticCustomError(
        "a_share_up_to_0.5_or_a_whole_number_from_2", "is neither a share nor a number", context
    )


HoldoutSize: TypeAlias = Annotated[float, HoldoutSizeType()]


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

    enable: OrAuto[bool] = bookkeeping("auto")
    """Whether validation runs. `auto` is true if `holdout` is set."""
    holdout: HoldoutSize | None = numerics(None, unit="documents", examples=[0.05, 500])
    """Documents of training.dataset that are held out for validation: a share up to 0.5, or from 2
    on their number. Training leaves them out, also while `enable` is false. A hash of each document
    decides: every run with this share holds out the same ones. If null, none."""
    holdout_by: Text | None = numerics(
        None,
        examples=["conversation_id"],
        read_when=ReadWhen(
            "settings-need-holdout",
            ".holdout",
            "is null",
            "set validation.holdout, or remove it",
            not_values=(None,),
        ),
    )
    """Column that is hashed instead of the document: records with equal values stay together. If
    null, the text, the conversation, or the prompt of a pair."""
    dataset: OrAuto[DatasetConfig] | None = component("auto", read_when=EVALUATING)
    """Held-out data. `auto` is the held-out part of tiny or tiny_chat if that is the training
    dataset, else null. If null and `holdout` is set, the documents that are held out."""
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
