"""Protocols of tokenizers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

IdsWithOffsets: TypeAlias = tuple[list[int], list[tuple[int, int]]]
"""Ids of a text, with the start and end of each in characters."""


class Tokenizer(Protocol):
    """Tokenizer of text.

    `bos_id` and `eos_id` are None if the tokenizer has no such token. `vocab_size` is the highest
    id plus one. `fingerprint` is the hash of the tokenizer's files, in hex.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    fingerprint: str

    def encode(self, text: str, *, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        """Return the ids of one text, with the requested begin and end tokens."""
        ...

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = True, add_eos: bool = True
    ) -> list[list[int]]:
        """Return the ids of several texts, each as from `encode`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        ...


class TemplateSource(Protocol):
    """What determines a chat template and the ends of replies: a tokenizer, or its config.

    `chat_template` is a file, the name of a template that ships with titanrun, or None for the one
    in `folder`. Generation stops at `stop_tokens`, too.
    """

    @property
    def folder(self) -> Path:
        """Folder of the tokenizer's files."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Template that the recipe names."""
        ...

    @property
    def stop_tokens(self) -> Sequence[str]:
        """Further tokens at which generation stops."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, TemplateSource, Protocol):
    """Tokenizer for conversations."""

    def encode_with_offsets(self, texts: Sequence[str]) -> list[IdsWithOffsets]:
        """Return ids and character offsets of several texts, without begin and end tokens."""
        ...
