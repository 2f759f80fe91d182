"""Requests of OpenAI's HTTP interface: what is read, and what is refused.

Unknown keys are ignored. Known keys with a value that is not supported are refused, null means
absent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from titanrun.components.data.spec.chat_content import Message
from titanrun.config.json_text import parse_json
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.serving.chat_model import ReplyOptions

Unit = Annotated[float, Field(ge=0, le=1)]
R = TypeVar("R", bound=BaseModel)
MAX_SEED = 2**31


@dataclass
class ApiError(Exception):
    """An error that the client gets.

    Args:
        status: HTTP status.
        message: what is wrong.
        param: the key of the request that is wrong.
        code: short name that programs compare.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool | None = None


class ResponseFormat(BaseModel):
    """Format of a reply."""

    type: Literal["text"]


class RequestFields(BaseModel):
    """Keys that requests for replies and for continuations share."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    n: Annotated[int, Field(ge=1, le=8)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Literal[0] | float | None = None
    presence_penalty: Literal[0] | float | None = None

    @field_validator("frequency_penalty", "presence_penalty")
    @classmethod
    def _check_penalty(cls, value: float | None) -> float | None:
        if value:
            raise ValueError("penalties are not supported: only 0 is")
        return value

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, value: str | list[str] | None) -> str | list[str] | None:
        if "" in ([value] if isinstance(value, str) else value or []):
            raise ValueError("a stop text is not empty")
        return value

    @property
    def new_token_limit(self) -> int | None:
        """Most tokens of a reply."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int:
        """Number of most likely tokens to return of each position."""
        return 0

    def get_options(self, index: int, draw_seed: Callable[[], int]) -> ReplyOptions:
        """Return how reply number `index` is generated; `draw_seed` is for requests without one."""
        seed = draw_seed() if self.seed is None else self.seed % MAX_SEED
        sampling = SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=seed + index,
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return ReplyOptions(sampling, self.new_token_limit, stop, self.num_top_logprobs)


class ChatRequest(RequestFields):
    """Request for a reply in a conversation."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    response_format: ResponseFormat | None = None

    @property
    def new_token_limit(self) -> int | None:
        """Most tokens of a reply."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_top_logprobs(self) -> int:
        """Number of most likely tokens to return of each position."""
        return self.top_logprobs or 0

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "'top_logprobs' needs 'logprobs': true", "top_logprobs")
        if self.logprobs and self.stream:
            raise ApiError(400, "logprobs are not supported in streams", "logprobs")
        return self

    @property
    def shown_tools(self) -> list[dict[str, Any]] | None:
        """Tools that the model gets to see."""
        return None if self.tool_choice == "none" else self.tools or None


class CompletionRequest(RequestFields):
    """Request for continuations of prompts."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def num_top_logprobs(self) -> int:
        """Number of most likely tokens to return of each position."""
        return self.logprobs or 0

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.echo and self.stream:
            raise ApiError(400, "echo is not supported in streams", "echo")
        if self.logprobs is not None and (self.echo or self.stream):
            raise ApiError(400, "logprobs are not supported with echo or in streams", "logprobs")
        return self


def parse_request(kind: type[R], body: bytes) -> R:
    """Return a request.

    Raises:
        ApiError: It is not JSON, or a key has a value that is not supported.
    """
    try:
        data = parse_json(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is not JSON: {error}") from None
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        key = found[0]["loc"][:1]
        # of a value that may have several types, the last one is the most general
        told = [one["msg"] for one in found if one["loc"][:1] == key][-1]
        told = told.removeprefix("Value error, ")
        where = f"'{key[0]}'" if key else "the request"
        raise ApiError(400, f"{where}: {told}", str(key[0]) if key else None) from None


def parse_messages(request: ChatRequest, *, has_developer: bool) -> list[Message]:
    """Return the messages as chat templates read them.

    Args:
        request: the request.
        has_developer: whether the template knows the role developer, which else is system.

    Raises:
        ApiError: A message is malformed.
    """
    messages = []
    for number, message in enumerate(request.messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise ApiError(400, f"messages[{number}] has no role", "messages")
        if role == "developer" and not has_developer:
            role = "system"
        calls = message.get("tool_calls")
        found: Message = {
            "role": role,
            "content": parse_message_text(message.get("content"), number, may_miss=bool(calls)),
        }
        if calls:
            found["tool_calls"] = [parse_call(call, number) for call in calls]
        messages.append(found)
    return messages


def parse_message_text(content: Any, number: int, *, may_miss: bool) -> str:
    """Return the content of a message, a text or a list of text parts, as a text.

    Raises:
        ApiError: It is something else.
    """
    if isinstance(content, str):
        return content
    if content is None and may_miss:
        return ""
    parts = content if isinstance(content, list) else [None]
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        message = f"messages[{number}].content is neither a text nor a list of text parts"
        raise ApiError(400, message, "messages")
    return "".join(str(text) for text in texts)


def parse_call(call: Any, number: int) -> dict[str, Any]:
    """Return a call of a tool, its arguments as an object.

    Raises:
        ApiError: It is malformed.
    """
    function: Any = call.get("function") if isinstance(call, dict) else None
    try:
        arguments = function["arguments"]
        parsed = parse_json(arguments) if isinstance(arguments, str) else arguments
        return {"type": "function", "function": {"name": function["name"], "arguments": parsed}}
    except (TypeError, KeyError, ValueError, RecursionError):
        message = f"messages[{number}].tool_calls holds no function with arguments as JSON"
        raise ApiError(400, message, "messages") from None
