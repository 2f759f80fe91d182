"""What the rest of titanrun asks of a tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

PlacedIds: TypeAlias = tuple[list[int], list[tuple[int, int]]]
"""The ids of a text, and from which character to which each of them stands for."""


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

    def encode_batch(
        self, texts: Sequence[str], *, bos: bool = True, eos: bool = True
    ) -> list[list[int]]:
        """The ids of several texts, each as `encode` gives them."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer of which conversations can be made: `folder` may hold a chat template."""

    folder: Path

    def encode_placed(self, texts: Sequence[str]) -> list[PlacedIds]:
        """The ids of several texts without begin and end tokens, with the characters that each stands for."""
        ...
