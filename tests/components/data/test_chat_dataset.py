"""Rows of conversations, against transformers' assistant mask."""

import json
import logging
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

from titanrun.components.data.bin_packing import pack_best_fit
from titanrun.components.data.chat_config import ChatDatasetConfig, TinyChatDatasetConfig
from titanrun.components.data.chat_dataset import build_chat_dataset, build_tiny_chat_dataset
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.tokenizers.chat_template import (
    ChatTemplate,
    check_template_renders_messages,
)
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer, build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound

FOLDER = TinyTokenizerConfig().folder
# as Qwen's: nothing is marked, and a line end follows each turn
UNMARKED = (
    "{%- for message in messages %}{{ '<' + message.role + '>' + message.content + '<end>\n' "
    "}}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
)
# as Qwen3's: an earlier reply loses what stands before the bar
FORGETFUL = (
    "{%- for message in messages %}{%- set text = message.content if loop.last else "
    "message.content.split('|')[-1] %}"
    "{{ '<' + message.role + '>' + text + '\n' }}{%- endfor %}{%- if add_generation_prompt "
    "%}{{ '<assistant>' }}{%- endif %}"
)
TWO_TURNS = [
    {"role": "user", "content": "one two"},
    {"role": "assistant", "content": " naïve ☕\n"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four five"},
]
Open = Callable[..., IndexedDataset]


@pytest.fixture(scope="module")
def shipped() -> HuggingFaceTokenizer:
    return build_tiny_tokenizer(TinyTokenizerConfig())


@pytest.fixture
def opened(tmp_path: Path, shipped: HuggingFaceTokenizer) -> Open:
    """Writes records into one jsonl file and opens it."""

    def open_rows(
        *records: Any, row_length: int = 65, template: str | None = None, **options: Any
    ) -> IndexedDataset:
        file = tmp_path / "chats.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        if template is not None:
            (tmp_path / "template.jinja").write_text(template)
        config = ChatDatasetConfig(path=str(file), **options)
        tokenizer = copy(shipped)
        tokenizer.chat_template = None if template is None else str(tmp_path / "template.jinja")
        return build_chat_dataset(
            config, tokenizer=tokenizer, sample_length=row_length, cache_folder=tmp_path / "cache"
        )

    return open_rows


def chat(*contents: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": ("user", "assistant")[number % 2], "content": text}
            for number, text in enumerate(contents)
        ]
    }


def counted_text(tokenizer: HuggingFaceTokenizer, row: np.ndarray) -> str:
    ids, counts, _ = row
    return tokenizer._library.decode(ids[counts == 1].tolist(), skip_special_tokens=False)


def problem_of(opened: Open, *records: Any, **options: Any) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        opened(*records, **options)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.hint
    return problem


def test_ids_and_what_counts_are_what_transformers_says(opened: Open) -> None:
    oracle = AutoTokenizer.from_pretrained(str(FOLDER))
    expected = oracle.apply_chat_template(
        TWO_TURNS, return_assistant_tokens_mask=True, return_dict=True
    )
    ids, counts, positions = opened({"messages": TWO_TURNS})[0]
    length = len(expected["input_ids"])
    assert ids[:length].tolist() == expected["input_ids"] and not ids[length:].any()
    assert counts[:length].tolist() == expected["assistant_masks"] and not counts[length:].any()
    assert positions.tolist() == [*range(length), *range(65 - length)]


@pytest.mark.parametrize(
    ("layout", "record"),
    [
        ("messages", chat("one\n\ntwo", "three")),
        (
            "sharegpt",
            {
                "conversations": [
                    {"from": "human", "value": "one\n\ntwo"},
                    {"from": "gpt", "value": "three"},
                ]
            },
        ),
        ("alpaca", {"instruction": "one", "input": "two", "output": "three"}),
        ("alpaca", {"instruction": "one\n\ntwo", "input": "", "output": "three"}),
        ("prompt_completion", {"prompt": "one\n\ntwo", "completion": "three"}),
        (
            "prompt_completion",
            {
                "prompt": [{"role": "user", "content": "one\n\ntwo"}],
                "completion": {"from": "gpt", "value": "three"},
            },
        ),
    ],
)
def test_every_layout_says_the_same(
    layout: str, record: dict[str, Any], opened: Open, shipped: HuggingFaceTokenizer
) -> None:
    row = opened(record, layout=layout)[0]
    assert shipped.decode(row[0].tolist()).startswith("User: one\n\ntwo\nAssistant: three\n")
    assert counted_text(shipped, row) == " three<|end_of_text|>"


