"""HTTP application with OpenAI's interface, for one model or two."""

import asyncio
import hmac
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from titanrun.config.problems import ProblemsFound
from titanrun.worker.serving.chat_model import ChatModel, PromptTooLongError, Reply
from titanrun.worker.serving.generation_queue import GenerationQueue, IsGone, QueueFullError
from titanrun.worker.serving.openai_answers import (
    AnswerHead,
    describe_chat_choice,
    describe_completion_logprobs,
    describe_logprobs,
    describe_message,
    describe_request_error,
    describe_served_model,
    describe_usage,
    format_event,
)
from titanrun.worker.serving.openai_requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    RequestFields,
    parse_messages,
    parse_request,
)
from titanrun.worker.serving.reply_job import ReplyJob, encode_prompts, plan_replies

MAX_BODY_BYTES = 8 * 1024**2
POLL_SECONDS = 0.2
RETRY_SECONDS = 5
OnText = Callable[[int, str], None]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True)
class OpenAIApp:
    """Handlers of the requests.

    Args:
        models: the models, each with a name of its own.
        queue: what generates.
        key: what clients must send as a bearer token. None: nothing.
        origins: origins of pages that browsers let read answers, `*` for any.
    """

    models: Sequence[ChatModel]
    queue: GenerationQueue
    key: str | None = None
    origins: Sequence[str] = ()
    created: float = field(default_factory=time.time)
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known_paths: str = ""

    def build(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/v1/models", self._guard(self.list_models)),
            Route("/v1/models/{name:path}", self._guard(self.show_model)),
            Route("/v1/chat/completions", self._guard(self.chat), methods=["POST"]),
            Route("/v1/completions", self._guard(self.complete), methods=["POST"]),
            Route("/metrics", self._guard(self.show_metrics)),
            Route("/health", self.check_health),
        ]
        self._known_paths = ", ".join(
            f"{'POST' if 'POST' in (route.methods or ()) else 'GET'} {route.path_format}"
            for route in routes
        )

        @asynccontextmanager
        async def close_at_end(_: Starlette) -> AsyncIterator[None]:
            yield
            self.queue.close()

        handlers = {404: self.report_unknown_path, 405: self.report_unknown_path}
        return Starlette(
            routes=routes,
            exception_handlers=handlers,
            lifespan=close_at_end,
            middleware=self._build_middleware(),
        )

    def _build_middleware(self) -> list[Middleware]:
        """Return what lets pages of other origins read answers, nothing if none may."""
        if not self.origins:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=list(self.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        ]

    def count(self, **amounts: int) -> None:
        """Add to the counts; several threads do."""
        with self._lock:
            self.counts.update(amounts)

    def _guard(self, handler: Handler) -> Handler:
        """Return a handler that checks the key and turns errors into answers."""

        async def answer(request: Request) -> Response:
            self.count(requests=1)
            try:
                self.check_key(request)
                return await handler(request)
            except ApiError as error:
                status, body = (
                    error.status,
                    describe_request_error(
                        error.message, param=error.param, code=error.code, status=error.status
                    ),
                )
            except PromptTooLongError as error:
                status = 413
                body = describe_request_error(str(error), code="context_length_exceeded")
            except ProblemsFound as error:
                param = "messages" if "/chat/" in request.url.path else "prompt"
                status, body = 400, describe_request_error(str(error), param=param)
            except QueueFullError:
                status = 503
                body = describe_request_error("too many requests are waiting", status=503)
            headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
            self.count(**{f"errors_{status}": 1})
            return JSONResponse(body, status, headers)

        return answer

    def check_key(self, request: Request) -> None:
        """Raise ApiError if the client does not send the key."""
        if self.key is None:
            return
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(), self.key.encode()):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    async def check_health(self, _: Request) -> Response:
        """Answer that the server runs."""
        return PlainTextResponse("ok\n")

    async def show_metrics(self, _: Request) -> Response:
        """Answer with the counts in Prometheus' text format."""
        lines = [f"titanrun_{name}_total {count}" for name, count in sorted(self.counts.items())]
        lines.append(f"titanrun_requests_waiting {self.queue.num_waiting}")
        return PlainTextResponse("\n".join(lines) + "\n")

    async def report_unknown_path(self, request: Request, _: Exception) -> Response:
        """Answer a request for what does not exist, with what does."""
        message = f"no such path: {request.method} {request.url.path}; use {self._known_paths}"
        return JSONResponse(describe_request_error(message, status=404), 404)

    async def list_models(self, _: Request) -> Response:
        """Answer with the models."""
        data = [describe_served_model(model.name, self.created) for model in self.models]
        return JSONResponse({"object": "list", "data": data})

    async def show_model(self, request: Request) -> Response:
        """Answer with the model of that name."""
        model = self.find_model(request.path_params["name"])
        return JSONResponse(describe_served_model(model.name, self.created))

    def find_model(self, name: str) -> ChatModel:
        """Return the model of that name.

        Raises:
            ApiError: There is none.
        """
        for model in self.models:
            if model.name == name:
                return model
        names = " and ".join(f"'{model.name}'" for model in self.models)
        message = f"there is no model '{name}' here, only {names}"
        raise ApiError(404, message, "model", "model_not_found")

    async def chat(self, request: Request) -> Response:
        """Answer with the next message of a conversation."""
        asked = parse_request(ChatRequest, await read_body(request))
        model = self.find_model(asked.model)
        tools = asked.shown_tools
        if tools and not model.reads_tools():
            raise ApiError(400, "the model's chat template does not support tools", "tools")
        messages = parse_messages(asked, has_developer=model.reads_role("developer"))
        job = plan_replies(model, asked, [model.encode_chat(messages, tools)], is_chat=True)
        head = AnswerHead.make("chat.completion", model.name, time.time())
        if asked.stream:
            return self.stream(asked, job, head, has_tools=bool(tools))
        replies = await self.wait_for_replies(request, job)
        choices = [
            describe_chat_choice(
                index,
                reply,
                has_tools=bool(tools),
                logprobs=describe_logprobs(model, reply) if asked.logprobs else None,
            )
            for index, reply in enumerate(replies)
        ]
        usage = describe_usage(len(job.prompts[0]), replies)
        return JSONResponse(head.wrap(choices, usage=usage))

    async def complete(self, request: Request) -> Response:
        """Answer with continuations of prompts."""
        asked = parse_request(CompletionRequest, await read_body(request))
        model = self.find_model(asked.model)
        prompts = encode_prompts(model, asked)
        job = plan_replies(model, asked, prompts, is_chat=False)
        head = AnswerHead.make("text_completion", model.name, time.time())
        if asked.stream:
            return self.stream(asked, job, head, has_tools=False)
        replies = await self.wait_for_replies(request, job)
        choices = []
        for index, (prompt, reply) in enumerate(zip(job.prompts, replies, strict=True)):
            before = model.tokenizer.decode(prompt) if asked.echo else ""
            finish = "length" if reply.finish == "length" else "stop"
            choice = {"index": index, "text": before + reply.text, "finish_reason": finish}
            wanted = asked.logprobs is not None
            logprobs = describe_completion_logprobs(model, reply) if wanted else None
            choices.append({**choice, "logprobs": logprobs})
        usage = describe_usage(sum(map(len, prompts)), replies)
        return JSONResponse(head.wrap(choices, usage=usage))

    def run_job(self, job: ReplyJob, on_text: OnText, is_gone: IsGone) -> list[Reply]:
        """Generate all replies of a request, in the queue's thread."""
        replies = []
        for index, (prompt, options) in enumerate(zip(job.prompts, job.options, strict=True)):
            if is_gone():
                break
            reply = job.model.reply(
                prompt,
                options,
                is_chat=job.is_chat,
                on_text=partial(on_text, index),
                is_cancelled=is_gone,
            )
            self.count(prompt_tokens=len(prompt), completion_tokens=len(reply.tokens))
            replies.append(reply)
        return replies

    async def wait_for_replies(self, request: Request, job: ReplyJob) -> list[Reply]:
        """Return the replies; give up if the client goes away."""
        work = partial(self.run_job, job, lambda index, text: None)
        async with self.queue.start(work) as future:
            while not future.done():
                await asyncio.wait([future], timeout=POLL_SECONDS)
                if not future.done() and await request.is_disconnected():
                    raise ClientDisconnect
            return future.result()

    def stream(
        self, asked: RequestFields, job: ReplyJob, head: AnswerHead, *, has_tools: bool
    ) -> Response:
        """Return an answer that is sent while it is generated."""
        if self.queue.is_full:
            raise QueueFullError
        wants_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        events = self.iter_events(job, head, has_tools=has_tools, wants_usage=wants_usage)
        return StreamingResponse(events, media_type="text/event-stream")

    async def iter_events(
        self, job: ReplyJob, head: AnswerHead, *, has_tools: bool, wants_usage: bool
    ) -> AsyncIterator[bytes]:
        """Yield the events of a stream. With tools, each reply is sent as a whole."""
        pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def pass_on(index: int, text: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (index, text))

        async with self.queue.start(partial(self.run_job, job, pass_on)) as future:
            future.add_done_callback(lambda _: pieces.put_nowait(None))
            if job.is_chat:
                for index in range(len(job.prompts)):
                    first: dict[str, object] = {"role": "assistant", "content": ""}
                    yield format_event(head.wrap_chunk([describe_delta(index, first)]))
            while (piece := await pieces.get()) is not None:
                if not has_tools:
                    yield format_event(head.wrap_chunk([describe_piece(job, *piece)]))
            error = future.exception()
            if error is not None:  # the answer has begun: only an event can report it
                yield format_event(
                    describe_request_error(f"generation failed: {error}", status=500)
                )
                return
            replies = future.result()
            for index, reply in enumerate(replies):
                for choice in describe_ends(job, index, reply, has_tools=has_tools):
                    yield format_event(head.wrap_chunk([choice]))
            if wants_usage:
                counted = job.prompts[:1] if job.is_chat else job.prompts
                usage = describe_usage(sum(map(len, counted)), replies)
                yield format_event(head.wrap_chunk([], usage=usage))
            yield format_event("[DONE]")


