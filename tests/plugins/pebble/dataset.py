"""Rows of numbers that count upwards."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pebble.configs import CountingConfig


class Counting:
    """Row n counts from n, modulo the limit."""

    def __init__(
        self, config: CountingConfig, *, tokenizer: object, sample_length: int, cache_folder: Path
    ) -> None:
        self.limit = config.limit
        self.sample_length = sample_length
        self.max_token_id = config.limit - 1
        # other rows, another fingerprint: a run goes on with the rows that it began with only
        self.fingerprint = f"counting {config.limit} {sample_length}"

    def __len__(self) -> int:
        return self.limit

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return (index + np.arange(self.sample_length)) % self.limit

    def check(self) -> None:
        """Nothing here can change."""
