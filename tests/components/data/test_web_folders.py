"""Patterns and folders of web servers: the files that fsspec finds, and what is not listed."""

import functools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import pytest

from tests.components.data.fragile_server import FragileServer, serve_files
from tests.components.data.lane_streams import Ranks, same
from titanrun.components.data import source_faults, web_folders
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.web_folders import find_web_files
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound

NAMES = [
    "a.jsonl",
    "b.jsonl.gz",
    "notes.md",
    ".hidden.jsonl",
    "year 1/part-0.jsonl",
    "year 1/part-10.jsonl",
    "year 1/more/über.jsonl",
    "year 2/part-0.jsonl",
    "year 2/100%.jsonl",
    "year 2/more/deep/x&y.jsonl",
]
PATTERNS = [
    "*.jsonl",
    "*.jsonl.gz",
    "[ab].*",
    "year 1/*.jsonl",
    "*/*.jsonl",
    "year */part-0.jsonl",
    "*/more/*/*",
    "year 2/*",
    "none*.jsonl",
]


class QuietHandler(SimpleHTTPRequestHandler):
    """Python's own server, whose pages for folders list their files."""

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder in the block."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A server of the files, one level below its root."""
    for name in [*(f"data/{name}" for name in NAMES), "other.jsonl"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    with serve_folder(tmp_path) as url:
        yield f"{url}/data"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_names_the_files_that_fsspec_finds(pattern: str, site: str) -> None:
    store: Any = fsspec.filesystem("http", skip_instance_cache=True)
    expected = store.glob(f"{site}/{pattern}".replace(" ", "%20"))
    found = find_web_files(f"{site}/{pattern}", RetryPolicy(0))
    # fsspec names folders and hidden files, too
    expected = [one for one in expected if not one.endswith("/") and "/." not in one]
    assert sorted(found) == sorted(expected)
    assert bool(found) == (pattern != "none*.jsonl")


@pytest.mark.parametrize("path", ["", "**", "**/*"])
def test_a_folder_names_all_files_below_it(path: str, site: str) -> None:
    store: Any = fsspec.filesystem("http", skip_instance_cache=True)
    expected = [one for one in store.find(f"{site}/") if "/." not in one]
    assert sorted(find_web_files(f"{site}/{path}", RetryPolicy(0))) == sorted(expected)
    assert len(expected) == len(NAMES) - 1


def test_any_depth_is_matched_as_python_matches_paths(site: str, tmp_path: Path) -> None:
    for pattern in ("**/*.jsonl", "**/more/**/*.jsonl", "year 1/**/*", "**/part-?.jsonl"):
        names = {
            str(one.relative_to(tmp_path / "data"))
            for one in (tmp_path / "data").glob(pattern)
            if one.is_file() and not one.name.startswith(".")
        }
        # `?` begins a query in an address
        found = find_web_files(f"{site}/{pattern.replace('?', '[0-9]')}", RetryPolicy(0))
        assert {read_name(one, site) for one in found} == names
        assert len(found) == len(names)


def read_name(address: str, site: str) -> str:
    """Return the name of a file below a server's folder."""
    return unquote(address.removeprefix(f"{site}/"))


LINES = "".join(
    json.dumps({"text": f"<{number}>" + "x" * (number % 40)}) + "\n" for number in range(400)
).encode()


def write_parts(server: FragileServer, folder: Path) -> None:
    """Put parts of a dataset on a server and on the disk."""
    lines = LINES.splitlines(keepends=True)
    for number, name in enumerate(["a.jsonl", "b c.jsonl", "sub/d.jsonl"]):
        content = b"".join(lines[number * 100 : number * 100 + 100])
        server.files[f"texts/{name}"] = content
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def text(path: str) -> TextDatasetConfig:
    return TextDatasetConfig(path=path, streaming=True, window=16)


@pytest.mark.parametrize("pattern", ["", "**/*.jsonl"])
def test_a_stream_of_a_pattern_has_the_batches_of_local_files(
    pattern: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_faults, "FIRST_DELAY_SECONDS", 0.01)
    with serve_files() as server:
        write_parts(server, tmp_path)
        server.lists_folders = True
        url = f"{server.url}/texts/{pattern}"
        expected = Ranks(text(str(tmp_path)), tokenizer).batches(12)
        server.faults["texts/"] = [503, "cut", "reset"]
        ranks = Ranks(text(url), tokenizer)
        assert same(ranks.batches(5), expected[:5])
        assert not server.faults["texts/"]
        resumed = Ranks(text(url), tokenizer)
        resumed.load(ranks.state())
        assert same(resumed.batches(7), expected[5:])


def find_problem(path: str) -> Problem:
    with pytest.raises(ProblemsFound) as found:
        find_web_files(path, RetryPolicy(0))
    assert found.value.exit_code == 3
    (problem,) = found.value.problems
    return problem


def test_a_list_that_may_be_incomplete_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files() as server:
        server.files["texts/a.jsonl"], server.lists_folders = LINES, True
        server.faults["texts/"] = ["cut"]
        assert find_problem(f"{server.url}/texts/").rule == "source-unreachable"
        server.faults["texts/"] = ["cut without length"]
        problem = find_problem(f"{server.url}/texts/")
        assert problem.message.endswith("the server does not say how long its page is")
        monkeypatch.setattr(web_folders, "MAX_PAGE_BYTES", 20)
        assert "more than 20 bytes" in find_problem(f"{server.url}/texts/").message


def test_a_server_without_lists_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files() as server:
        server.files["texts/a.jsonl"] = LINES
        problem = find_problem(f"{server.url}/texts/*.jsonl")
        assert problem.rule == "source-gone"
        assert problem.message.startswith(f"the list of files '{server.url}/texts/' ")
        server.files["texts/"] = b"<html>Welcome <a href='https://example.com/b.jsonl'>here</a>"
        problem = find_problem(f"{server.url}/texts/*.jsonl")
        assert problem.message == f"'{server.url}/texts/' lists no files"
        assert problem.hint == "name one file, or several as sources of a mixture"
    monkeypatch.setattr(web_folders, "MAX_FOLDERS", 2)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    with serve_folder(tmp_path) as url:
        assert "has more than 2 folders" in find_problem(f"{url}/**").message


def test_links_that_lead_elsewhere_are_no_files_of_a_folder() -> None:
    page = """
    <A HREF="../">Parent</A> <a href="?C=N;O=D">Name</a> <a href="/texts/">here</a> <a>none</a>
    <a href="one.jsonl">1</a> <a href="./two.jsonl#top">2</a> <a href="/texts/three.jsonl">3</a>
    <a href='HTTP://Host/texts/four.jsonl'>4</a> <a href="//host/texts/five.jsonl?x=1">5</a>
    <a href="/text/six.jsonl">6</a> <a href="https://host/texts/seven.jsonl">7</a>
    <a href="sub/">8</a> <a href="sub/nine.jsonl">9</a> <a href="%2e%2e/ten.jsonl">10</a>
    <a href="http://[bad">11</a> <a href="one.jsonl">again</a> <a href="mailto:me@host">12</a>
    """
    assert web_folders.parse_links(page, "http://host/texts/") == [
        "http://host/texts/one.jsonl",
        "http://host/texts/two.jsonl",
        "http://host/texts/three.jsonl",
        "http://host/texts/four.jsonl",
        "http://host/texts/five.jsonl",
        "http://host/texts/sub/",
    ]
