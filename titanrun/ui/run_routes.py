"""Routes that read runs."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.report.run_report import build_run_report
from titanrun.ui.json_routes import get_route, parse_query_number, post_route
from titanrun.ui.refusal import Refusal
from titanrun.ui.run_catalog import RunQuery
from titanrun.ui.run_details import (
    describe_run_folder,
    get_metrics_cursor,
    list_settings,
    load_series,
    read_log,
    read_samples,
)
from titanrun.ui.run_groups import X_AXES, compare_run_folders
from titanrun.ui.ui_parts import UiParts

MAX_COMPARED = 20


def build_run_routes(parts: UiParts) -> list[Route]:
    """Return the routes that read runs."""
    catalog = parts.catalog

    def show_series(request: Request) -> Any:
        folder, query = find_folder(request), request.query_params
        x = query.get("x", "step")
        if x not in X_AXES:
            raise Refusal(400, "usage", f"there is no axis '{x}'")
        names = [name for name in query.get("metrics", "").split(",") if name]
        # read before the curves: rows that arrive meanwhile come twice, and none is lost
        cursor = get_metrics_cursor(folder)
        points = parse_query_number(query.get("points", "1000"))
        return {"series": load_series(folder, names, x, points), "cursor": cursor}

    def show_log(request: Request) -> Any:
        query = request.query_params
        start = query.get("from")
        return read_log(
            find_folder(request),
            query.get("rank", "rank-0"),
            None if start is None else parse_query_number(start),
        )

    def find_folder(request: Request) -> Path:
        return catalog.find(request.path_params["id"])

    def show_checkpoint(request: Request) -> Any:
        step = parse_query_number(request.path_params["step"])
        return asdict(read_manifest(catalog.find_checkpoint(request.path_params["id"], step)))

    return [
        get_route("/runs", lambda request: answer_runs(parts, request)),
        get_route(
            "/runs/{id}",
            lambda request: describe_run_folder(catalog, request.path_params["id"]),
        ),
        get_route("/runs/{id}/series", show_series),
        get_route("/runs/{id}/log", show_log),
        get_route(
            "/runs/{id}/settings", lambda request: {"settings": list_settings(find_folder(request))}
        ),
        get_route(
            "/runs/{id}/samples", lambda request: {"samples": read_samples(find_folder(request))}
        ),
        get_route("/runs/{id}/checkpoints/{step}", show_checkpoint),
        get_route("/report", lambda request: write_report(parts, request)),
        post_route("/compare", lambda data: answer_comparison(parts, data)),
    ]


def answer_runs(parts: UiParts, request: Request) -> Any:
    """Return the runs that a query asks for."""
    query = request.query_params
    return parts.catalog.list_runs(
        RunQuery(
            text=query.get("text", ""),
            states=[word for word in query.get("state", "").split(",") if word],
            tags=[word for word in query.get("tag", "").split(",") if word],
            conditions=query.getlist("where"),
            sort_key=query.get("sort", "started"),
            is_reversed=query.get("order", "descending") == "descending",
            start=parse_query_number(query.get("start", "0")),
            limit=parse_query_number(query.get("limit", "50")),
        )
    )


def write_report(parts: UiParts, request: Request) -> Any:
    """Return the HTML report of runs as text, for the page to save where the user wants it."""
    run_ids = request.query_params.getlist("run")
    if not 1 <= len(run_ids) <= MAX_COMPARED:
        raise Refusal(400, "usage", f"a report has up to {MAX_COMPARED} runs")
    folders = [parts.catalog.find(run_id) for run_id in run_ids]
    text = parts.examiner.read_alone(lambda: build_run_report(folders, has_paths=False))
    return {"text": text}


def answer_comparison(parts: UiParts, data: Mapping[str, Any]) -> Any:
    """Return the comparison of some runs."""
    names = data.get("runs")
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_COMPARED:
        raise Refusal(400, "usage", f"compare up to {MAX_COMPARED} runs")
    run_ids = [str(name) for name in names]
    return parts.examiner.read_alone(lambda: compare_run_folders(parts.catalog, run_ids))
