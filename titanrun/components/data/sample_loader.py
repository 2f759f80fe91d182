"""Protocol of the data loaders of indexed data and of streams."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray


class SampleLoader(Protocol):
    """Loader of one data-parallel rank's share of each global batch."""

    @property
    def num_samples(self) -> int | None:
        """Number of samples of one epoch, None if it is not known."""

    def has_next(self) -> bool:
        """Return whether there is another global batch. All ranks must call this."""
        ...

    def next_samples(self) -> NDArray[Any]:
        """Return this rank's samples of the next global batch."""
        ...

    def last_indices(self) -> list[Any]:
        """Return what identifies each sample of the last batch, empty before the first."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, for JSON. All ranks must call this."""
        ...

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, allows_other_data: bool = False
    ) -> None:
        """Continue at a position. Other data is a problem, or starts at its beginning."""
        ...

    def collect_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call. All ranks must call this."""
        ...

    def close(self) -> None:
        """Release files and processes."""
        ...