@pytest.mark.parametrize("options", [{}, {"turn_weights": "weight"}, {"train_on": "last_reply"}])
def test_of_a_prompt_with_replies_the_completion_alone_is_learned_as_in_trl(
    options: dict[str, Any], opened: Open
) -> None:
    oracle = AutoTokenizer.from_pretrained(str(FOLDER))
    prompt, completion = TWO_TURNS[:3], TWO_TURNS[3:]
    if "turn_weights" in options:
        completion = [{**completion[0], "weight": 1.0}]
    record = {"prompt": prompt, "completion": completion}
    ids, counts, *_ = opened(record, layout="prompt_completion", **options)[0]
    # trl learns what follows the prompt with the opening of a reply
    asked = oracle.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
    whole = oracle.apply_chat_template(
        TWO_TURNS, return_assistant_tokens_mask=True, return_dict=True
    )
    assert ids[: len(whole["input_ids"])].tolist() == whole["input_ids"]
    learned = [0] * len(asked) + whole["assistant_masks"][len(asked) :]
    assert np.flatnonzero(counts).tolist() == np.flatnonzero(learned).tolist()
    assert sum(learned) < sum(whole["assistant_masks"])


def test_a_column_may_have_another_name(opened: Open, shipped: HuggingFaceTokenizer) -> None:
    row = opened({"talk": chat("one", "two")["messages"]}, column="talk")[0]
    assert counted_text(shipped, row) == " two<|end_of_text|>"
    options = {"layout": "prompt_completion", "prompt_column": "q", "completion_column": "a"}
    assert opened({"q": "one", "a": "two"}, **options)[0].tolist() == row.tolist()


def test_parquet_and_csv_hold_the_same_conversations(
    tmp_path: Path, opened: Open, shipped: HuggingFaceTokenizer
) -> None:
    expected = opened({"prompt": "one,\ntwo", "completion": 'say "3"'}, layout="prompt_completion")[
        0
    ].tolist()
    pq.write_table(
        pa.table({"messages": [chat("one,\ntwo", 'say "3"')["messages"]]}), tmp_path / "a.parquet"
    )
    (tmp_path / "a.csv").write_text('prompt,completion\n"one,\ntwo","say ""3"""\n')
    for name, layout in (("a.parquet", "messages"), ("a.csv", "prompt_completion")):
        config = ChatDatasetConfig(path=str(tmp_path / name), layout=layout)
        rows = build_chat_dataset(
            config, tokenizer=shipped, sample_length=65, cache_folder=tmp_path / "cache"
        )
        assert [rows[0].tolist()] == [expected] and len(rows) == 1


def test_replies_are_found_where_the_template_marks_none(
    opened: Open, shipped: HuggingFaceTokenizer
) -> None:
    row = opened(chat("one", "two", "three", "four"), template=UNMARKED)[0]
    assert shipped.decode(row[0].tolist()).startswith(
        "<user>one<end>\n<assistant>two<end>\n<user>three<end>\n<assistant>four<end>\n"
    )
    assert counted_text(shipped, row).replace("\n", "") == "two<end>four<end>"


def test_a_template_that_writes_earlier_turns_otherwise_is_refused(opened: Open) -> None:
    problem = problem_of(opened, chat("one", "why|two", "three", "four"), template=FORGETFUL)
    assert (
        "message 2" in problem.message
        and "generation" in str(problem.hint)
        and problem.path == ("tokenizer", "chat_template")
    )


def test_what_is_trained_on_can_be_chosen(opened: Open, shipped: HuggingFaceTokenizer) -> None:
    said = chat("one", "two", "three", "four")
    assert counted_text(shipped, opened(said, train_on="last_reply")[0]) == " four<|end_of_text|>"
    whole = counted_text(shipped, opened(said, train_on="all")[0])
    assert whole.startswith(
        "User: one\nAssistant: two<|end_of_text|>\nUser: three"
    ) and whole.endswith(" four<|end_of_text|>\n")


def test_packed_rows_hold_every_conversation_once_and_its_labels_stay_inside(opened: Open) -> None:
    said = [chat("one " * (number % 7), "two " * (number % 5 + 1)) for number in range(40)]
    apart, packed = opened(*said), opened(*said, packing="best_fit")
    assert len(packed) < len(apart) == 40 and packed.fingerprint != apart.fingerprint
    assert sorted(map(tuple, pieces(packed))) == sorted(map(tuple, pieces(apart)))
    batch = TokenBatch.from_sequences(np.stack([packed[index] for index in range(len(packed))]))
    assert not batch.loss_mask[batch.positions.roll(-1, dims=1) == 0].any()


