"""What every request has to pass before a route sees it, and headers of every answer."""

from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from titanrun.ui.refusal import Refusal
from titanrun.ui.session import Session

SECRET_HEADER = "x-titanrun"
MAX_BODY_BYTES = 2 * 1024**2
SAFE_METHODS = ("GET", "HEAD")
OWN_SITES = ("same-origin", "none")
# styles in the page come from the editor, which gets a nonce; nothing else may load anything
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{nonce}; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Guard:
    """Middleware that refuses what does not come from this server's own pages."""

    def __init__(self, app: ASGIApp, session: Session) -> None:
        """Guard `app`."""
        self.app = app
        self.session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("content-security-policy", POLICY.format(nonce=""))
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self.check(scope)
        except Refusal as refusal:
            error = {"code": refusal.code, "message": refusal.message}
            response: Response = JSONResponse({"error": error}, refusal.status)
            await response(scope, receive, send_with_headers)
            return
        await self.app(scope, BoundedBody(receive), send_with_headers)

    def check(self, scope: Scope) -> None:
        """Raise Refusal for a request that another site, host or user makes."""
        headers = Headers(scope=scope)
        path, method = scope["path"], scope["method"]
        if path == "/link":
            self.check_host(headers)
            return
        origin = self.check_host(headers)
        given = headers.get("origin")
        if given != origin and (given is not None or method not in SAFE_METHODS):
            raise Refusal(403, "origin", "the request comes from another site")
        is_link = path == "/" or "token=" in scope["query_string"].decode("latin-1")
        is_page_load = is_link and headers.get("sec-fetch-mode") == "navigate"
        is_framed = headers.get("sec-fetch-dest") in ("iframe", "frame", "embed", "object")
        if is_framed or not (
            headers.get("sec-fetch-site", "none") in OWN_SITES
            or (is_page_load and method == "GET" and not path.startswith("/api"))
        ):
            raise Refusal(403, "origin", "the request comes from another site")
        if path.startswith("/api") and not self.session.is_open_to(
            parse_cookies(headers), headers.get(SECRET_HEADER, "")
        ):
            raise Refusal(403, "session", "this page is not connected to the server")
        check_length(headers)

    def check_host(self, headers: Headers) -> str:
        """Return the server's own origin under the Host of a request, which must be this machine.

        A page elsewhere could otherwise make its own name mean this machine.
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self.session.origins:
            raise Refusal(421, "host", "this server answers to 127.0.0.1 and localhost only")
        return f"http://{hosts[0]}"


def check_length(headers: Headers) -> None:
    """Raise Refusal for a body that says itself that it is too large."""
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise Refusal(413, "size", f"a request has at most {MAX_BODY_BYTES:,} bytes")


def parse_cookies(headers: Headers) -> dict[str, str]:
    """Return the cookies of a request, none if they are malformed."""
    try:
        parsed = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return {}
    return {name: cookie.value for name, cookie in parsed.items()}


def get_token(scope: Scope) -> str:
    """Return the token of a link, or empty text."""
    text: str = scope["query_string"].decode("latin-1")
    query = parse_qs(text)
    return query.get("token", [""])[-1]


class BoundedBody:
    """Messages of a request, refused once their bodies are too large."""

    def __init__(self, receive: Receive) -> None:
        """Pass on what `receive` returns."""
        self.receive = receive
        self.size = 0

    async def __call__(self) -> Message:
        """Return the next message."""
        message = await self.receive()
        self.size += len(message.get("body", b""))
        if self.size > MAX_BODY_BYTES:
            raise Refusal(413, "size", f"a request has at most {MAX_BODY_BYTES:,} bytes")
        return message
