"""Pairs that need more of a tokenizer than texts do; their training is in worker/test_dpo.py."""

from pathlib import Path

import pytest

from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import PreferenceDatasetConfig
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
