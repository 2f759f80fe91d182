"""Answers of OpenAI's HTTP interface."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.worker.serving.chat_model import ChatModel, Reply

TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of an answer share.

    Args:
        kind: `chat.completion` or `text_completion`.
        model: name of the model.
        created: seconds since 1970.
    """

    kind: str
    model: str
    created: int
    id: str = field(default="")

    @classmethod
    def make(cls, kind: str, model: str, created: float) -> "AnswerHead":
        """Return the head of a new answer."""
        prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
        return cls(kind, model, int(created), f"{prefix}-{secrets.token_hex(12)}")

    def wrap(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return an answer with these choices."""
        shared = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}
        return {**shared, "choices": choices, **more}

    def wrap_chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return a part of a streamed answer with these choices."""
        kind = "chat.completion.chunk" if self.kind == "chat.completion" else self.kind
        return {**self.wrap(choices, **more), "object": kind}


def describe_request_error(
    message: str, *, param: str | None = None, code: str | None = None, status: int = 400
) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe_usage(prompt: int, replies: Sequence[Reply]) -> dict[str, int]:
    """Return the counts of tokens of a request."""
    written = sum(len(reply.tokens) for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def describe_served_model(name: str, created: float) -> dict[str, Any]:
    """Return a model as the list of models shows it."""
    return {"id": name, "object": "model", "created": int(created), "owned_by": "titanrun"}


def describe_chat_choice(
    index: int, reply: Reply, *, has_tools: bool, logprobs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a reply as a choice of an answer."""
    message, finish = describe_message(reply, has_tools=has_tools)
    return {"index": index, "message": message, "finish_reason": finish, "logprobs": logprobs}


def describe_message(reply: Reply, *, has_tools: bool) -> tuple[dict[str, Any], str]:
    """Return a reply as a message, and why it ended.

    With tools, calls in the form `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` are
    listed.
    """
    finish = "length" if reply.finish == "length" else "stop"
    calls = find_tool_calls(reply.text) if has_tools else []
    if not calls:
        return {"role": "assistant", "content": reply.text}, finish
    text = TOOL_CALL.sub("", reply.text).strip()
    return {"role": "assistant", "content": text or None, "tool_calls": calls}, "tool_calls"


def find_tool_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text; none if one of them is not a call in JSON."""
    found = []
    for written in TOOL_CALL.findall(text):
        try:
            call = parse_json(written)
            function = {"name": str(call["name"]), "arguments": json.dumps(call["arguments"])}
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
        identity = f"call_{secrets.token_hex(12)}"
        found.append({"id": identity, "type": "function", "function": function})
    return found


def describe_logprobs(model: ChatModel, reply: Reply) -> dict[str, Any]:
    """Return the log-probability of each token of a chat's reply, and of the likeliest ones."""
    content = []
    tops = reply.top_logprobs or [{} for _ in reply.tokens]
    for token, logprob, top in zip(reply.tokens, reply.logprobs, tops, strict=True):
        likeliest = [describe_token(model, *pair) for pair in top.items()]
        content.append({**describe_token(model, token, logprob), "top_logprobs": likeliest})
    return {"content": content, "refusal": None}


def describe_token(model: ChatModel, token: int, logprob: float) -> dict[str, Any]:
    """Return a token with its log-probability."""
    text = get_visible_text(model, token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def get_visible_text(model: ChatModel, token: int) -> str:
    """Return the text of a token, of a special one its name."""
    return model.tokenizer.decode([token]) or model.find_token_text(token)


def describe_completion_logprobs(model: ChatModel, reply: Reply) -> dict[str, Any]:
    """Return the log-probability of each token of a continuation, as /v1/completions does."""
    texts = [get_visible_text(model, token) for token in reply.tokens]
    tops = [
        {get_visible_text(model, token): logprob for token, logprob in top.items()}
        for top in reply.top_logprobs
    ]
    return {
        "tokens": texts,
        "token_logprobs": reply.logprobs,
        "top_logprobs": tops or None,
        "text_offset": [0, *accumulate(map(len, texts[:-1]))] if texts else [],
    }


def format_event(data: Mapping[str, Any] | str) -> bytes:
    """Return an event of a stream."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()
