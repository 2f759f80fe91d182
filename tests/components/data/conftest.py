"""A tokenizer that is small enough to check by eye."""

from collections.abc import Sequence

import pytest


class ByteTokenizer:
    """UTF-8 bytes as ids 3 to 258; BOS is 1, EOS 2."""

    vocab_size = 259
    bos_id = 1
    eos_id = 2
    fingerprint = "bytes"

    def encode(self, text: str, *, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        return (
            [self.bos_id] * add_bos + [byte + 3 for byte in text.encode()] + [self.eos_id] * add_eos
        )

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = True, add_eos: bool = True
    ) -> list[list[int]]:
        return [self.encode(text, add_bos=add_bos, add_eos=add_eos) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token - 3 for token in ids if token >= 3).decode()


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
