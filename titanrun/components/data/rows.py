"""What the rest of titanrun asks of indexed data: rows by number, of token ids or of pictures."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Rows(Protocol):
    """Rows of seq_len + 1 token ids each, or one picture with its caption.

    `fingerprint` tells other data, or the same data cut into other rows, apart. `max_token_id` is the highest id that was seen
    when the data was opened: of all ids, but in a very large token file only of a sample.
    """

    fingerprint: str
    max_token_id: int

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """The ids of row `index`, [seq_len + 1]; or [3, seq_len + 1] with what counts and positions, for `TokenBatch.from_rows`."""
        ...

    def check(self) -> None:
        """Raises a data problem where what the rows are read from has changed since it was opened."""
        ...


@runtime_checkable
class DrawnRows(Protocol):
    """Rows of which something is drawn each time that they are trained on, such as the part of a picture."""

    def drawn(self, index: int, key: int) -> NDArray[Any]:
        """Row `index`; all that is drawn of it, now and later, follows from `key`, which is below 2^63."""
        ...
