"""OpenAI's own client talks to the server."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.openai
HI: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    }
]


@pytest.fixture
def client(open_server: Any) -> Any:
    server = open_server(key="secret")
    return make_client(server), server


def make_client(server: Any, key: str = "secret") -> Any:
    from openai import OpenAI

    return OpenAI(base_url=server.url, api_key=key, max_retries=0)


def test_models_are_listed(client: Any) -> None:
    found, _ = client
    models = found.models.list().data
    assert [model.id for model in models] == ["mine", "mine-base"]
    assert [found.models.retrieve(model.id) for model in models] == models


def test_each_model_replies_under_its_name(client: Any) -> None:
    found, server = client
    server.say("hello there")
    for name, said in (("mine", "hello there"), ("mine-base", "")):
        answer = found.chat.completions.create(model=name, messages=HI)
        assert answer.model == name and answer.choices[0].message.content == said


def test_errors_have_the_types_of_the_client(client: Any) -> None:
    import openai

    found, server = client
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        found.chat.completions.create(model="other", messages=HI)
    with pytest.raises(openai.NotFoundError):
        found.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError):
        make_client(server, "wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="does not support tools"):
        found.chat.completions.create(model="mine", messages=HI, tools=TOOLS)


def test_a_reply_is_read_with_its_usage_and_log_probabilities(client: Any) -> None:
    found, server = client
    server.say("hello there")
    answer = found.chat.completions.create(model="mine", messages=HI, logprobs=True, n=2)
    assert [choice.message.content for choice in answer.choices] == ["hello there"] * 2
    assert answer.choices[0].finish_reason == "stop"
    said = answer.choices[0].logprobs.content
    assert "".join(token.token for token in said[:-1]) == "hello there"
    assert answer.usage.completion_tokens == 2 * len(said)
    server.say("hello there", ends=False)
    short = found.chat.completions.create(model="mine", messages=HI, max_completion_tokens=1)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 1


def test_the_likeliest_tokens_are_read_with_their_log_probabilities(client: Any) -> None:
    """The scripted model gives one token nearly all probability."""
    found, server = client
    server.say("hello there")
    options = {"logprobs": True, "top_logprobs": 3}
    answer = found.chat.completions.create(model="mine", messages=HI, **options)
    for token in answer.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-6)
        assert token.top_logprobs[1].logprob == pytest.approx(token.logprob - 60, abs=1e-3)
    answer = found.completions.create(model="mine", prompt="Once", max_tokens=9, logprobs=2)
    read = answer.choices[0].logprobs
    texts, offsets = read.tokens, read.text_offset
    assert "".join(texts[:-1]) == answer.choices[0].text == "hello there"
    assert offsets == [len("".join(texts[:number])) for number in range(len(texts))]
    assert [next(iter(top)) for top in read.top_logprobs] == texts


def test_a_stream_is_read_piece_by_piece(client: Any) -> None:
    found, server = client
    server.say("one two ☕ three")
    options = {"include_usage": True}
    chunks = list(
        found.chat.completions.create(
            model="mine", messages=HI, stream=True, stream_options=options
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "one two ☕ three" and chunks[-1].usage.total_tokens > 0
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    with found.chat.completions.stream(model="mine", messages=HI) as stream:
        assert any(event.type == "content.delta" for event in stream)
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "one two ☕ three"


def test_completions_are_read_whole_and_streamed(client: Any) -> None:
    found, server = client
    server.say("upon a time")
    answer = found.completions.create(model="mine", prompt="Once ", max_tokens=20)
    assert answer.choices[0].text == "upon a time"
    chunks = found.completions.create(model="mine", prompt="Once ", max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "upon a time"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_calls_of_tools_go_there_and_back(open_server: Any, is_streamed: bool) -> None:
    server = open_server(template="qwen3_instruct", key="secret")
    found = make_client(server)
    server.say('Let me see\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    if is_streamed:
        with found.chat.completions.stream(model="mine", messages=HI, tools=TOOLS) as stream:
            choice = stream.get_final_completion().choices[0]
    else:
        choice = found.chat.completions.create(model="mine", messages=HI, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see"
    (call,) = choice.message.tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments) == {"a": 1}
    server.say("It is 1")
    result = {"role": "tool", "tool_call_id": call.id, "content": "1"}
    said = {"role": "assistant", "tool_calls": [json.loads(call.model_dump_json())]}
    answer = found.chat.completions.create(model="mine", messages=[*HI, said, result], tools=TOOLS)
    assert answer.choices[0].message.content == "It is 1"


def test_many_requests_at_once_are_all_answered(client: Any) -> None:
    found, server = client
    server.say("hello")
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: found.chat.completions.create(model="mine", messages=HI), range(8))
        )
    assert [answer.choices[0].message.content for answer in answers] == ["hello"] * 8


@pytest.mark.parametrize("is_streamed", [False, True])
def test_generation_ends_when_the_client_goes_away(client: Any, is_streamed: bool) -> None:
    import openai

    found, server = client
    server.say("a " * 200, ends=False)
    server.model.delay = 0.02
    if is_streamed:
        stream = found.chat.completions.create(model="mine", messages=HI, stream=True)
        next(iter(stream))
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            found.with_options(timeout=0.3).chat.completions.create(model="mine", messages=HI)
    time.sleep(0.6)
    steps = server.model.steps
    time.sleep(0.3)
    assert server.model.steps == steps < 100
