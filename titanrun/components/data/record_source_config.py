"""Where records are: files at a path, or one split of a dataset on the Hub at one commit."""

from typing import Any

from pydantic import ValidationInfo, field_validator

from titanrun.components.data.validators_config import CommitHash, refuse_path_list
from titanrun.config.base import Config
from titanrun.config.fields import numerics
from titanrun.config.types import Text


class RecordSourceFields(Config):
    """Fields of a dataset whose records are in files or on the Hub: exactly one of the two."""

    path: Text | None = numerics(None, examples=["data/records.jsonl"])
    """File, folder or glob. Files are read in sorted order. A stream also reads addresses: https,
    hf, s3, gs, az. Either `path` or `repo` is set."""
    repo: Text | None = numerics(None, examples=["HuggingFaceH4/ultrachat_200k"])
    """Dataset on the Hugging Face Hub: OWNER/NAME. Either `path` or `repo` is set."""
    subset: Text | None = numerics(None, examples=["main"])
    """Subset of the dataset on the Hub, if it has several."""
    split: Text = numerics("train", examples=["train_sft"])
    """Split of the dataset on the Hub."""
    revision: CommitHash | None = numerics(
        None, examples=["1588ec454efa1a09f29cd18ddd04fe05fc8653a2"]
    )
    """Commit of the dataset on the Hub, so that the data stays the same. If null, `titanrun train`
    asks the Hub which commit main is. `titanrun data pin RECIPE` does so for a recipe."""

    @field_validator("path", mode="before")
    @classmethod
    def _check_path(cls, value: Any, info: ValidationInfo) -> Any:
        is_dataset = getattr(cls, "slot", None) == "dataset"
        return refuse_path_list(value, info.data.get("name") if is_dataset else None)

    @property
    def source_name(self) -> str:
        """Name of the source for messages."""
        return self.path if self.path is not None else f"{self.repo} {self.split}"
