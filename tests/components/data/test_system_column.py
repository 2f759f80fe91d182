"""System texts in a column of their own, against transformers."""

import json
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.chat_dataset import (
    build_chat_dataset,
    iter_conversations,
    serialize_chat_settings,
)
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.record_readers import raise_bad_record
from titanrun.components.data.spec.chat_formats import parse_conversation
from titanrun.components.data.token_records import ID_FACTOR
from titanrun.components.data.window_encoders import ConversationEncoder
from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer, build_tiny_tokenizer
from titanrun.config.problems import Problem, ProblemsFound

FOLDER = TinyTokenizerConfig().folder
TEMPLATE = (
    "{%- for message in messages %}{{ '<' + message.role + '>' + message.content + '<end>\n' "
    "}}{%- endfor %}{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
)
SYSTEM = {"role": "system", "content": "You are brief."}
ASKED, REPLY = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
TURNS = [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]
RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [ASKED, REPLY]},
    "sharegpt": {"conversations": TURNS},
    "alpaca": {"instruction": "one", "input": "", "output": "two", "history": []},
    "prompt_completion": {"prompt": "one", "completion": "two"},
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> HuggingFaceTokenizer:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    found = copy(build_tiny_tokenizer(TinyTokenizerConfig()))
    found.chat_template = str(tmp_path / "template.jinja")
    return found


def expect_ids(*messages: dict[str, Any]) -> list[int]:
    """Return the ids by transformers."""
    oracle = AutoTokenizer.from_pretrained(str(FOLDER))
    found: list[int] = oracle.apply_chat_template(
        list(messages), chat_template=TEMPLATE, return_dict=True
    )["input_ids"]
    return found


def build(
    tokenizer: HuggingFaceTokenizer, config: ChatDatasetConfig, folder: Path
) -> IndexedDataset:
    return build_chat_dataset(
        config, tokenizer=tokenizer, sample_length=129, cache_folder=folder / "cache"
    )


def write_jsonl(folder: Path, *records: dict[str, Any]) -> str:
    file = folder / "chats.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def write_parquet(folder: Path, *records: dict[str, Any]) -> str:
    file = folder / "chats.parquet"
    pq.write_table(pa.Table.from_pylist(list(records)), file)
    return str(file)


def find_problem(tokenizer: HuggingFaceTokenizer, folder: Path, *records: Any) -> Problem:
    config = ChatDatasetConfig(path=write_jsonl(folder, *records), system_column="sys")
    with pytest.raises(ProblemsFound) as caught:
        build(tokenizer, config, folder)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.path == ("system_column",)
    return problem


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
@pytest.mark.parametrize("layout", RECORDS)
def test_the_text_is_the_first_message_of_transformers(
    layout: str, write: Any, tokenizer: HuggingFaceTokenizer, tmp_path: Path
) -> None:
    texts = [{"sys": SYSTEM["content"]}, {"sys": ""}, {"sys": None}, {}]
    path = write(tmp_path, *({**RECORDS[layout], **text} for text in texts))
    rows = build(
        tokenizer, ChatDatasetConfig(path=path, layout=layout, system_column="sys"), tmp_path
    )
    assert len(rows) == 4
    texts_of_rows = [expect_ids(SYSTEM, ASKED, REPLY), *[expect_ids(ASKED, REPLY)] * 3]
    found = [rows[number] for number in range(4)]
    padded = [ids + [0] * (129 - len(ids)) for ids in texts_of_rows]
    assert sorted(row[0].tolist() for row in found) == sorted(padded)
    # only the reply counts: the system text changes what precedes it, not what is learned
    learned = [tokenizer.decode(row[0][row[1] == 1].tolist()) for row in found]
    assert all(text.startswith("two") and "brief" not in text for text in learned)


def test_a_stream_has_the_same_ids(tokenizer: HuggingFaceTokenizer) -> None:
    unnamed, config = (
        ChatDatasetConfig(path="x.jsonl", layout="sharegpt", system_column=name, streaming=True)
        for name in (None, "sys")
    )
    record = {**RECORDS["sharegpt"], "sys": SYSTEM["content"]}
    encoder = ConversationEncoder(config, tokenizer)
    (numbers,) = encoder.encode([("'x.jsonl' line 1", record)], raise_bad_record)
    assert (numbers // ID_FACTOR).tolist() == expect_ids(SYSTEM, ASKED, REPLY)
    plain = ConversationEncoder(unnamed, tokenizer)
    assert plain.settings != encoder.settings


def test_an_evaluation_asks_with_the_system_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, {**RECORDS["messages"], "sys": SYSTEM["content"]})
    (found,) = iter_conversations(ChatDatasetConfig(path=path, system_column="sys"))
    assert found.messages == [SYSTEM, ASKED, REPLY]


def test_tools_of_the_record_stay(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    record = {**RECORDS["messages"], "tools": tools, "sys": SYSTEM["content"]}
    columns = ChatDatasetConfig(path="x", system_column="sys").get_columns()
    found = parse_conversation("messages", record, columns, "record 1")
    assert found.tools == tools and found.messages[0] == SYSTEM


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_record_with_both_is_told_at_its_line(
    role: str, tokenizer: HuggingFaceTokenizer, tmp_path: Path
) -> None:
    own = {"messages": [{**SYSTEM, "role": role}, ASKED, REPLY]}
    problem = find_problem(tokenizer, tmp_path, {**own, "sys": ""}, {**own, "sys": "Be kind."})
    assert "chats.jsonl' line 2 has a system text in 'sys', and a system message" in problem.message
    assert problem.hint == "remove one of them from the record, or remove system_column"


def test_a_column_that_no_record_has_is_told(
    tokenizer: HuggingFaceTokenizer, tmp_path: Path
) -> None:
    problem = find_problem(tokenizer, tmp_path, {**RECORDS["messages"], "system": "Be kind."})
    assert problem.message == "no record has a 'sys'"


def test_a_value_that_is_no_text_is_told(tokenizer: HuggingFaceTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound) as caught:
        path = write_jsonl(tmp_path, {**RECORDS["messages"], "sys": ["Be kind."]})
        build(tokenizer, ChatDatasetConfig(path=path, system_column="sys"), tmp_path)
    (problem,) = caught.value.problems
    assert "chats.jsonl' line 1" in problem.message and "'sys'" in problem.message


def test_indexes_are_another_only_if_the_column_is_set(tokenizer: HuggingFaceTokenizer) -> None:
    """The settings of an index without the column are those of before there was one."""
    template = load_chat_template(tokenizer)
    config = ChatDatasetConfig(path="x")
    plain = serialize_chat_settings(config, template, ())
    columns = {
        "messages": "messages",
        "prompt": "prompt",
        "completion": "completion",
        "weight": None,
    }
    weights = config.role_weights.get_weights()
    before = ["chat 2", "messages", columns, "replies", weights, template.digest]
    assert plain == json.dumps(before)
    named = ChatDatasetConfig(path="x", system_column="sys")
    assert serialize_chat_settings(named, template, ()) != plain
