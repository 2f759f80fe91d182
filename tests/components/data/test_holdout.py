"""The hash that decides which documents are held out."""

import json
import math
import subprocess
import sys
from typing import Any

import xxhash

from titanrun.components.data.spec.holdout_hash import (
    compute_holdout_hash,
    compute_holdout_threshold,
    compute_text_hash,
    is_held_out,
    make_column_key,
    make_messages_key,
    make_pair_key,
    make_text_key,
)

TEXTS = [f"document {number} \u00e9\u4e2d" for number in range(20_000)]
USER = {"role": "user", "content": "how much?"}


def test_the_hash_is_xxh3_of_a_fixed_prefix_and_the_text() -> None:
    for text in TEXTS[:50]:
        expected = xxhash.xxh3_64(b"titanrun holdout 1\x00" + text.encode("utf-8")).intdigest()
        assert compute_holdout_hash(make_text_key(text)) == expected
        assert compute_text_hash([text[:3], text[3:9], "", text[9:]]) == expected


def test_the_share_is_exact_within_4_sigma_and_shares_are_nested() -> None:
    held = {
        share: {
            text
            for text in TEXTS
            if is_held_out(make_text_key(text), compute_holdout_threshold(share))
        }
        for share in (0.001, 0.01, 0.1, 0.5)
    }
    for share, found in held.items():
        sigma = math.sqrt(len(TEXTS) * share * (1 - share))
        assert abs(len(found) - share * len(TEXTS)) < 4 * sigma
    assert held[0.001] < held[0.01] < held[0.1] < held[0.5]


def test_thresholds_are_the_floor_of_the_share_of_all_hashes() -> None:
    assert compute_holdout_threshold(0.5) == 2**63
    assert compute_holdout_threshold(0.001) == math.floor(0.001 * 2**64)
    assert compute_holdout_threshold(2.0**-64) == 1


def test_messages_are_canonical_json_of_role_and_content() -> None:
    conversation = [{"content": "h\u00e9", "role": "user", "weight": 0.5, "name": "Jo"}]
    expected = json.dumps([{"content": "h\u00e9", "role": "user"}], ensure_ascii=False)
    assert make_messages_key(conversation) == expected.replace(" ", "").encode()
    parts = [{"role": "user", "content": [{"type": "text", "text": "h\u00e9"}]}]
    assert make_messages_key(parts) == make_messages_key(conversation)
    calls: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [{}]}]
    assert make_messages_key(calls) == b'[{"content":"","role":"assistant"}]'


def test_pairs_of_one_prompt_have_one_key() -> None:
    replies = [{"role": "assistant", "content": text} for text in ("1", "2", "3")]
    key = make_messages_key([USER])
    assert make_pair_key([USER, replies[0]], [USER, replies[1]]) == key
    assert make_pair_key([USER, replies[2]], [USER, replies[1]]) == key
    # conversations without a common beginning are told apart by the preferred one
    other = {"role": "user", "content": "how many?"}
    assert make_pair_key([USER, replies[0]], [other, replies[0]]) == key
    assert make_pair_key([other, replies[0]], [USER, replies[0]]) != key


def test_column_keys_are_canonical_json() -> None:
    assert (
        make_column_key({"b": [1, None], "a": "\u00e9"}) == '{"a":"\u00e9","b":[1,null]}'.encode()
    )
    assert make_column_key("\ud800").startswith(b'"')


def test_the_module_imports_neither_torch_nor_datasets() -> None:
    code = (
        "import sys; import titanrun.components.data.spec.holdout_hash; "
        "assert not {'torch', 'datasets', 'pyarrow', 'fsspec'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
