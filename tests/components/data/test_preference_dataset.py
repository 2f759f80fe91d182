"""Pairs that need more of a tokenizer than texts do; their training is in worker/test_dpo.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from titanrun.components.data.labelled_dataset import build_labelled_dataset
from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    PreferenceDatasetConfig,
)
from titanrun.components.data.spec.preference_formats import (
    parse_labelled,
    parse_preference_pair,
)
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


ASKED, GOOD = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
BAD = {"role": "assistant", "content": "three"}
SHARED_ASKED, SHARED_GOOD = {"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}
SHARED_BAD = {"from": "gpt", "value": "three"}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "one", "chosen": GOOD, "rejected": BAD},
        {"prompt": [ASKED], "chosen": GOOD, "rejected": [BAD]},
        {"prompt": [SHARED_ASKED], "chosen": SHARED_GOOD, "rejected": SHARED_BAD},
        {"prompt": [SHARED_ASKED], "chosen": [SHARED_GOOD], "rejected": "three"},
        {"chosen": [SHARED_ASKED, SHARED_GOOD], "rejected": [SHARED_ASKED, SHARED_BAD]},
        {"prompt": "one", "chosen": {**SHARED_GOOD, "role": None}, "rejected": BAD},
    ],
)
def test_replies_are_messages_of_openai_or_sharegpt_also_without_a_list(
    record: dict[str, Any],
) -> None:
    pair = parse_preference_pair(PreferenceDatasetConfig(path="x"), record, "line 1")
    assert [one.messages for one in pair] == [[ASKED, GOOD], [ASKED, BAD]]


def test_system_and_tool_turns_of_sharegpt_keep_their_roles() -> None:
    turns = [
        {"from": "system", "value": "be brief"},
        SHARED_ASKED,
        {"from": "function_response", "value": "4"},
    ]
    record = {"prompt": turns, "chosen": SHARED_GOOD, "rejected": SHARED_BAD}
    chosen, _ = parse_preference_pair(PreferenceDatasetConfig(path="x"), record, "line 1")
    assert [one["role"] for one in chosen.messages] == ["system", "user", "tool", "assistant"]


def test_labelled_conversations_of_sharegpt_end_with_their_reply() -> None:
    config = LabelledDatasetConfig(path="x", completion_column="conversations")
    record = {"conversations": [SHARED_ASKED, SHARED_GOOD], "label": False}
    [(conversation, label)] = parse_labelled(config, record, "line 1")
    assert (conversation.messages, label) == ([ASKED, GOOD], False)


@pytest.mark.parametrize(
    ("changed", "message", "path"),
    [
        ({"chosen": {"speaker": "gpt", "text": "two"}}, "has no 'role'", "chosen_column"),
        ({"rejected": {"from": "gpt"}}, "has no 'value'", "rejected_column"),
        ({"prompt": [{"role": "user"}]}, "has no 'content'", "prompt_column"),
    ],
)
def test_the_help_about_a_message_names_a_setting_that_exists(
    changed: dict[str, Any], message: str, path: str
) -> None:
    record = {"prompt": [ASKED], "chosen": GOOD, "rejected": BAD, **changed}
    with pytest.raises(ProblemsFound, match=message) as found:
        parse_preference_pair(PreferenceDatasetConfig(path="x"), record, "line 1")
    [problem] = found.value.problems
    assert problem.path == (path,) and path in PreferenceDatasetConfig.model_fields
    assert problem.hint == f"set {path} to match the files"


@pytest.mark.parametrize(
    ("system", "before"), [("be brief", [{"role": "system", "content": "be brief"}]), ("", [])]
)
def test_a_system_text_of_a_column_comes_first(system: str, before: list[Any]) -> None:
    record = {"sys": system, "prompt": "one", "chosen": "two", "rejected": "three"}
    pairs = PreferenceDatasetConfig(path="x", system_column="sys")
    found = [one.messages for one in parse_preference_pair(pairs, record, "line 1")]
    assert found == [[*before, ASKED, GOOD], [*before, ASKED, BAD]]
    labelled = LabelledDatasetConfig(path="x", system_column="sys")
    reply = {"sys": system, "prompt": "one", "completion": "two", "label": True}
    [(conversation, _)] = parse_labelled(labelled, reply, "line 1")
    assert conversation.messages == [*before, ASKED, GOOD]


@pytest.mark.parametrize("dataset", ["preference", "labelled"])
def test_another_system_column_makes_another_index(dataset: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    record = {"sys": "be brief", "prompt": "one", "chosen": "two", "rejected": "three"}
    file.write_text(json.dumps(record) + "\n")
    path, tokenizer = str(file), build_tiny_tokenizer(TinyTokenizerConfig())

    def build(column: str | None) -> None:
        if dataset == "labelled":
            config = LabelledDatasetConfig(path=path, from_pairs=True, system_column=column)
            build_labelled_dataset(
                config, tokenizer=tokenizer, sample_length=256, cache_folder=tmp_path
            )
            return
        build_preference_dataset(
            PreferenceDatasetConfig(path=path, system_column=column),
            tokenizer=tokenizer,
            sample_length=256,
            cache_folder=tmp_path,
        )

    build(None)
    # the tiny template has no system messages: they are not in the first index
    with pytest.raises(ProblemsFound, match="roles are user and assistant, not system"):
        build("sys")


def test_a_misspelled_system_column_is_told() -> None:
    config = PreferenceDatasetConfig(path="x", system_column="systm")
    record = {"system": None, "prompt": "one", "chosen": "two", "rejected": "three"}
    with pytest.raises(ProblemsFound, match="has no 'systm'") as found:
        parse_preference_pair(config, record, "line 1")
    [problem] = found.value.problems
    assert (problem.path, problem.hint) == (("system_column",), "did you mean 'system'?")
