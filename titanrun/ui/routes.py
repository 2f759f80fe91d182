"""Routes of the server: each reads a request, asks one part, and returns JSON."""

from collections.abc import Callable, Mapping
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from titanrun.launch.run_control import request_save, request_stop
from titanrun.recipe.reference.explain import explain_word
from titanrun.runs.run_archive import archive_run_folders
from titanrun.runs.run_tags import change_tags
from titanrun.ui.commands import check_override
from titanrun.ui.event_stream import EventSource, parse_topics, stream_events
from titanrun.ui.job_routes import build_job_routes, build_queue_routes
from titanrun.ui.json_routes import (
    Answer,
    get_number,
    get_route,
    get_text,
    get_words,
    post_route,
    read_json,
)
from titanrun.ui.refusal import Refusal, build_json_response
from titanrun.ui.run_routes import build_run_routes
from titanrun.ui.ui_parts import UiParts

MAX_STREAMS = 8
EXAMINE_SECONDS = 30.0


def build_routes(parts: UiParts) -> list[Route]:
    """Return the routes of the API; a read-only server has none that writes or starts."""
    routes = [*build_file_routes(parts), *build_run_routes(parts), *build_queue_routes(parts)]
    routes.append(build_event_route(parts))
    if not parts.is_read_only:
        routes += [*build_action_routes(parts), *build_job_routes(parts)]
    return routes


def build_file_routes(parts: UiParts) -> list[Route]:
    """Return the routes that list, read and examine recipes."""
    workspace, examiner = parts.workspace, parts.examiner

    def read_file(request: Request) -> Any:
        found = workspace.read(request.query_params.get("path", ""))
        return {
            "text": found.text,
            "sha256": found.sha256,
            "newline": found.newline,
            "writable": found.is_writable and not parts.is_read_only,
            "reason": found.reason or ("the server is read-only" if parts.is_read_only else None),
        }

    def examine(data: Mapping[str, Any]) -> Any:
        words = (get_words(data, "want"), get_overrides(data))
        found = examiner.examine(get_text(data, "path"), get_text(data, "text"), *words)
        return {"version": data.get("version"), **found}

    def explain(data: Mapping[str, Any]) -> Any:
        word = get_text(data, "word")
        return {"text": examiner.read_alone(lambda: explain_word(word))}

    def at_offset(ask: Callable[[str, str, int], Any]) -> Answer:
        return lambda data: ask(
            get_text(data, "path"), get_text(data, "text"), get_number(data, "offset")
        )

    return [
        get_route("/about", lambda _: {**parts.about, "runs": str(parts.catalog.folder)}),
        get_route("/files", lambda _: {"files": workspace.list_files()}),
        get_route("/file", read_file),
        post_route("/explain", explain),
        *(
            post_route(path, answer, seconds=EXAMINE_SECONDS)
            for path, answer in {
                "/examine": examine,
                "/diff": lambda data: compare_text(parts, data),
                "/hover": at_offset(examiner.hover),
                "/complete": at_offset(examiner.complete),
                "/definition": at_offset(examiner.define),
                "/fix-all": lambda data: examiner.fix_all(
                    get_text(data, "path"), get_text(data, "text")
                ),
            }.items()
        ),
    ]


def get_overrides(data: Mapping[str, Any]) -> list[str]:
    """Return the overrides of a request. Raise Refusal if one of them is none."""
    overrides = get_words(data, "overrides")
    for override in overrides:
        check_override(override)
    return overrides


def compare_text(parts: UiParts, data: Mapping[str, Any]) -> Any:
    """Return the differences of a text from a run, or from another recipe that may be read."""
    kind, _, name = get_text(data, "other").partition(":")
    if kind == "run":
        place = str(parts.catalog.find_checkpoint(name, data.get("step")))
    else:
        parts.workspace.read(name)
        is_shipped = name.startswith("shipped:")
        place = name.partition(":")[2].rpartition(".")[0] if is_shipped else name
    return parts.examiner.compare(
        get_text(data, "path"),
        get_text(data, "text"),
        place,
        is_written=data.get("written") is True,
    )


def build_action_routes(parts: UiParts) -> list[Route]:
    """Return the routes that write files, send signals or start commands."""
    catalog = parts.catalog

    async def save_file(request: Request) -> Response:
        data = await read_json(request)
        match, none = request.headers.get("if-match"), request.headers.get("if-none-match")
        if match is None and none != "*":
            raise Refusal(400, "usage", "If-Match or If-None-Match is required")
        expected = None if match is None else match.strip('"')
        path, text = request.query_params.get("path", ""), get_text(data, "text")
        digest = await to_thread.run_sync(parts.workspace.save, path, text, expected)
        return build_json_response({"sha256": digest})

    def stop(data: Mapping[str, Any]) -> Any:
        folder = catalog.find(data["id"])
        request_stop(folder, should_save=data.get("now") is not True)
        return {}

    def save(data: Mapping[str, Any]) -> Any:
        request_save(catalog.find(data["id"]))
        return {}

    def tag(data: Mapping[str, Any]) -> Any:
        folder = catalog.find(data["id"])
        add, remove = get_words(data, "add"), get_words(data, "remove")
        tags = change_tags(folder, add=add, remove=remove)
        catalog.forget()
        return {"tags": tags}

    def archive(data: Mapping[str, Any]) -> Any:
        folders = [catalog.find(run_id) for run_id in get_words(data, "runs")]
        moved = archive_run_folders(folders, is_restored=data.get("restore") is True)
        catalog.forget()
        return {"runs": [str(folder.relative_to(catalog.folder)) for folder in moved]}

    def allow_plugins(data: Mapping[str, Any]) -> Any:
        return parts.examiner.read_alone(lambda: parts.consent.allow(get_words(data, "plugins")))

    return [
        Route("/api/file", save_file, methods=["PUT"]),
        post_route("/runs/{id}/stop", stop),
        post_route("/runs/{id}/save", save),
        post_route("/runs/{id}/tags", tag),
        post_route("/archive", archive),
        post_route("/plugins", allow_plugins),
    ]


def build_event_route(parts: UiParts) -> Route:
    """Return the route of the event stream."""

    async def follow(request: Request) -> Response:
        query = request.query_params
        topics = parse_topics(query.get("topics", ""), query.get("since", ""))
        if parts.num_streams >= MAX_STREAMS:
            raise Refusal(429, "busy", "too many pages follow this server")
        parts.num_streams += 1
        source = EventSource(parts.catalog, parts.workspace, parts.jobs, topics)

        async def count() -> Any:
            try:
                about = {name: parts.about[name] for name in ("version", "bundle")}
                stream = stream_events(
                    source, about, lambda: parts.is_closing, request.is_disconnected
                )
                async for frame in stream:
                    yield frame
            finally:
                parts.num_streams -= 1

        return StreamingResponse(count(), media_type="text/event-stream")

    return Route("/api/events", follow, methods=["GET"])
