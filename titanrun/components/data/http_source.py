"""Files of web servers and of the Hugging Face Hub, requested in ranges of bytes."""

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from titanrun.components.data.source_faults import SourceFault, limit_timeout
from titanrun.distributed.heartbeat import send_heartbeat

STALL_SECONDS = 30.0
"""Time without a byte after which a request is given up."""
MAX_REQUEST_SECONDS = 600.0
"""Time after which a request is given up that is answered too slowly."""
PIECE_BYTES = 64 * 2**10
TRANSIENT_CODES = (408, 425, 429)
REFUSED_CODES = (401, 403)
GONE_CODES = (404, 410)
RANGE_TOO_FAR = 416
CONTENT_RANGE = re.compile(r"bytes (?:(?P<start>\d+)-(?P<end>\d+)|\*)/(?P<size>\d+)")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Bytes of a file, its size, and what the server says about its version."""

    content: bytes
    size: int
    version: str


class HttpSource:
    """File of a web server.

    Args:
        url: Address.
        size: Size in bytes, None if it is not known yet.
        version: Version as of the first request, None if it is not compared.
        token: Token that this server gets, and no server to which it redirects.
    """

    def __init__(
        self,
        url: str,
        *,
        size: int | None = None,
        version: str | None = None,
        token: str | None = None,
    ) -> None:
        self._url, self._size, self._version, self._token = url, size, version, token
        # signed address to which the server has redirected: asking it again each time costs a
        # request, and the Hub limits their number
        self._redirected: str | None = None

    def fetch(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`.

        Raises:
            SourceFault: If the request fails, or the file has changed.
        """
        answer = self.request(start, end)
        if self._size is not None and answer.size != self._size:
            reason = f"it has {answer.size:,} bytes instead of {self._size:,}"
            raise SourceFault("changed", reason)
        if self._version and answer.version and answer.version != self._version:
            reason = f"its version is {answer.version} instead of {self._version}"
            raise SourceFault("changed", reason)
        return answer.content

    def request(self, start: int, end: int) -> HttpAnswer:
        """Request a range of bytes, once more at the original address if it is refused.

        Raises:
            SourceFault: If the request fails.
        """
        try:
            return self._request_once(start, end)
        except SourceFault as fault:
            # a signed address may have expired
            if fault.kind != "refused":
                raise
            self._redirected = None
            return self._request_once(start, end)

    def _request_once(self, start: int, end: int) -> HttpAnswer:
        request = urllib.request.Request(
            self._redirected or self._url,
            headers={
                "Range": f"bytes={start}-{end - 1}",
                "Accept-Encoding": "identity",
                "User-Agent": "titanrun",
            },
        )
        if self._token is not None and self._redirected is None:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        timeout = limit_timeout(STALL_SECONDS)
        with translate_web_errors(timeout):
            try:
                with urllib.request.urlopen(request, timeout=timeout) as response:
                    answer = self._read_answer(response, start, end)
                    if urlsplit(response.geturl()).netloc != urlsplit(self._url).netloc:
                        self._redirected = response.geturl()
            except urllib.error.HTTPError as error:
                if error.code != RANGE_TOO_FAR:
                    raise
                with error:
                    answer = HttpAnswer(b"", parse_size(error.headers), find_version(error.headers))
        return answer

    def _read_answer(self, response: http.client.HTTPResponse, start: int, end: int) -> HttpAnswer:
        version = find_version(response.headers)
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            size = parse_size(response.headers)
        elif start == 0 and response.length is not None and response.length <= end:
            size = response.length
        else:
            reason = "the server does not send parts of files"
            raise SourceFault("without-ranges", reason)
        return HttpAnswer(read_pieces(response, min(end, size) - start), size, version)


@contextmanager
def translate_web_errors(timeout: float) -> Iterator[None]:
    """Raise the errors of a request to a web server as faults. `timeout` is its timeout."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise classify_status(error.code, error.headers) from error
    except http.client.IncompleteRead as error:
        reason = f"the connection closed after {len(error.partial):,} bytes"
        raise SourceFault("unreachable", reason) from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceFault("unreachable", describe_error(error, timeout)) from error


def read_pieces(response: http.client.HTTPResponse, size: int) -> bytes:
    """Return `size` bytes of a response, or fewer if it ends early."""
    deadline, parts, left = time.monotonic() + MAX_REQUEST_SECONDS, [], size
    while left > 0 and (part := response.read(min(PIECE_BYTES, left))):
        parts.append(part)
        left -= len(part)
        send_heartbeat()
        if left and time.monotonic() > deadline:
            reason = f"{size - left:,} of {size:,} bytes arrived in {MAX_REQUEST_SECONDS:.0f} s"
            raise SourceFault("unreachable", reason)
    return b"".join(parts)


def parse_size(headers: Message) -> int:
    """Return the size of a file from the header of one of its ranges."""
    found = CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if found is None:
        raise SourceFault("without-ranges", "the server does not say how large the file is")
    return int(found["size"])


def find_version(headers: Message) -> str:
    """Return the version of a file, empty if the server does not name one."""
    return str(headers.get("ETag") or headers.get("Last-Modified") or "").removeprefix("W/")


def classify_status(code: int, headers: Message) -> SourceFault:
    """Return the fault that an HTTP status means."""
    reason = f"HTTP {code} {http.client.responses.get(code, '')}".rstrip()
    if code in REFUSED_CODES:
        return SourceFault("refused", reason)
    if code in GONE_CODES:
        return SourceFault("gone", reason)
    if code in TRANSIENT_CODES or code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return SourceFault("unreachable", reason, retry_after=parse_retry_after(headers))
    return SourceFault("refused", reason)


def parse_retry_after(headers: Message) -> float | None:
    """Return the seconds that a server asks to wait, None if it does not."""
    text = headers.get("Retry-After")
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def describe_error(error: Exception, timeout: float) -> str:
    """Return why a request failed, in a few words."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer for {timeout:.0f} s"
    return str(reason).partition("\n")[0] or type(reason).__name__
