"""`titanrun ui`: edit recipes, and watch and compare runs, in the browser."""

import gc
import json
import os
import socket
import sys
import threading
import webbrowser
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_note
from titanrun.cli.run_argument import find_run_or_recipe
from titanrun.config.problems import problem_error
from titanrun.config.read_source import FORMATS
from titanrun.config.version import VERSION
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import get_install_name
from titanrun.recipe.rundir.run_files import RUN_JSON, RUNS

if TYPE_CHECKING:
    from titanrun.ui.session import Session

SUMMARY = (
    "Edit recipes, and watch, stop, resume and compare runs, in the browser. The server answers "
    "only on this machine, and only to the browser that opens the printed link. The files of the "
    "workspace are the only data; Ctrl-C ends the server and no run. For another machine: "
    "ssh -L 8421:127.0.0.1:8421 HOST, with the port of the link on both sides."
)
EXAMPLES = """  titanrun ui                       the working directory
  titanrun ui recipes/my.yaml       open this recipe
  titanrun ui runs/first            open this run
  titanrun ui --read-only           look at everything, change nothing
  titanrun ui --no-browser          only print the link"""
NEEDED = ("starlette", "uvicorn", "anyio", "h11", "click")
LINK_SECONDS = 3.0


def run(arguments: list[str]) -> int:
    """Serve until Ctrl-C; return 0."""
    options = parse_ui_options(arguments)
    check_packages()
    from titanrun.ui import listening, session

    root, page = find_workspace(options)
    environment = get_environment()
    file = session.get_session_file(root, environment)
    link = request_link(session.read_session_file(file), page)
    if link is not None:
        print_note(options, "this workspace has a server already")
        show_link(link, options)
        return 0
    os.chdir(root)
    sock = open_listening_socket(listening.open_socket, options.port)
    own = session.Session(sock.getsockname()[1])
    session.write_session_file(file, own)
    warn_about_owner(root, options)
    # requests wait in the socket until the rest is there: a browser starts meanwhile
    show_link(own.create_link(page), options)
    try:
        serve_page(root, options, own, sock, page)
    except KeyboardInterrupt:
        pass
    finally:
        file.unlink(missing_ok=True)
    return 0


def check_packages() -> None:
    """Raise ProblemsFound unless the packages of the extra are installed."""
    if all(find_spec(name) for name in NEEDED):
        return
    raise problem_error(
        "usage",
        "titanrun ui needs starlette",
        hint=f'install it: pip install "{get_install_name("ui")}"',
    )


def serve_page(
    root: Path, options: Namespace, own: "Session", listening: socket.socket, page: str
) -> None:
    """Answer requests until Ctrl-C."""
    from titanrun.ui import http_server

    runs = None if options.runs is None else Path(options.runs)
    environment = get_environment()
    parts = http_server.build_parts(
        root, runs, environment, version=VERSION, read_only=options.read_only
    )
    # the command line does without, but this process may live for days
    gc.freeze()
    gc.enable()
    if sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=print_links, args=(own, page), daemon=True).start()
    http_server.run_server(http_server.build_app(parts, own), parts, listening)


def parse_ui_options(arguments: list[str]) -> Namespace:
    """Parse the command line."""
    parser = CommandParser("ui", SUMMARY, EXAMPLES)
    parser.add_argument(
        "place", nargs="?", default=".", help="a folder, a recipe or a run; default: this folder"
    )
    parser.add_argument("--port", type=int, metavar="N", help="default: 8421, or the next free one")
    parser.add_argument("--no-browser", action="store_true", help="only print the link")
    parser.add_argument(
        "--read-only", action="store_true", help="save no file, start and stop no run"
    )
    parser.add_argument(
        "--runs", metavar="DIR", help=f"folder of the runs; default: {RUNS} in the workspace"
    )
    return parser.parse_args(arguments)


def find_workspace(options: Namespace) -> tuple[Path, str]:
    """Return the workspace of a folder, recipe or run, and the page to open."""
    place = Path(find_run_or_recipe(options.place))
    if options.runs is not None and not Path(options.runs).is_dir():
        raise problem_error("file", f"folder not found: '{options.runs}'")
    if not place.exists():
        raise problem_error(
            "file", f"'{place}' does not exist", hint="name a folder, a recipe or a run"
        )
    here = Path.cwd().resolve()
    real = place.resolve()
    if place.is_file():
        if place.suffix.lower() not in FORMATS:
            raise problem_error("file", f"'{place}' is not a recipe", hint="name a .yaml file")
        root = here if real.is_relative_to(here) else real.parent
        return root, f"/edit?file={quote(str(real.relative_to(root)))}"
    if not (place / RUN_JSON).is_file():
        return real, "/"
    runs = Path(options.runs or here / RUNS).resolve()
    if not real.is_relative_to(runs):
        runs = real.parent
        options.runs = str(runs)
    return here, f"/run?id={quote(str(real.relative_to(runs)))}"


def warn_about_owner(root: Path, options: Namespace) -> None:
    """Say so if somebody else may change the recipes of a workspace."""
    if root.stat().st_uid != os.getuid():
        print_note(options, f"warning: {root} belongs to another user")


def request_link(server: tuple[int, str] | None, page: str) -> str | None:
    """Return a new link of the server that already serves a workspace, or None if it is gone."""
    if server is None:
        return None
    port, secret = server
    origin = f"http://127.0.0.1:{port}"
    asked = Request(
        f"{origin}/link?path={quote(page, safe='')}",
        method="POST",
        headers={"Origin": origin, "X-Titanrun-Launcher": secret},
    )
    try:
        with build_opener(ProxyHandler({})).open(asked, timeout=LINK_SECONDS) as answer:
            found: str = json.load(answer)["link"]
            return found
    except (URLError, OSError, ValueError, KeyError):
        return None


def open_listening_socket(
    open_socket: Callable[[int | None], socket.socket], port: int | None
) -> socket.socket:
    """Return the socket of the server. Raise ProblemsFound if the port is in use."""
    try:
        return open_socket(port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise problem_error(
            "usage",
            f"cannot listen on port {port or 'any'}: {reason.lower()}",
            hint="choose another one with --port",
        ) from None


def show_link(link: str, options: Namespace) -> None:
    """Print the link, and open it unless asked not to."""
    print(link, flush=True)
    if not options.no_browser:
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def print_links(own: "Session", page: str) -> None:
    """Print a new link for each Enter."""
    for _ in sys.stdin:
        print(own.create_link(page), flush=True)
