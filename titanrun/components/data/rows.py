"""What the rest of titanrun asks of indexed data: rows by number, of token ids or of pictures."""

from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray


class DrawnRow(NamedTuple):
    """A row by its number, with the key of one visit to it: all that is drawn of the row, now and later, follows from the key, which is
    below 2^63."""

    index: int
    key: int


Number: TypeAlias = int | DrawnRow


class Rows(Protocol):
    """Rows of seq_len + 1 token ids each, or one picture with its caption.

    Rows of which something is drawn each time, such as the part of a picture, have `are_drawn`, and take a DrawnRow as number too.
    `fingerprint` tells other data, or the same data cut into other rows, apart. `max_token_id` is the highest id that was seen
    when the data was opened: of all ids, but in a very large token file only of a sample.
    """

    fingerprint: str
    max_token_id: int

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """The ids of row `index`, [seq_len + 1]; or [3, seq_len + 1] with what counts and positions, for `TokenBatch.from_rows`;
        or [4, seq_len + 1] with the bits of an fp32 number each, what the tokens weigh in the loss.
        """
        ...

    def check(self) -> None:
        """Raises a data problem where what the rows are read from has changed since it was opened."""
        ...
