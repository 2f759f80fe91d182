"""Routes that answer with JSON, and values of requests."""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from anyio import CapacityLimiter, move_on_after, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from titanrun.config.json_text import parse_json
from titanrun.ui.refusal import Refusal, build_json_response

Answer = Callable[[Any], Any]
# requests of one kind at a time: else one slow recipe takes all threads
MAX_ANSWERS = 4
# how often a long answer looks whether its page still waits, and the status that nobody reads then
GONE_SECONDS = 0.25
GONE = 499


class EncodedRoute(Route):
    """A route whose parts may hold an encoded slash: the id of a run is a path below the runs."""

    def matches(self, scope: MutableMapping[str, Any]) -> tuple[Match, MutableMapping[str, Any]]:
        """Compare the path before it is decoded, and decode what its parts hold."""
        match, child = super().matches({**scope, "path": scope["raw_path"].decode("latin-1")})
        if match is not Match.NONE:
            found = {name: unquote(value) for name, value in child["path_params"].items()}
            child["path_params"] = found
        return match, child


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

    return EncodedRoute(f"/api{path}", handle, methods=["GET"])


def post_route(
    path: str, answer: Answer, *, seconds: float | None = None, method: str = "POST"
) -> Route:
    """Return a route that answers from a JSON object and the parts of its path, in a thread.

    Args:
        path: Path below /api.
        answer: What returns the data.
        seconds: How long the page waits at most. The thread ends on its own later, so that this
            is for answers that change nothing.
        method: POST, or DELETE, whose body may be empty.
    """
    limiter: list[CapacityLimiter] = []

    async def handle(request: Request) -> Response:
        body = {} if method == "DELETE" else await read_json(request)
        data = {**body, **request.path_params}
        if not limiter:
            limiter.append(CapacityLimiter(MAX_ANSWERS))
        with move_on_after(seconds):
            found = await to_thread.run_sync(
                answer, data, limiter=limiter[0], abandon_on_cancel=seconds is not None
            )
            return build_json_response(found)
        raise Refusal(429, "busy", f"no answer within {seconds:g} s")

    return EncodedRoute(f"/api{path}", handle, methods=[method])


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
