"""Conversations with tools, tool calls and content parts, against transformers."""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.chat_dataset import build_chat_dataset
from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import PreferenceDatasetConfig
from titanrun.components.evaluation.exact_match import extract_reply_prompts
from titanrun.components.tokenizers.chat_template import (
    ChatTemplate,
    check_template_renders_messages,
    load_folder_chat_template,
)
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer, build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound

FOLDER = TinyTokenizerConfig().folder
# in the style of Llama 3.1: tools in the first user turn, one call a turn, results from ipython
LLAMA_STYLE = """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {{- messages[0]['content'] | trim }}{%- set messages = messages[1:] %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {{- "<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n" }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- messages[0]['content'] | trim + "<|eot_id|>" }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# in the style of Qwen 3: tools in the system turn, several calls a turn, results as user turns
QWEN_STYLE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
                {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# in the style of Llama 4: a content is a text or a list of parts, each trimmed
PARTS_STYLE = """\
{%- for message in messages %}<{{ message.role }}>
    {%- if message.content is string %}{{- message.content | trim }}
    {%- else %}{%- for part in message.content %}{{- part.text | trim }}{%- endfor %}{%- endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{%- endif %}
"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather in a city, in °C <b>now</b>",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "default": None}},
            },
        },
    }
]


def call(*cities: str, content: Any = None, as_text: bool = False) -> dict[str, Any]:
    """Return a message that calls a tool, as OpenAI's API writes it."""
    calls = []
    for number, city in enumerate(cities):
        arguments: Any = {"city": city, "days": 2}
        arguments = json.dumps(arguments) if as_text else arguments
        function = {"name": "weather", "arguments": arguments}
        calls.append({"id": f"call_{number}", "type": "function", "function": function})
    return {"role": "assistant", "content": content, "tool_calls": calls}


ASKED = {"role": "user", "content": " Weather in Zürich? "}
ANSWERED = {"role": "tool", "content": '{"t": 3}', "tool_call_id": "call_0"}
REPLY = {"role": "assistant", "content": "3 °C"}
SYSTEM = {"role": "system", "content": "Be short."}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one call": [SYSTEM, ASKED, call("Zürich"), ANSWERED, REPLY],
    "arguments as text": [ASKED, call("Zürich", as_text=True), ANSWERED, REPLY],
    "two turns": [ASKED, call("Zürich", content=""), ANSWERED, REPLY, ASKED, call("Bern")],
    "no call": [ASKED, REPLY],
}


@pytest.fixture(scope="module")
def shipped() -> HuggingFaceTokenizer:
    return build_tiny_tokenizer(TinyTokenizerConfig())


Train = Callable[..., tuple[list[int], str]]


@pytest.fixture
def train(tmp_path: Path, shipped: HuggingFaceTokenizer) -> Train:
    """Writes records and a template; returns ids and learned text of the first conversation."""

    def open_rows(template: str, *records: Any, **options: Any) -> tuple[list[int], str]:
        (tmp_path / "template.jinja").write_text(template)
        file = tmp_path / "chats.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        config = ChatDatasetConfig(path=str(file), **options)
        tokenizer = copy(shipped)
        tokenizer.chat_template = str(tmp_path / "template.jinja")
        rows = build_chat_dataset(
            config, tokenizer=tokenizer, sample_length=1025, cache_folder=tmp_path / "cache"
        )
        ids, counts, _ = rows[0]
        learned = shipped._library.decode(ids[counts == 1].tolist(), skip_special_tokens=False)
        return ids.tolist(), learned

    return open_rows


def expect_ids(template: str, messages: list[dict[str, Any]], tools: Any = None) -> list[int]:
    """Return the ids by transformers."""
    oracle = AutoTokenizer.from_pretrained(str(FOLDER))
    found = oracle.apply_chat_template(
        messages, tools=tools, chat_template=template, return_dict=True
    )
    ids: list[int] = found["input_ids"]
    return ids


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS, json.dumps(TOOLS)], ids=["none", "list", "text"])
@pytest.mark.parametrize("template", [LLAMA_STYLE, QWEN_STYLE], ids=["llama", "qwen"])
def test_conversations_with_tools_have_the_ids_of_transformers(
    template: str, tools: Any, name: str, train: Train
) -> None:
    """Row A4 of the defect list: `content: null` was refused and `tools` never passed on."""
    messages = CONVERSATIONS[name]
    record = {"messages": messages} if tools is None else {"messages": messages, "tools": tools}
    expected = expect_ids(template, messages, tools and TOOLS)
    ids, _ = train(template, record)
    assert ids[: len(expected)] == expected and not any(ids[len(expected) :])


