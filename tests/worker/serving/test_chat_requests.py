"""Replies for programs: requests in lines, and what is said piece by piece."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.commands.chat_requests import RequestLoop
from titanrun.worker.serving.chat_model import ReplyOptions
from titanrun.worker.serving.chat_session import ChatSession


@pytest.fixture
def answer(open_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model, and what it answers to requests."""
    monkeypatch.chdir(tmp_path)
    server = open_server(template="alpaca")

    def run(*requests: Any, count: int = 1) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        options = ReplyOptions(SamplingParams(temperature=0))
        session = ChatSession([server.chat_model] * count, options)
        lines = [one if isinstance(one, str) else json.dumps(one) for one in requests]
        # the end of the lines would cancel all replies
        loop = RequestLoop(session, lambda event: events.append(dict(event)))
        loop.read(lines)
        loop.has_ended = False
        loop.answer()
        return events

    return server, run


def test_pieces_are_whole_characters_and_make_up_the_reply(answer: Any) -> None:
    server, run = answer
    server.say("né 🦙 moon")
    events = run({"id": 7, "text": "Hi"})
    assert events[0] == {"ready": ["mine"]}
    pieces = [event["text"] for event in events if "text" in event]
    assert "".join(pieces) == "né 🦙 moon" and len(pieces) > 1
    assert not any("\ufffd" in piece for piece in pieces)
    done = next(event["done"] for event in events if "done" in event)
    assert done["reason"] == "stop" and done["tokens"] > len(pieces)
    assert events[-1] == {"id": 7, "end": True}


def test_a_cancelled_reply_says_so_and_the_next_one_is_whole(answer: Any) -> None:
    server, run = answer
    server.say("moon hill river")
    events = run({"cancel": 1}, {"id": 1, "text": "Hi"}, {"id": 2, "text": "Hi"})
    reasons = {event["id"]: event["done"]["reason"] for event in events if "done" in event}
    assert reasons == {1: "cancelled", 2: "stop"}


def test_each_model_replies_in_its_own_way_and_the_better_one_is_kept(answer: Any) -> None:
    server, run = answer
    server.say("moon hill river")
    ways = [{"max_new_tokens": 2}, {"max_new_tokens": 40}]
    events = run({"id": 1, "text": "Hi", "options": ways}, {"pick": 2}, count=2)
    reasons = [event["done"]["reason"] for event in events if "done" in event]
    assert reasons == ["length", "stop"] and events[-1] == {"picked": "picks.jsonl"}
    [pair] = [json.loads(line) for line in Path("picks.jsonl").read_text().splitlines()]
    assert pair["prompt"] == [{"role": "user", "content": "Hi"}]
    assert pair["chosen"][0]["content"] == "moon hill river"


def test_what_is_no_request_is_answered_and_nothing_ends(answer: Any) -> None:
    server, run = answer
    server.say("moon")
    wrong = ("{", "5", {}, {"id": 1, "text": "Hi", "options": [{"top_p": 7}]}, {"pick": 1})
    events = run(*wrong, {"reset": True, "system": "Be brief."}, {"id": 2, "text": "Hi"})
    assert sum("error" in event for event in events) == len(wrong)
    assert {"reset": True} in events and events[-1] == {"id": 2, "end": True}
