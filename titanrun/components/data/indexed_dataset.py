"""Protocol of indexed datasets, of token ids or of images."""

from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray


class SampleRequest(NamedTuple):
    """Index of a sample with the key of one visit to it.

    All random draws for the sample, now and later, derive from the key, which is below 2^63.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    key: int


SampleIndex: TypeAlias = int | SampleRequest


class IndexedDataset(Protocol):
    """Map-style dataset of samples: seq_len + 1 token ids, or one image with its caption.

    Datasets with random draws for each sample, such as the crop of an image, set
    `needs_sample_keys` and also accept a `SampleRequest` as index. `fingerprint` identifies the
    data and its split into sequences. `max_token_id` is the highest id found when the data was
    opened: of all ids, or in a very large token file of a sample.
    """

    fingerprint: str
    max_token_id: int

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return the sample at `index`.

        Either ids, [seq_len + 1], or [3, seq_len + 1] with loss mask and positions, for
        `TokenBatch.from_sequences`, or [4, seq_len + 1] with the bits of an fp32 number each, the
        loss weights of the tokens.
        """
        ...

    def check(self) -> None:
        """Raise a data problem if the source of the samples has changed since it was opened."""
        ...
