"""Location of records on the Hugging Face Hub."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubSource:
    """One split of a dataset at one commit.

    Args:
        repo: Dataset on the Hub: OWNER/NAME.
        subset: Subset of the dataset, None if it has only one.
        split: Split of the dataset.
        revision: Commit of the dataset.
        streaming: Whether to fetch records as they are read.
    """

    repo: str
    subset: str | None
    split: str
    revision: str
    streaming: bool = False

    @property
    def name(self) -> str:
        """Name for messages."""
        words = (self.repo, self.subset, f"{self.split}@{self.revision[:12]}")
        return " ".join(word for word in words if word)

    @property
    def key(self) -> list[str]:
        """Identity of the records."""
        return [self.repo, self.subset or "", self.split, self.revision]
