"""Counts of what is read from the files of a stream."""

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounts:
    """Bytes of files, and requests that were repeated."""

    num_bytes: int = 0
    num_retries: int = 0

    def add(self, other: "ReadCounts") -> None:
        """Add other counts."""
        self.num_bytes += other.num_bytes
        self.num_retries += other.num_retries

    def pop(self) -> "ReadCounts":
        """Return the counts since the last call."""
        # without a call in between: threads may be counting
        found = self.num_bytes, self.num_retries
        self.num_bytes = self.num_retries = 0
        return ReadCounts(*found)