def pieces(rows: IndexedDataset) -> list[list[int]]:
    """What counts and the ids of each conversation, one number a token; the padding of a row is
    left out."""
    found = []
    for index in range(len(rows)):
        ids, counts, positions = rows[index]
        starts = np.flatnonzero(positions == 0)
        found += [
            part.tolist() for part in np.split(ids * 2 + counts, starts[1:]) if (part % 2).any()
        ]
    return found


def test_best_fit_takes_the_least_room_that_is_enough() -> None:
    assert pack_best_fit([6, 5, 4, 3, 2], sample_length=10) == [[0, 2], [1, 3, 4]]
    assert pack_best_fit([7, 5, 3, 3, 2], sample_length=10) == [[0, 2], [1, 3, 4]]
    assert pack_best_fit([10, 10], sample_length=10) == [[0], [1]]
    lengths = [1 + number * 37 % 64 for number in range(500)]
    members = pack_best_fit(lengths, sample_length=64)
    assert sorted(number for row in members for number in row) == list(range(500))
    assert max(sum(lengths[number] for number in row) for row in members) <= 64
    assert len(members) <= sum(lengths) / 64 * 11 / 9 + 1


@pytest.mark.parametrize(("too_long", "left"), [("drop", ["short"]), ("cut", ["short", "long"])])
def test_what_is_too_long_is_left_out_or_cut_and_counted(
    too_long: str,
    left: list[str],
    opened: Open,
    shipped: HuggingFaceTokenizer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        rows = opened(
            chat("short", "x"),
            chat("long", "x " * 40),
            chat("late " * 40, "x"),
            row_length=33,
            too_long=too_long,
        )
    assert [
        shipped.decode(rows[index][0].tolist()).split()[1] for index in range(len(rows))
    ] == left
    cut = len(left) - 1
    assert (
        "2 conversations of 3 longer than a sequence of 33 tokens" in caplog.text
        and f"{2 - cut} dropped, {cut} truncated" in caplog.text
    )


def test_what_is_too_long_can_be_refused(opened: Open) -> None:
    problem = problem_of(
        opened, chat("short", "x"), chat("long", "x " * 40), row_length=33, too_long="refuse"
    )
    assert problem.path == ("too_long",) and "1 conversation of 2" in problem.message
    assert problem.hint == "set seq_len: 128, which holds the longest, or set too_long: drop or cut"


@pytest.mark.parametrize(
    ("record", "options", "told"),
    [
        ({"message": []}, {}, "has no 'messages'; it has: message"),
        (chat("one"), {}, "no assistant reply"),
        (
            {"messages": [{"role": "bot", "content": "hello"}]},
            {},
            "message 1, is from 'bot', which is not a role",
        ),
        (
            {"messages": [{"from": "human", "value": "hello"}]},
            {},
            "message 1, has no 'role'; it has: from, value",
        ),
        (
            {"messages": [{"role": None, "content": "hello"}]},
            {},
            "message 1, is from null, which is not a role",
        ),
        (
            {"messages": [{"role": "user", "content": ["hello"]}]},
            {},
            "part 1 of 'content' has no type, but only text can be trained on",
        ),
        (
            {"messages": [{"role": "system", "content": "be good"}]},
            {},
            "roles are user and assistant, not system",
        ),
        ({"messages": [{"role": "user", "content": None}]}, {}, "has null in 'content', not text"),
        ({"messages": [{"role": "user", "content": "half \ud83d"}]}, {}, "at position 6"),
        ({"messages": "hello"}, {}, "has text in 'messages', not a list of messages"),
        ({"messages": ["hello"]}, {}, "no list of messages"),
        (
            {"conversations": [{"from": "human", "value": "one"}, {"from": "gpt"}]},
            {"layout": "sharegpt"},
            "message 2, has no 'value'; it has: from",
        ),
        (
            {"prompt": "one", "answer": "two"},
            {"layout": "prompt_completion"},
            "has no 'completion'; it has: prompt, answer",
        ),
        (
            {"prompt": "one", "completion": chat("two", "three", "four")["messages"]},
            {"layout": "prompt_completion"},
            "does not end with an assistant message",
        ),
        (chat("one", "two"), {"template": "{% for %}"}, "cannot be read"),
        (chat("one", "two"), {"template": "{{ ''.__class__.__mro__ }}"}, "unsafe"),
    ],
)
def test_a_conversation_that_cannot_be_made_is_told(
    record: Any, options: dict[str, Any], told: str, opened: Open
) -> None:
    assert told in problem_of(opened, record, **options).message


def test_a_near_column_is_suggested_if_it_can_hold_messages(opened: Open) -> None:
    turns = chat("one", "two")["messages"]
    assert problem_of(opened, {"message": turns}).hint == "did you mean 'message'?"
    hint = problem_of(opened, {"message": "one"}).hint
    assert hint == "set layout and its columns to match the files"


def test_rows_by_number_go_on_from_any_position_on_any_number_of_ranks(opened: Open) -> None:
    rows = opened(
        *(chat(f"{number}", "two " * (number % 9 + 1)) for number in range(64)), packing="best_fit"
    )
    options = {"seed": 3, "shuffle": True, "repeat": True, "global_batch_size": 4}
    whole = DistributedDataLoader(rows, **options)
    first = [whole.next_samples() for _ in range(3)]
    state = whole.state_dict()
    later = whole.next_samples()
    ranks = [DistributedDataLoader(rows, dp_rank=rank, dp_size=2, **options) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert np.concatenate([rank.next_samples() for rank in ranks]).tolist() == later.tolist()
    assert later.shape == (4, 3, 65) and later.tolist() != first[0].tolist()


def test_a_tokenizer_without_places_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ProblemsFound, match="token offsets"):
        build_tiny_chat_dataset(
            TinyChatDatasetConfig(), tokenizer=tokenizer, sample_length=65, cache_folder=tmp_path
        )


def test_the_shipped_parts_share_no_answer(tmp_path: Path, shipped: HuggingFaceTokenizer) -> None:
    answers = {}
    for split in ("train", "held_out"):
        rows = build_tiny_chat_dataset(
            TinyChatDatasetConfig(split=split),
            tokenizer=shipped,
            sample_length=65,
            cache_folder=tmp_path,
        )
        assert len(rows) == {"train": 6000, "held_out": 300}[split]
        text = (FOLDER.parent / "tiny_chat" / f"{split}.jsonl").read_text()
        said = [message for line in text.splitlines() for message in json.loads(line)["messages"]]
        answers[split] = {message["content"] for message in said if message["role"] == "assistant"}
    assert not answers["train"] & answers["held_out"]


def test_the_shipped_conversations_can_share_rows(
    tmp_path: Path, shipped: HuggingFaceTokenizer
) -> None:
    config = TinyChatDatasetConfig(split="held_out", packing="best_fit")
    rows = build_tiny_chat_dataset(
        config, tokenizer=shipped, sample_length=65, cache_folder=tmp_path
    )
    assert len(rows) < 200 and len(pieces(rows)) == 300


def test_rows_with_marks_become_a_batch_with_positions() -> None:
    rows = np.array([[[5, 6, 7, 0], [0, 1, 1, 0], [0, 1, 2, 0]]])
    batch = TokenBatch.from_sequences(rows)
    assert batch.tokens.tolist() == [[5, 6, 7]] and batch.labels.tolist() == [[6, 7, 0]]
    assert torch.equal(
        batch.loss_mask, torch.tensor([[True, True, False]])
    ) and batch.positions.tolist() == [[0, 1, 2]]


NO_TOOLS = (
    "{%- for m in messages %}{% if m.role != 'tool' %}{{ m.role + m.content }}{% endif %}{% "
    "endfor %}"
)
RAISES = (
    "{%- for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('who?') }}{% endif %}{{ "
    "m.content }}{% endfor %}"
)
CALLS = (
    "{%- for m in messages %}{{ m.role }}{% if m.tool_calls %}{{ m.tool_calls }}{% else %}{{ "
    "m.content[:9] }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NO_TOOLS, "omits message 2 of record 1, which is from 'tool'"),
        (RAISES, "who?; record 1 has messages from: user, tool, assistant, assistant"),
        (CALLS, None),
        (FORGETFUL, "omits the tool calls of message 3 of record 1, which is from 'assistant'"),
    ],
)
def test_a_template_must_have_words_for_every_role(text: str, words: str | None) -> None:
    calls = {"role": "assistant", "content": "I look", "tool_calls": [{"name": "look"}]}
    messages = [TWO_TURNS[0], {"role": "tool", "content": "a long answer"}, calls, TWO_TURNS[1]]
    template = ChatTemplate(text, {"bos_token": "", "eos_token": ""}, source="here")
    if words is None:
        check_template_renders_messages(template, messages, "record 1")
        return
    with pytest.raises(ProblemsFound) as caught:
        check_template_renders_messages(template, messages, "record 1")
    (problem,) = caught.value.problems
    assert (
        problem.path == ("tokenizer", "chat_template")
        and words in problem.message
        and "the chat template of 'here'" in problem.message
    )