def describe_delta(
    index: int, delta: dict[str, object], finish: str | None = None
) -> dict[str, object]:
    """Return what a chunk of a streamed reply adds to it."""
    return {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}


def describe_piece(
    job: ReplyJob, index: int, text: str, finish: str | None = None
) -> dict[str, object]:
    """Return a piece of text as a choice of a chunk."""
    if job.is_chat:
        return describe_delta(index, {"content": text}, finish)
    return {"index": index, "text": text, "finish_reason": finish, "logprobs": None}


def describe_ends(
    job: ReplyJob, index: int, reply: Reply, *, has_tools: bool
) -> list[dict[str, object]]:
    """Return the last choices of a streamed reply."""
    if not job.is_chat:
        finish = "length" if reply.finish == "length" else "stop"
        return [describe_piece(job, index, "", finish)]
    message, finish = describe_message(reply, has_tools=has_tools)
    if not has_tools:
        return [describe_delta(index, {}, finish)]
    calls = [
        {"index": number, **call} for number, call in enumerate(message.get("tool_calls") or [])
    ]
    delta: dict[str, object] = {"content": message["content"]}
    if calls:
        delta["tool_calls"] = calls
    return [describe_delta(index, delta), describe_delta(index, {}, finish)]


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: It is larger than a request may be.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the request is larger than {MAX_BODY_BYTES // 1024**2} MiB")
    return bytes(body)
