"""Choices of the dataset slot that torchtitan also has: C4 and a sample of it."""

from typing import ClassVar, Literal

from titanrun.components.data.config import FilesConfig, HubConfig
from titanrun.components.data.validators_config import CommitHash
from titanrun.config.fields import numerics
from titanrun.config.types import OrAuto, Text

C4_REPO, C4_COMMIT = "allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"


class C4Config(HubConfig):
    """English part of C4 at the commit that torchtitan pins."""

    repo: Text = numerics(C4_REPO, examples=["allenai/c4"])
    """Dataset on the Hub: OWNER/NAME."""
    subset: Text | None = numerics("en", examples=["realnewslike"])
    """Subset of the dataset."""
    revision: CommitHash = numerics(
        C4_COMMIT, examples=["607bd4c8450a42878aa9ddc051a65a055450ef87"]
    )
    """Commit, so that the data stays the same."""
    streaming: OrAuto[bool] = numerics("auto")  # type: ignore[assignment]
    """Whether documents are tokenized while the run trains, in bounded memory. If false, all are
    tokenized once, into an index, before the first step.

    `auto`: true without max_documents."""

    @property
    def is_streamed(self) -> bool:
        """Whether documents are tokenized while the run trains."""
        return self.max_documents is None if self.streaming == "auto" else bool(self.streaming)


class C4DatasetConfig(C4Config):
    """English part of C4 for training, 365 million documents."""

    name: Literal["c4"] = numerics("c4")
    builds: ClassVar = "titanrun.components.data.hub_dataset:build_hub_dataset"


class C4ValidationDatasetConfig(C4Config):
    """Held-out English part of C4, 365 thousand documents."""

    name: Literal["c4_validation"] = numerics("c4_validation")
    builds: ClassVar = "titanrun.components.data.hub_dataset:build_hub_dataset"
    split: Text = numerics("validation", examples=["train"])
    """Split of the dataset."""


class C4TestDatasetConfig(FilesConfig):
    """Sample documents of C4 that torchtitan keeps in its repository, for trial runs."""

    name: Literal["c4_test"] = numerics("c4_test")
    builds: ClassVar = "titanrun.components.data.text_dataset:build_text_dataset"
    missing_path_hint: ClassVar = (
        "copy the folder tests/assets/c4_test of torchtitan's repository to it, or set path"
    )
    path: Text = numerics("tests/assets/c4_test", examples=["../torchtitan/tests/assets/c4_test"])
    """Folder of the documents, relative to the working directory, as in torchtitan."""
