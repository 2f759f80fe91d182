"""Requests that the server refuses, and problems of titanrun as answers."""

import math
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from titanrun.config.diagnostics import problem_to_dict
from titanrun.config.problems import ProblemsFound


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 - public name, reads as what happened
    """A request that is refused: HTTP status, code, one sentence, and data beside it."""

    status: int
    code: str
    message: str
    data: dict[str, Any] | None = None


def build_refusal_response(request: Request, refusal: Exception) -> Response:
    """Return a refusal as JSON."""
    assert isinstance(refusal, Refusal)
    error = {"code": refusal.code, "message": refusal.message}
    return JSONResponse({"error": error, **(refusal.data or {})}, refusal.status)


def build_problems_response(request: Request, found: Exception) -> Response:
    """Return problems that a request led to as JSON; the first one is the message."""
    assert isinstance(found, ProblemsFound)
    first = found.problems[0]
    error = {"code": first.label, "message": first.message, "help": first.hint}
    problems = [problem_to_dict(problem) for problem in found.problems]
    return JSONResponse({"error": error, "problems": problems}, 400)


def build_json_response(data: object) -> Response:
    """Return data as JSON; NaN and infinities are texts, as in metrics.jsonl."""
    return JSONResponse(encode_nonfinite_numbers(data))


def encode_nonfinite_numbers(data: Any) -> Any:
    """Return data in which every number is one of JSON."""
    if isinstance(data, dict):
        return {key: encode_nonfinite_numbers(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [encode_nonfinite_numbers(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
