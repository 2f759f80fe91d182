"""Pairs that need more of a tokenizer than texts do; their training is in worker/test_dpo.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import PreferenceDatasetConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.problems import ProblemsFound


def test_a_tokenizer_that_does_not_tell_where_its_tokens_are_is_refused(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    assert not isinstance(tokenizer, ChatTokenizer)
    config = PreferenceDatasetConfig(path=str(tmp_path / "nothing is looked for.jsonl"))
    with pytest.raises(ProblemsFound, match="does not return token offsets") as found:
        build_preference_dataset(
            config, tokenizer=tokenizer, sample_length=8, cache_folder=tmp_path
        )
    [problem] = found.value.problems
    assert problem.code == "data" and "huggingface" in str(problem.hint)


def test_the_share_of_tokens_is_told_with_the_number_of_pairs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pairs.jsonl"
    pairs = [
        {"prompt": "one", "chosen": "two " * 9, "rejected": "three " * number}
        for number in (2, 9, 200)
    ]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    with caplog.at_level("INFO"):
        rows = build_preference_dataset(
            PreferenceDatasetConfig(path=str(file)),
            tokenizer=build_tiny_tokenizer(TinyTokenizerConfig()),
            sample_length=72,
            cache_folder=tmp_path,
        )
    sequences = np.stack([rows[number] for number in range(len(rows))])
    assert sequences.shape == (2, 3, 72)
    # the reply to the last of both documents ends with a token that is not the padding's
    ids = sequences[:, 0]
    lengths = [int(np.flatnonzero(row != row[-1]).max()) + 1 for row in ids]
    share = 100 * sum(lengths) / ids.size
    assert f"2 pairs, one per sequence of 72 tokens, {share:.0f}% non-padding" in caplog.text
