"""What the server answers, to clients that are wrong too."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from titanrun.worker.serving.generation_queue import GenerationQueue
from titanrun.worker.serving.openai_app import MAX_BODY_BYTES

HI = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS = "/chat/completions", "/completions"


def test_a_key_is_asked_for_where_there_is_one(open_server: Any) -> None:
    server = open_server(key="secret")
    assert server.ask("/models")[0] == 401
    assert server.ask("/models", Authorization="Bearer wrong")[0] == 401
    assert server.ask("/models", Authorization="Bearer secret")[0] == 200
    with urlopen(server.url.removesuffix("/v1") + "/health") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("data", "status", "param", "told"),
    [
        (b"{", 400, None, "not JSON"),
        (b"[]", 400, None, "the request"),
        ({"model": "mine"}, 400, "messages", "Field required"),
        ({"model": "mine", "messages": []}, 400, "messages", "at least 1"),
        ({"model": "other", "messages": HI}, 404, "model", "no model 'other'"),
        ({"model": "mine", "messages": HI, "temperature": 3}, 400, "temperature", "less than"),
        ({"model": "mine", "messages": HI, "max_tokens": 0}, 400, "max_tokens", "greater than"),
        ({"model": "mine", "messages": HI, "n": 9}, 400, "n", "less than"),
        ({"model": "mine", "messages": HI, "stop": [""]}, 400, "stop", "not empty"),
        ({"model": "mine", "messages": HI, "stop": list("abcde")}, 400, "stop", "at most 4"),
        (
            {"model": "mine", "messages": HI, "presence_penalty": 1},
            400,
            "presence_penalty",
            "not supported",
        ),
        ({"model": "mine", "messages": HI, "top_logprobs": 3}, 400, "top_logprobs", "needs"),
        ({"model": "mine", "messages": HI, "top_logprobs": 21}, 400, "top_logprobs", "20"),
        (
            {"model": "mine", "messages": HI, "response_format": {"type": "json_object"}},
            400,
            "response_format",
            "text",
        ),
        ({"model": "mine", "messages": [{"role": "user"}]}, 400, "messages", "messages[0].content"),
        ({"model": "mine", "messages": [{"content": "x"}]}, 400, "messages", "no role"),
        (
            {"model": "mine", "messages": [{"role": "tool", "content": "x"}]},
            400,
            "messages",
            "rejects the messages",
        ),
        (
            {"model": "mine", "messages": HI, "tools": [{"type": "function"}]},
            400,
            "tools",
            "does not support tools",
        ),
        (
            {"model": "mine", "messages": [{"role": "user", "content": "x\ud83d"}]},
            400,
            "messages",
            "is not Unicode text",
        ),
        ({"model": "mine", "messages": HI, "stop": "\udcff"}, 400, "messages", "not Unicode"),
        ({"model": "mine", "messages": HI, "max_tokens": 1000}, 413, None, "1,000 tokens"),
        (b" " * (MAX_BODY_BYTES + 1), 413, None, "larger than 8 MiB"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    open_server: Any, data: Any, status: int, param: str | None, told: str
) -> None:
    found, answer = open_server().ask(CHAT, data)
    assert found == status and answer["error"]["param"] == param
    assert told in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("path", "data"), [("/responses", b"{}"), (CHAT, None)])
def test_an_unknown_path_is_told_the_known_ones(open_server: Any, path: str, data: Any) -> None:
    status, answer = open_server().ask(path, data)
    method = "GET" if data is None else "POST"
    assert status == 404
    assert answer["error"]["message"] == (
        f"no such path: {method} /v1{path}; use GET /v1/models, GET /v1/models/{{name}}, POST "
        "/v1/chat/completions, POST /v1/completions, GET /metrics, GET /health"
    )


def test_null_means_absent_and_unknown_keys_are_ignored(open_server: Any) -> None:
    request = {"model": "mine", "messages": HI, "max_tokens": None, "stop": None, "user": "me"}
    status, answer = open_server().ask(CHAT, request)
    assert status == 200
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello"}


def test_a_stop_text_is_left_out_and_half_a_character_held_back(open_server: Any) -> None:
    """Each piece of a stream is final: joined, they are the answer that is not streamed."""
    server = open_server()
    server.say("one naïve ☕ STORM two STOP three")
    request = {"model": "mine", "messages": HI, "stop": "STOP", "temperature": 0}
    _, whole = server.ask(CHAT, request)
    assert whole["choices"][0]["message"]["content"] == "one naïve ☕ STORM two "
    assert whole["choices"][0]["finish_reason"] == "stop"
    body = json.dumps({**request, "stream": True}).encode()
    with urlopen(Request(server.url + CHAT, body)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.read().decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == "one naïve ☕ STORM two " and len(pieces) > 4
    assert not any("\ufffd" in piece for piece in pieces)


def test_too_many_waiting_requests_are_turned_away(open_server: Any) -> None:
    server = open_server(queue=GenerationQueue(-1))
    status, answer = server.ask(CHAT, {"model": "mine", "messages": HI})
    assert status == 503 and answer["error"]["type"] == "server_error"


def test_prompts_are_texts_or_tokens(open_server: Any) -> None:
    server = open_server()
    ids = server.chat_model.tokenizer.encode("Once upon", add_bos=False, add_eos=False)
    for prompt, count in (("Once upon", 1), (ids, 1), (["a", "b"], 2), ([ids, ids, ids], 3)):
        status, answer = server.ask(COMPLETIONS, {"model": "mine", "prompt": prompt, "echo": True})
        assert status == 200 and len(answer["choices"]) == count
    assert answer["choices"][0]["text"] == "Once uponhello"
    for prompt in ("", [], [[]], [99999], [-1]):
        status, answer = server.ask(COMPLETIONS, {"model": "mine", "prompt": prompt})
        assert status == 400 and answer["error"]["param"] == "prompt"


def test_pages_of_an_allowed_origin_read_answers(open_server: Any) -> None:
    origin = "http://localhost:3000"
    preflight = {"Access-Control-Request-Method": "POST"}
    preflight |= {"Access-Control-Request-Headers": "authorization,content-type"}

    def get_allowed(url: str, origin: str) -> str | None:
        with urlopen(Request(url, headers={"Origin": origin})) as answer:
            return answer.headers["access-control-allow-origin"]

    server = open_server(origins=[origin])
    assert get_allowed(f"{server.url}/models", origin) == origin
    assert get_allowed(f"{server.url}/models", "http://elsewhere") is None
    asked = Request(server.url + CHAT, headers={"Origin": origin, **preflight}, method="OPTIONS")
    with urlopen(asked) as answer:
        assert answer.status == 200 and "POST" in answer.headers["access-control-allow-methods"]
    assert get_allowed(f"{open_server().url}/models", origin) is None


def test_as_many_requests_run_at_once_as_there_are_threads(open_server: Any) -> None:
    """Each has a copy of the modules; what waits is counted."""
    server = open_server(num_threads=2, says="a " * 20)
    peak, running, lock = 0, 0, threading.Lock()
    original = type(server.model).forward

    def forward(self: Any, *words: Any) -> Any:
        nonlocal peak, running
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.01)
        try:
            return original(self, *words)
        finally:
            with lock:
                running -= 1

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(type(server.model), "forward", forward)
        answers = list(
            pool.map(lambda _: server.ask(CHAT, {"model": "mine", "messages": HI}), range(4))
        )
    texts = {answer["choices"][0]["message"]["content"] for _, answer in answers}
    assert peak == 2 and texts == {"a " * 20}
