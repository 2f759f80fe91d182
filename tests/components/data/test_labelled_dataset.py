"""Replies with labels: what a record means, the label of each sequence, and mismatched replies."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from titanrun.components.data.data_inspection import label_text_segments
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.labelled_dataset import (
    build_labelled_dataset,
    build_tiny_labelled_dataset,
)
from titanrun.components.data.mismatched_replies import build_mismatched_batches
from titanrun.components.data.preference_dataset import build_tiny_pairs_dataset
from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    TinyLabelledDatasetConfig,
    TinyPairsDatasetConfig,
)
from titanrun.components.data.spec.preference_formats import parse_labelled
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound

TOKENIZER = build_tiny_tokenizer(TinyTokenizerConfig())
ASKED = {"role": "user", "content": "a"}
REPLY = {"role": "assistant", "content": "b"}
RECORDS = [
    {"prompt": "Say: goat", "completion": "goat", "label": True},
    {"prompt": "Say: moon", "completion": "no moon", "label": False},
    {"prompt": "Say: the hill", "completion": "the hill", "label": True},
]


def build(
    folder: Path, records: list[Any], length: int = 49, tokenizer: Any = TOKENIZER, **fields: Any
) -> IndexedDataset:
    (folder / "replies.jsonl").write_text("\n".join(map(json.dumps, records)))
    config = LabelledDatasetConfig(path=str(folder / "replies.jsonl"), **fields)
    return build_labelled_dataset(
        config, tokenizer=tokenizer, sample_length=length, cache_folder=folder / "cache"
    )


def get_reply(row: np.ndarray) -> str:
    return TOKENIZER.decode([int(token) for token in row[0][row[1] == 1]])


@pytest.mark.parametrize(
    "record",
    [
        {"asked": "a", "said": "b", "good": True},
        {"asked": [ASKED], "said": [REPLY], "good": 1},
        {"said": [ASKED, REPLY], "good": "TRUE"},
        {"asked": "a", "said": [ASKED, REPLY], "good": "1"},
    ],
)
def test_a_record_is_a_reply_with_a_label(record: dict[str, Any]) -> None:
    config = LabelledDatasetConfig(
        path="x", prompt_column="asked", completion_column="said", label_column="good"
    )
    ((conversation, is_desirable),) = parse_labelled(config, record, "line 1")
    assert (conversation.messages, is_desirable) == ([ASKED, REPLY], True)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "a", "completion": "b"}, "has no 'label'; it has: prompt, completion"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "has the label 'good', which is"),
        ({"prompt": "a", "completion": "b", "label": 0.5}, "has the label 0.5, which is neither"),
        ({"completion": "b", "label": True}, "has replies, but no 'prompt'"),
        ({"prompt": "a", "completion": [ASKED], "label": True}, "does not end with an assistant"),
    ],
)
def test_a_record_without_reply_or_label_is_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsFound, match=message):
        parse_labelled(LabelledDatasetConfig(path="x"), record, "'x.jsonl' line 1")


def test_each_sequence_has_its_reply_and_label(tmp_path: Path) -> None:
    rows = build(tmp_path, RECORDS)
    batch = TokenBatch.from_sequences(np.stack([rows[number] for number in range(3)]))
    assert batch.weights is not None
    assert batch.weights[:, 0].tolist() == [1.0, 0.0, 1.0]
    replies = [get_reply(rows[number]) for number in range(3)]
    for record, reply in zip(RECORDS, replies, strict=True):
        assert str(record["completion"]) in reply
    assert not any("Say" in reply for reply in replies)


def test_data_show_names_the_label_of_a_reply(tmp_path: Path) -> None:
    rows = build(tmp_path, RECORDS)
    for number, (reply, label) in enumerate([("goat", "desirable"), ("no moon", "undesirable")]):
        pieces = label_text_segments(rows[number], TOKENIZER, has_labels=True)
        at = [kind for kind, _ in pieces].index("label")
        assert pieces[at] == ("label", label)
        assert pieces[at - 1][0] == "counted" and reply in pieces[at - 1][1]


def test_pairs_become_a_desirable_and_an_undesirable_reply(tmp_path: Path) -> None:
    pairs = [{"prompt": "Say: goat", "better": "goat", "worse": "moon"}]
    rows = build(tmp_path, pairs, from_pairs=True, chosen_column="better", rejected_column="worse")
    assert len(rows) == 2
    assert "goat" in get_reply(rows[0]) and "moon" in get_reply(rows[1])
    labels = [np.array(rows[number][3][:1], dtype=np.uint32).view(np.float32) for number in (0, 1)]
    assert [float(label[0]) for label in labels] == [1.0, 0.0]


def test_replies_longer_than_a_row_are_left_out_or_refused(tmp_path: Path) -> None:
    long = {"prompt": "a", "completion": "goat " * 60, "label": True}
    assert len(build(tmp_path, [*RECORDS, long])) == 3
    with pytest.raises(ProblemsFound, match="1 conversation of 4 longer than a sequence of 49"):
        build(tmp_path, [*RECORDS, long], too_long="refuse")


def test_labels_of_one_kind_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    build(tmp_path, RECORDS)
    assert "2 desirable and 1 undesirable replies" in caplog.text
    build(tmp_path, RECORDS[:1])
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == ("1 desirable and 0 undesirable replies: nothing to tell apart")


def test_a_template_of_ones_own_puts_replies_into_words(tmp_path: Path) -> None:
    words = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}!{{ m.content }}{% "
        "endgeneration %}{% endif %}{% endfor %}"
    )
    (tmp_path / "own.jinja").write_text(words)
    config = TinyTokenizerConfig(chat_template=str(tmp_path / "own.jinja"))
    row = build(tmp_path, RECORDS[:1], tokenizer=build_tiny_tokenizer(config))[0]
    wanted = TOKENIZER.encode("!goat", add_bos=False, add_eos=False)
    assert row[0][: len(wanted)].tolist() == wanted


def test_the_shipped_parts_share_no_reply(tmp_path: Path) -> None:
    said = {}
    for split in ("train", "held_out"):
        config = TinyLabelledDatasetConfig(split=split)
        rows = build_tiny_labelled_dataset(
            config, tokenizer=TOKENIZER, sample_length=65, cache_folder=tmp_path
        )
        pairs = build_tiny_pairs_dataset(
            TinyPairsDatasetConfig(split=split),
            tokenizer=TOKENIZER,
            sample_length=97,
            cache_folder=tmp_path,
        )
        assert len(rows) == 2 * len(pairs) == {"train": 4000, "held_out": 200}[split]
        said[split] = {get_reply(rows[number]) for number in range(0, len(rows), 2)}
    assert not said["train"] & said["held_out"]


def test_each_prompt_gets_the_reply_before_it() -> None:
    # prompts 1, 2, 3 with replies of 2, 1 and 5 tokens; the second sequence does not count
    rows = np.zeros((4, 3, 9), dtype=np.int64)
    for number, (prompt, reply) in enumerate(
        [([1], [11, 12]), ([9], [9]), ([2, 2, 2], [21]), ([3] * 4, [31, 32, 33, 34, 35])]
    ):
        length = len(prompt) + len(reply)
        rows[number, 0, :length] = prompt + reply
        rows[number, 1, len(prompt) : length] = number != 1
        rows[number, 2] = np.arange(9)
        rows[number, 2, length:] = np.arange(9 - length)
    batches = TokenBatch.from_sequences(rows).split(2)
    found = build_mismatched_batches(batches, group=None, device=torch.device("cpu"))
    tokens = torch.cat([batch.tokens for batch in found])
    labels = torch.cat([batch.labels.masked_fill(~batch.loss_mask, -1) for batch in found])
    positions = torch.cat([batch.positions for batch in found if batch.positions is not None])
    assert tokens[0].tolist() == [1, 31, 32, 33, 34, 35, 0, 0]
    assert labels[0].tolist() == [31, 32, 33, 34, 35, -1, -1, -1]
    assert positions[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert labels[1].tolist() == [-1] * 8
    assert tokens[2].tolist() == [2, 2, 2, 11, 12, 0, 0, 0]
    assert labels[2].tolist() == [-1, -1, 11, 12, -1, -1, -1, -1]
    assert tokens[3].tolist() == [3, 3, 3, 3, 21, 0, 0, 0]
    # the batches themselves are as before
    assert batches[0].tokens[0].tolist() == [1, 11, 12, 0, 0, 0, 0, 0]


def test_a_reply_that_does_not_fit_is_cut() -> None:
    rows = np.zeros((2, 3, 7), dtype=np.int64)
    for number, (prompt, reply) in enumerate([([1] * 6, [11]), ([2], [21, 22, 23, 24])]):
        length = len(prompt) + len(reply)
        rows[number, 0, :length] = prompt + reply
        rows[number, 1, len(prompt) : length] = 1
        rows[number, 2, :length] = np.arange(length)
    (found,) = build_mismatched_batches(
        [TokenBatch.from_sequences(rows)], group=None, device=torch.device("cpu")
    )
    assert found.tokens[0].tolist() == [1] * 6
    assert found.labels[0].masked_fill(~found.loss_mask[0], -1).tolist() == [-1] * 5 + [21]


def test_all_replies_to_a_prompt_are_held_out_together(tmp_path: Path) -> None:
    records = [
        {"prompt": f"Say: {number}", "completion": reply, "label": reply == "yes"}
        for number in range(40)
        for reply in ("yes", "no")
    ]
    (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, records)))
    prompts = []
    for is_validation in (False, True):
        rows = build_labelled_dataset(
            LabelledDatasetConfig(path=str(tmp_path / "replies.jsonl")),
            tokenizer=TOKENIZER,
            sample_length=49,
            cache_folder=tmp_path / "cache",
            holdout=Holdout(size=0.3, by=None, is_validation=is_validation),
        )
        assert len(rows) % 2 == 0
        texts = [
            TOKENIZER.decode([int(token) for token in row[0][row[1] == 0]])
            for row in (rows[number] for number in range(len(rows)))
        ]
        prompts.append({text.split("assistant")[0] for text in texts})
        assert len(prompts[-1]) == len(rows) // 2
    assert not prompts[0] & prompts[1] and len(prompts[0] | prompts[1]) == 40


@pytest.mark.parametrize(
    ("record", "hint"),
    [
        ({"promt": "a", "completion": "b", "label": True}, "did you mean 'promt'?"),
        ({"q": "a", "completion": "b", "label": True}, "name the column of the prompt"),
    ],
)
def test_a_column_that_is_nearly_the_prompt_is_offered(record: dict[str, Any], hint: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        parse_labelled(LabelledDatasetConfig(path="x"), record, "'x.jsonl' line 1")
    (problem,) = found.value.problems
    assert problem.hint is not None and problem.hint.startswith(hint)
