"""First sequences of a stream, for people who look at data before a run."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.sample_loader import SampleLoader

PREVIEW_SEQUENCES = 256
"""Sequences of a stream that are inspected."""


class StreamPreview:
    """The sequences of the first global batches of a stream, in the order of training.

    They end where a lane begins again, but with the first batch at the earliest: `is_repeated` says
    whether that one reads some data twice.
    """

    fingerprint = "preview"
    max_token_id = 0

    def __init__(self, loader: SampleLoader, *, count: int = PREVIEW_SEQUENCES) -> None:
        self._rows: list[NDArray[Any]] = []
        self.is_repeated = False
        while len(self._rows) < count and loader.has_next():
            samples = loader.next_samples()
            begins_again = loader.collect_metrics()["data/epoch_max"] > 0
            if begins_again and self._rows:
                break
            self.is_repeated |= begins_again
            self._rows.extend(samples)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        row: NDArray[np.int64] = self._rows[index]
        return row

    def check(self) -> None:
        """Do nothing: the sequences are in memory."""
