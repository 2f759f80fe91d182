"""Limits of the requests that the Hub's library sends while files are listed."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils import get_session, http_backoff  # type: ignore[attr-defined]

from titanrun.components.data.http_source import STALL_SECONDS
from titanrun.components.data.source_faults import get_last_try_end

MIN_TIMEOUT_SECONDS = 0.2


@contextmanager
def limit_hub_requests() -> Iterator[None]:
    """Make the Hub's library try each request once in the block, and wait for it as others do.

    The caller repeats them, and says so. The library's own retries take 23 seconds, in which a run
    could not be stopped, and it waits up to 100 seconds for some requests, without end for others.
    """
    with leave_out_hub_retries(), limit_hub_timeouts():
        yield


@contextmanager
def limit_hub_timeouts() -> Iterator[None]:
    """Give the requests of the Hub's library in the block the timeout of those to other servers.

    All together end soon after the time in which they are repeated.
    """
    # of the thread that asks: the library may send requests from others
    end = get_last_try_end()

    def limit(request: Any) -> None:
        seconds = STALL_SECONDS
        if end is not None:
            seconds = max(MIN_TIMEOUT_SECONDS, min(seconds, end - time.monotonic()))
        chosen = request.extensions.get("timeout") or {}
        parts = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {
            part: seconds if chosen.get(part) is None else min(seconds, chosen[part])
            for part in parts
        }

    # releases before 1.0 have another client, and no hooks
    hooks = getattr(get_session(), "event_hooks", {"request": []})["request"]
    hooks.append(limit)
    try:
        yield
    finally:
        hooks.remove(limit)


@contextmanager
def leave_out_hub_retries() -> Iterator[None]:
    """Make the Hub's library try each request once in the block, and log none."""
    logger, options = logging.getLogger("huggingface_hub"), http_backoff.__kwdefaults__ or {}
    before, level = dict(options), logger.level
    if "max_retries" in options:
        options["max_retries"] = 0
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        options.update(before)
        logger.setLevel(level)
