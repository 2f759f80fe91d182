"""Choices of the dataset slot that torchtitan has too: C4, and a sample of it."""

from typing import ClassVar, Literal

from titanrun.components.data.config import FilesConfig, HubConfig
from titanrun.components.data.spelling import Commit
from titanrun.config.fields import numerics, performance
from titanrun.config.types import Text

C4_REPO, C4_COMMIT = "allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"


class C4Config(HubConfig):
    """The English part of C4, as torchtitan reads it: streamed from the Hub, here at the commit that torchtitan pins."""

    repo: Text = numerics(C4_REPO, examples=["allenai/c4"])
    """The dataset on the Hub: OWNER/NAME."""
    subset: Text | None = numerics("en", examples=["realnewslike"])
    """Which of its subsets."""
    revision: Commit = numerics(C4_COMMIT, examples=["607bd4c8450a42878aa9ddc051a65a055450ef87"])
    """The commit, so that the data stay the same."""
    streaming: bool = performance(True)
    """Whether records are fetched as they are read, max_documents and no more; false: the whole split is fetched first, into the Hub's own
    cache."""


class C4DatasetConfig(C4Config):
    """The English part of C4 for training; how many of its 365 million documents, max_documents says."""

    name: Literal["c4"] = numerics("c4")
    builds: ClassVar = "titanrun.components.data.hub:hub_rows"


class C4ValidationDatasetConfig(C4Config):
    """The held-out English part of C4, 365 thousand documents."""

    name: Literal["c4_validation"] = numerics("c4_validation")
    builds: ClassVar = "titanrun.components.data.hub:hub_rows"
    split: Text = numerics("validation", examples=["train"])
    """Which of its splits."""


class C4TestDatasetConfig(FilesConfig):
    """The few documents of C4 that torchtitan keeps in its repository, to try runs with."""

    name: Literal["c4_test"] = numerics("c4_test")
    builds: ClassVar = "titanrun.components.data.text:text_rows"
    path: Text = numerics("tests/assets/c4_test", examples=["../torchtitan/tests/assets/c4_test"])
    """Where they are; torchtitan too begins at the folder in which a run is started."""
