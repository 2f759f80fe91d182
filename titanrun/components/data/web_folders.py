"""Files that a pattern or a folder of a web server names, from the pages that list its folders."""

import urllib.request
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from html.parser import HTMLParser
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from titanrun.components.data.http_source import STALL_SECONDS, read_pieces, translate_web_errors
from titanrun.components.data.source_faults import RetryPolicy, SourceFault, limit_timeout
from titanrun.components.data.spec.remote_path import LINK_SAFE, has_glob
from titanrun.config.problems import problem_error
from titanrun.distributed.heartbeat import send_heartbeat

ANY_DEPTH = "**"
MAX_FOLDERS = 10_000
"""Folders that are listed for one path: a server may invent any number of them."""
MAX_PAGE_BYTES = 64 * 2**20


class LinkParser(HTMLParser):
    """Parser that collects the addresses of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the address of a link."""
        address = dict(attrs).get("href") if tag == "a" else None
        if address:
            self.addresses.append(address)


class WebFolders:
    """Folders of a web server, each listed once.

    Args:
        query: Query that each address gets.
        retries: How long requests are repeated.
    """

    def __init__(self, query: str, retries: RetryPolicy) -> None:
        self._query, self._retries = query, retries
        self._links: dict[str, list[str]] = {}

    def list_links(self, folder: str) -> list[str]:
        """Return the addresses of what is in a folder; those of folders end in a slash.

        Raises:
            ProblemsFound: A data problem if the page cannot be read.
        """
        if folder not in self._links:
            if len(self._links) >= MAX_FOLDERS:
                raise problem_error(
                    "data",
                    f"the server has more than {MAX_FOLDERS:,} folders, the last of them "
                    f"'{folder}'",
                    path=("path",),
                    hint="write a pattern for fewer folders",
                )
            send_heartbeat()
            work = partial(read_page, self.complete(folder))
            page = self._retries.request(work, name=f"the list of files '{folder}'")
            self._links[folder] = parse_links(page, folder)
        return self._links[folder]

    def complete(self, address: str) -> str:
        """Return an address with the query."""
        return f"{address}?{self._query}" if self._query else address

    def iter_matches(self, folder: str, patterns: Sequence[str]) -> Iterator[str]:
        """Iterate over the files below a folder that match patterns, one for each level."""
        first, *rest = patterns
        if first == ANY_DEPTH:
            yield from self.iter_matches(folder, rest or ["*"])
            for link in self._match_links(folder, "*", is_folder=True):
                yield from self.iter_matches(link, patterns)
        elif not rest:
            yield from self._match_links(folder, first, is_folder=False)
        else:
            for link in self._match_links(folder, first, is_folder=True):
                yield from self.iter_matches(link, rest)

    def _match_links(self, folder: str, pattern: str, *, is_folder: bool) -> list[str]:
        found = [link for link in self.list_links(folder) if link.endswith("/") == is_folder]
        names = [unquote(link.removesuffix("/").rpartition("/")[2]) for link in found]
        return [
            link
            for link, name in zip(found, names, strict=True)
            if fnmatchcase(name, pattern) and not name.startswith(".")
        ]


def find_web_files(path: str, retries: RetryPolicy) -> list[str]:
    """Return the addresses of the files that a pattern or a folder names.

    Raises:
        ProblemsFound: A data problem if the server does not list its files.
    """
    parts = urlsplit(path)
    folder, patterns = split_pattern(parts)
    folders = WebFolders(quote(parts.query, safe=f"{LINK_SAFE}?"), retries)
    if not folders.list_links(folder):
        raise problem_error(
            "data",
            f"'{folder}' lists no files",
            path=("path",),
            hint="name one file, or several as sources of a mixture",
        )
    found = dict.fromkeys(folders.iter_matches(folder, patterns))
    return [folders.complete(address) for address in found]


def split_pattern(parts: SplitResult) -> tuple[str, list[str]]:
    """Return the address of the folder before the first pattern, and the patterns below it."""
    levels = parts.path.lstrip("/").split("/")
    first = next((number for number, level in enumerate(levels) if has_glob(level)), -1)
    plain, patterns = (levels[:first], levels[first:]) if first >= 0 else (levels[:-1], [ANY_DEPTH])
    folder = "".join(f"/{quote(level, safe=LINK_SAFE)}" for level in plain)
    return f"{parts.scheme}://{parts.netloc}{folder}/", [unquote(level) for level in patterns]


def read_page(address: str) -> str:
    """Return a page that lists files.

    Raises:
        SourceFault: If the request fails.
    """
    request = urllib.request.Request(address, headers={"User-Agent": "titanrun"})
    timeout = limit_timeout(STALL_SECONDS)
    with (
        translate_web_errors(timeout),
        urllib.request.urlopen(request, timeout=timeout) as response,
    ):
        # else a page that ends early would leave files out, and nobody would notice
        if response.length is None and not response.chunked:
            raise SourceFault("without-ranges", "the server does not say how long its page is")
        size = MAX_PAGE_BYTES + 1 if response.length is None else response.length
        content = read_pieces(response, min(size, MAX_PAGE_BYTES + 1))
    if len(content) > MAX_PAGE_BYTES:
        raise SourceFault("refused", f"it has more than {MAX_PAGE_BYTES:,} bytes")
    if not response.chunked and len(content) < size:
        reason = f"{len(content):,} of {size:,} bytes arrived"
        raise SourceFault("unreachable", reason)
    return content.decode(errors="replace")


def parse_links(page: str, folder: str) -> list[str]:
    """Return the addresses of what a page links to directly below its folder."""
    parser = LinkParser()
    parser.feed(page)
    base = urlsplit(folder)
    below = unquote(base.path)
    found: dict[str, None] = {}
    for address in parser.addresses:
        try:
            link = urlsplit(urljoin(folder, address))
        except ValueError:
            continue
        name = unquote(link.path).removeprefix(below)
        is_direct = unquote(link.path) == below + name and "/" not in name.removesuffix("/")
        same = (link.scheme, link.netloc.lower()) == (base.scheme, base.netloc.lower())
        if name and is_direct and same and name.removesuffix("/") not in (".", "..", ""):
            found[f"{base.scheme}://{base.netloc}{quote(link.path, safe=LINK_SAFE)}"] = None
    return list(found)
