"""What the rest of titanrun asks of a tokenizer."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. `bos_id` and `eos_id` are None where the tokenizer has no such token.

    `vocab_size` is the highest id plus one; `fingerprint` is the hash of the tokenizer's files, in hex.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    fingerprint: str

    def encode(self, text: str, *, bos: bool = True, eos: bool = True) -> list[int]:
        """The ids of one text, with the begin and end tokens asked for."""
        ...

    def encode_batch(self, texts: Sequence[str], *, bos: bool = True, eos: bool = True) -> list[list[int]]:
        """The ids of several texts, each as `encode` gives them."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        ...
