"""Secrets of one server: one-time links, and the pair of secrets that every request needs.

Browsers send cookies to every port of a host, so a cookie alone opens nothing: each request also
needs a secret that only the page of the link knows.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from titanrun.recipe.rundir.run_files import read_json_or_empty

# 256 bits
SECRET_BYTES = 32
MAX_LINKS = 16


def create_secret() -> str:
    """Return a new secret in base64url."""
    return secrets.token_urlsafe(SECRET_BYTES)


@dataclass(slots=True)
class Session:
    """Secrets of one server.

    Args:
        port: Port of the server.
        cookie_secret: Value of the cookie.
        page_secret: What the page of a link holds, and sends in a header.
        launcher_secret: What another `titanrun ui` sends to ask for a link.
        links: Tokens of links that nobody has followed.
    """

    port: int
    cookie_secret: str = field(default_factory=create_secret, repr=False)
    page_secret: str = field(default_factory=create_secret, repr=False)
    launcher_secret: str = field(default_factory=create_secret, repr=False)
    links: list[str] = field(default_factory=list, repr=False)

    @property
    def cookie_name(self) -> str:
        """Name of the cookie, which another server on this machine does not have."""
        return f"titanrun_ui_{self.port}"

    @property
    def origins(self) -> dict[str, str]:
        """Accepted Host headers, and the origin of each."""
        hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        return {host: f"http://{host}" for host in hosts}

    def create_link(self, path: str = "/") -> str:
        """Return a link that works once."""
        token = create_secret()
        self.links = [*self.links, token][-MAX_LINKS:]
        separator = "&" if "?" in path else "?"
        return f"http://127.0.0.1:{self.port}{path}{separator}token={token}"

    def redeem(self, token: str) -> bool:
        """Return whether a token is that of an unused link, which is used from here on."""
        found = [link for link in self.links if is_same_secret(link, token)]
        self.links = [link for link in self.links if link not in found]
        return bool(found)

    def has_cookie(self, cookies: Mapping[str, str]) -> bool:
        """Return whether a request has the cookie."""
        return is_same_secret(self.cookie_secret, cookies.get(self.cookie_name, ""))

    def is_open_to(self, cookies: Mapping[str, str], header: str) -> bool:
        """Return whether a request has both secrets."""
        has_cookie = self.has_cookie(cookies)
        return is_same_secret(self.page_secret, header) and has_cookie


def is_same_secret(secret: str, given: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return secrets.compare_digest(secret.encode(), given.encode("utf-8", "surrogateescape"))


def get_session_file(workspace: Path, environment: Mapping[str, str]) -> Path:
    """Return the file in which the server of a workspace can be found by its user."""
    state = environment.get("XDG_STATE_HOME") or ""
    home = environment.get("HOME") or "~"
    base = Path(state) if Path(state).is_absolute() else Path(home).expanduser() / ".local/state"
    name = hashlib.sha256(str(workspace).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return base / "titanrun" / "ui" / f"{name}.json"


def write_session_file(path: Path, session: Session) -> None:
    """Write down how to ask this server for a link, for its user only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    about = {"pid": os.getpid(), "port": session.port, "secret": session.launcher_secret}
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(about, file)


def read_session_file(path: Path) -> tuple[int, str] | None:
    """Return port and secret of the server of a workspace, or None if there is none."""
    about = read_json_or_empty(path)
    port, secret = about.get("port"), about.get("secret")
    return (port, secret) if isinstance(port, int) and isinstance(secret, str) else None