def test_several_calls_and_reasoning_reach_the_template(train: Train) -> None:
    thinking = {**call("Zürich", "Bern", content="Two."), "thinking": "Which?"}
    messages = [ASKED, thinking, ANSWERED, ANSWERED, REPLY]
    expected = expect_ids(QWEN_STYLE, messages, TOOLS)
    ids, learned = train(QWEN_STYLE, {"messages": messages, "tools": TOOLS})
    assert ids[: len(expected)] == expected
    assert learned.startswith("<think>Which?</think>Two.\n<tool_call>")
    assert learned.count("weather") == 2 and learned.endswith("3 °C<|im_end|>")


@pytest.mark.parametrize("template", [QWEN_STYLE, PARTS_STYLE, LLAMA_STYLE])
def test_parts_of_a_content_are_its_text(template: str, train: Train) -> None:
    """A template that reads parts gets them, as from transformers; another gets their text."""
    parts = [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Bern?"}]
    messages = [{"role": "user", "content": parts}, REPLY]
    joined = [{"role": "user", "content": "Weather in Bern?"}, REPLY]
    expected = expect_ids(template, messages if template == PARTS_STYLE else joined)
    ids, learned = train(template, {"messages": messages})
    assert ids[: len(expected)] == expected and learned.startswith("3 °C")


def test_sharegpt_records_have_tools_too(train: Train) -> None:
    turns = [
        {"from": "human" if message is ASKED else "gpt", "value": message["content"]}
        for message in (ASKED, REPLY)
    ]
    expected = expect_ids(QWEN_STYLE, [ASKED, REPLY], TOOLS)
    ids, _ = train(QWEN_STYLE, {"conversations": turns, "tools": TOOLS}, layout="sharegpt")
    assert ids[: len(expected)] == expected


def test_preference_pairs_of_calls_have_the_ids_of_transformers(
    tmp_path: Path, shipped: HuggingFaceTokenizer
) -> None:
    """Row A4 of the defect list: pairs lost everything but role and content."""
    (tmp_path / "template.jinja").write_text(QWEN_STYLE)
    record = {
        "prompt": [ASKED],
        "chosen": [call("Zürich")],
        "rejected": [call("Bern")],
        "tools": TOOLS,
    }
    (tmp_path / "pairs.jsonl").write_text(json.dumps(record) + "\n")
    config = PreferenceDatasetConfig(path=str(tmp_path / "pairs.jsonl"))
    tokenizer = copy(shipped)
    tokenizer.chat_template = str(tmp_path / "template.jinja")
    rows = build_preference_dataset(
        config, tokenizer=tokenizer, sample_length=1025, cache_folder=tmp_path / "cache"
    )
    ids = rows[0][0].tolist()
    chosen = expect_ids(QWEN_STYLE, [ASKED, call("Zürich")], TOOLS)
    assert ids[: len(chosen)] == chosen


def test_an_evaluation_asks_with_tools_and_leaves_replies_without_text_out() -> None:
    template = ChatTemplate(QWEN_STYLE, {}, source="qwen").with_tools(TOOLS)
    asked = extract_reply_prompts(
        template, [ASKED, call("Zürich"), ANSWERED, REPLY], is_last_only=False
    )
    ((text, reply),) = asked
    assert reply == "3 °C" and "# Tools" in text and text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "more", "told"),
    [
        ([ASKED, {"role": "assistant", "content": None}], {}, "null in 'content', not text"),
        ([ASKED, {"role": "assistant"}], {}, "message 2, has no 'content'"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, REPLY],
            {},
            "message 1, part 1 of 'content' has type 'image_url', but only text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}, REPLY], {}, "null in 'text', not text"),
        ([{"role": "user", "content": ["a"]}, REPLY], {}, "'content' has no type"),
        ([ASKED, {**REPLY, "tool_calls": "weather"}], {}, "no list of calls in 'tool_calls'"),
        ([ASKED, call("\ud800")], {}, "an invalid Unicode character in 'tool_calls'"),
        ([ASKED, REPLY], {"tools": "weather"}, "has no list of tools in 'tools'"),
        ([ASKED, REPLY], {"tools": [1]}, "has no list of tools in 'tools'"),
    ],
)
def test_what_is_no_message_is_told_at_its_place(
    messages: Any, more: Any, told: str, train: Train
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        train(QWEN_STYLE, {"messages": messages, **more})
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.hint and told in problem.message
    assert "chats.jsonl' line 1" in problem.message


def test_a_template_without_tool_calls_is_told_before_a_run() -> None:
    """A reply that is a call would be trained as an empty reply."""
    silent = ChatTemplate(PARTS_STYLE, {}, source="parts")
    with pytest.raises(ProblemsFound, match="omits the tool calls of message 2 of line 1"):
        check_template_renders_messages(silent, [ASKED, call("Bern", content="")], "line 1")
    loud = load_folder_chat_template(FOLDER)
    check_template_renders_messages(loud, [ASKED, REPLY], "line 1")
    qwen = ChatTemplate(QWEN_STYLE, {}, source="qwen")
    check_template_renders_messages(qwen, [ASKED, call("Bern", content="")], "line 1")
