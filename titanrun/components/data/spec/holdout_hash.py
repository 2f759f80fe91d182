"""Which documents are held out for validation, decided by a hash of each document alone.

No seed, order, file, format or tokenizer enters: a document is held out in every run, index and
stream of the same share, exact duplicates are on one side, and a smaller share lies within a larger
one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import xxhash

from titanrun.components.data.spec.chat_content import join_parts

PREFIX = b"titanrun holdout 1\0"
"""Hashed before each key. Another number would hold out other documents."""
HASH_RANGE = 2**64


def compute_holdout_threshold(share: float) -> int:
    """Return the hash below which documents are held out."""
    # exact: a product with a power of two only changes the exponent
    return int(share * HASH_RANGE)


def compute_holdout_hash(key: bytes) -> int:
    """Return the hash of a key, below 2^64."""
    return xxhash.xxh3_64_intdigest(PREFIX + key)


def is_held_out(key: bytes, threshold: int) -> bool:
    """Return whether the document with this key is held out."""
    return compute_holdout_hash(key) < threshold


def compute_text_hash(pieces: Iterable[str]) -> int:
    """Return the hash of a document that is given in consecutive pieces of its text."""
    digest = xxhash.xxh3_64(PREFIX)
    for piece in pieces:
        digest.update(make_text_key(piece))
    return digest.intdigest()


def make_text_key(text: str) -> bytes:
    """Return the key of a document: its text after `format`, without begin and end tokens."""
    return text.encode()


def make_messages_key(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the key of a conversation, or of the messages of a prompt.

    Only roles and texts count, as parsed by chat_formats.py, so that layouts and file formats with
    the same messages have the same key.
    """
    return encode_canonical_json(
        [{"role": one["role"], "content": join_parts(one.get("content"))} for one in messages]
    )


def make_pair_key(
    chosen: Sequence[Mapping[str, Any]], rejected: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return the key of a preference pair: the messages that both conversations begin with.

    All pairs of one prompt are thus on one side.
    """
    both = zip(chosen, rejected, strict=False)
    prompt = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    return make_messages_key(prompt or chosen[:-1])


def make_column_key(value: Any) -> bytes:
    """Return the key of a record by the value of one column, `holdout_by`."""
    return encode_canonical_json(value)


def encode_canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, without spaces and escapes, as UTF-8.

    Values that JSON does not have, such as the times of parquet files, are written as text.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
    # half a surrogate pair is refused where texts are read; other columns may hold it
    return text.encode(errors="surrogatepass")
