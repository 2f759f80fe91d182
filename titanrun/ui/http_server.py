"""The server of `titanrun ui`: the page, its files, and the API, on this machine only."""

import json
import secrets
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.run_files import RUNS
from titanrun.ui.examination import TextExaminer
from titanrun.ui.guard import POLICY, Guard, get_token
from titanrun.ui.job_queue import list_devices
from titanrun.ui.jobs import JobStarter
from titanrun.ui.plugin_consent import PluginConsent
from titanrun.ui.refusal import Refusal, build_problems_response, build_refusal_response
from titanrun.ui.routes import build_routes
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.session import Session, get_session_file, is_same_secret
from titanrun.ui.ui_parts import UiParts
from titanrun.ui.workspace import Workspace

MAX_CONNECTIONS = 16
STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".json": "application/json",
}
PAGES = ("/", "/edit", "/runs", "/run", "/compare", "/launch", "/plan", "/data", "/chat")
NO_SESSION = (
    "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>titanrun</title>"
    "<p>Press Enter in the terminal in which titanrun ui runs, or start it once more in the same "
    "folder: it prints a new link to this page.</p></html>"
)


def build_parts(
    root: Path, runs: Path | None, environment: Mapping[str, str], *, version: str, read_only: bool
) -> UiParts:
    """Return the parts of a server of the workspace `root`."""
    workspace = Workspace(root, (runs or root / RUNS).resolve())
    catalog = RunCatalog(workspace.runs)
    examiner = TextExaminer(workspace, environment)
    consent = PluginConsent(root, environment)
    consent.apply()
    folder = get_session_file(root, environment).with_suffix("")
    devices = list_devices(environment)
    jobs = JobStarter(workspace, catalog, environment, folder, devices, examiner.read_alone)
    about = {
        "version": version,
        "workspace": root.name,
        "path": str(root),
        "read_only": read_only,
        "bundle": read_build_manifest()["digest"],
    }
    return UiParts(workspace, catalog, examiner, jobs, consent, about, read_only)


def read_build_manifest() -> dict[str, Any]:
    """Return the names of the built files."""
    data: dict[str, Any] = json.loads((STATIC / "manifest.json").read_text(encoding="utf-8"))
    return data


def build_app(parts: UiParts, session: Session) -> Starlette:
    """Return the application."""
    return Starlette(
        routes=[*build_page_routes(session), *build_routes(parts)],
        middleware=[Middleware(Guard, session=session)],
        exception_handlers={
            Refusal: build_refusal_response,
            ProblemsFound: build_problems_response,
        },
    )


def build_page_routes(session: Session) -> list[Route]:
    """Return the routes of the page, of its files, and of links to it."""

    async def show_page(request: Request) -> Response:
        """Answer with the page: of a link with both secrets, else for whoever has the cookie."""
        token = get_token(request.scope)
        is_linked = bool(token) and session.redeem(token)
        if not is_linked and not session.has_cookie(request.cookies):
            return HTMLResponse(NO_SESSION, 403)
        nonce = secrets.token_urlsafe(16)
        response = HTMLResponse(render_page(nonce, session.page_secret if is_linked else ""))
        response.headers["content-security-policy"] = POLICY.format(nonce=f" 'nonce-{nonce}'")
        if is_linked:
            response.set_cookie(
                session.cookie_name,
                session.cookie_secret,
                path="/",
                httponly=True,
                samesite="strict",
            )
        return response

    async def give_link(request: Request) -> Response:
        """Give another `titanrun ui` of the same user a link."""
        given = request.headers.get("x-titanrun-launcher", "")
        if not is_same_secret(session.launcher_secret, given):
            raise Refusal(403, "session", "this is not the user of the server")
        path = urlsplit(request.query_params.get("path", "/"))
        page = path.path if path.path in PAGES else "/"
        return JSONResponse({"link": session.create_link(f"{page}?{path.query}".rstrip("?"))})

    return [
        *(Route(page, show_page, methods=["GET"]) for page in PAGES),
        Route("/link", give_link, methods=["POST"]),
        Route("/static/{name}", send_static, methods=["GET"]),
        Route("/favicon.ico", send_icon, methods=["GET"]),
    ]


def render_page(nonce: str, page_secret: str) -> str:
    """Return the page. All values are of the alphabet of base64url, or names of built files."""
    manifest = read_build_manifest()
    secret = f'<meta name="titanrun-secret" content="{page_secret}">' if page_secret else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>titanrun</title>{secret}"
        f'<meta name="titanrun-nonce" content="{nonce}">'
        f'<link rel="icon" href="/static/{manifest["icon"]}" type="image/svg+xml">'
        f'<link rel="stylesheet" href="/static/{manifest["style"]}">'
        f'<script type="module" src="/static/{manifest["script"]}"></script></head>'
        '<body><div id="app"></div>'
        "<noscript>This page needs JavaScript.</noscript></body></html>\n"
    )


async def send_static(request: Request) -> Response:
    """Send a built file; its name holds a hash of its content."""
    name = request.path_params["name"]
    manifest = read_build_manifest()
    if name not in manifest["files"]:
        raise Refusal(404, "file", "there is no such file")
    response = Response(
        (STATIC / name).read_bytes(), media_type=MEDIA_TYPES.get(Path(name).suffix, "text/plain")
    )
    response.headers["cache-control"] = "public, max-age=31536000, immutable"
    return response


async def send_icon(request: Request) -> Response:
    """Send nothing: the page names its own icon."""
    return Response(status_code=204)


class UiServer(uvicorn.Server):
    """A server that tells its event streams to end before it waits for them."""

    def __init__(self, config: uvicorn.Config, parts: UiParts) -> None:
        """Serve with `config`."""
        super().__init__(config)
        self.parts = parts

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, then the server."""
        self.parts.is_closing = True
        await super().shutdown(sockets)


def run_server(app: Starlette, parts: UiParts, listening: socket.socket) -> None:
    """Serve until Ctrl-C. Nothing is logged: a link must not end up in a log."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        lifespan="off",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=3,
    )
    end = threading.Event()
    if not parts.is_read_only:
        queue = parts.jobs.queue
        threading.Thread(target=queue.keep_advancing, args=(end,), daemon=True).start()
    try:
        UiServer(config, parts).run(sockets=[listening])
    finally:
        end.set()
        parts.jobs.chats.close_all()
