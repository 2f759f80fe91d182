"""Routes that answer with JSON, and values of requests."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from anyio import CapacityLimiter, move_on_after, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanrun.config.json_text import parse_json
from titanrun.ui.refusal import Refusal, build_json_response

Answer = Callable[[Any], Any]
# requests of one kind at a time: else one slow recipe takes all threads
MAX_ANSWERS = 4
# how often a long answer looks whether its page still waits, and the status that nobody reads then
GONE_SECONDS = 0.25
GONE = 499


def get_route(path: str, answer: Callable[[Request], Any]) -> Route:
    """Return a route that answers from the query; files are read in a thread."""

    async def handle(request: Request) -> Response:
        task = asyncio.ensure_future(to_thread.run_sync(answer, request, abandon_on_cancel=True))
        # a page that asks again leaves its first request: as long as thousands of runs are read,
        # such requests would count, and the page itself be turned away
        while not (await asyncio.wait([task], timeout=GONE_SECONDS))[0]:
            if await request.is_disconnected():
                task.cancel()
                return Response(status_code=GONE)
        return build_json_response(task.result())

    return Route(f"/api{path}", handle, methods=["GET"])


def post_route(path: str, answer: Answer, *, seconds: float | None = None) -> Route:
    """Return a route that answers from a JSON object, in a thread.

    Args:
        path: Path below /api.
        answer: What returns the data.
        seconds: How long the page waits at most. The thread ends on its own later, so that this
            is for answers that change nothing.
    """
    limiter: list[CapacityLimiter] = []

    async def handle(request: Request) -> Response:
        data = await read_json(request)
        if not limiter:
            limiter.append(CapacityLimiter(MAX_ANSWERS))
        with move_on_after(seconds):
            found = await to_thread.run_sync(
                answer, data, limiter=limiter[0], abandon_on_cancel=seconds is not None
            )
            return build_json_response(found)
        raise Refusal(429, "busy", f"no answer within {seconds:g} s")

    return Route(f"/api{path}", handle, methods=["POST"])


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Raise Refusal if it is something else."""
    try:
        data = parse_json(await request.body())
    except ValueError:
        raise Refusal(400, "usage", "the request is not JSON") from None
    if not isinstance(data, dict):
        raise Refusal(400, "usage", "the request is not a JSON object")
    return data


def get_text(data: Mapping[str, Any], name: str) -> str:
    """Return a text of a request. Raise Refusal if it is missing."""
    value = data.get(name)
    if not isinstance(value, str):
        raise Refusal(400, "usage", f"'{name}' is missing")
    return value


def get_number(data: Mapping[str, Any], name: str) -> int:
    """Return a whole number of a request. Raise Refusal if it is missing."""
    value = data.get(name)
    if type(value) is not int or value < 0:
        raise Refusal(400, "usage", f"'{name}' is missing")
    return value


def parse_query_number(text: str) -> int:
    """Return a whole number of a query. Raise Refusal if it is none."""
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(400, "usage", f"'{text[:20]}' is not a number")
    return int(text)


def get_words(data: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts of a request, empty if it is missing."""
    value = data.get(name)
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
