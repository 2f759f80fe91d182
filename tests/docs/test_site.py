"""The documentation site: its navigation is complete, its links stay inside, its tutorial runs."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from tools.copy_pages import ROOT, copy_pages, find_pages, rewrite_links, split_long_page
from tools.run_pages import PageError, check_page, matches
from tools.write_llms import build_index
from tools.write_llms import find_pages as find_navigation_pages

CONFIG: dict[str, Any] = YAML(typ="safe").load(ROOT / "mkdocs.yml")
SITE = ROOT / "site"
KINDS = ["Home", "Tutorials", "How-to guides", "Reference", "Explanation"]
MAX_BUILD_SECONDS = 20
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def iter_pages(navigation: Any) -> Iterator[str]:
    """Yield the files that the navigation names."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for item in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from iter_pages(item)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(iter_pages(CONFIG["nav"])) == sorted(
        {page for page in [*find_pages().values(), *split_long_page()] if page.endswith(".md")}
    )
    assert [kind for section in CONFIG["nav"] for kind in section] == KINDS


FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# what a sentence ends with: a colon before a block or list too
SENTENCE_END = re.compile(r"(?<=[.:])\s|$")
MAX_WORDS = 25


def iter_titled(navigation: Any) -> Iterator[tuple[str, str]]:
    """Yield the files that the navigation names with a title, and these titles."""
    for item in navigation:
        for title, target in item.items() if isinstance(item, dict) else ():
            if isinstance(target, str):
                yield target, title
            else:
                yield from iter_titled(target)


def read_opening(page: Path) -> tuple[list[str], str]:
    """Return the titles of a page, and what stands below the first one."""
    text = FENCED.sub("<code>", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^# (.+)$", text, re.MULTILINE)
    return titles, text.partition(f"# {titles[0]}\n")[2].lstrip() if titles else ""


def test_every_page_has_the_title_of_the_navigation(tmp_path: Path) -> None:
    copy_pages(tmp_path)
    named = dict(iter_titled(CONFIG["nav"]))
    # the README's title is the name of the program
    del named["index.md"]
    for page in tmp_path.rglob("*.md"):
        name = page.relative_to(tmp_path).as_posix()
        titles, _ = read_opening(page)
        assert len(titles) == 1, name
        assert titles[0] == named.get(name, titles[0])


def test_every_page_begins_with_a_short_sentence(tmp_path: Path) -> None:
    copy_pages(tmp_path)
    long = {}
    for page in tmp_path.rglob("*.md"):
        _, text = read_opening(page)
        paragraph = " ".join(text.partition("\n\n")[0].split())
        sentence = SENTENCE_END.split(re.sub(r"\]\([^)]*\)", "]", paragraph))[0]
        if not re.match(r"[\w`\[]", sentence) or len(sentence.split()) > MAX_WORDS:
            long[page.relative_to(tmp_path).as_posix()] = sentence
    assert long == {}


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "[a](docs/data.md#files)", "[a](data.md#files)"),
        ("docs/models/flux.md", "[a](../data.md)", "[a](../data.md)"),
        ("docs/extending.md", "[a](../ARCHITECTURE.md#x)", "[a](architecture.md#x)"),
        ("docs/tutorials/first_run.md", "[a](../README.md)", "[a](../index.md)"),
        ("docs/ui.md", "![a](images/ui-run-light.png)", "![a](images/ui-run-light.png)"),
        ("README.md", "[a](LICENSE)", "a"),
        ("README.md", "[a](https://example.org) [b](#here)", "[a](https://example.org) [b](#here)"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, link: str, expected: str) -> None:
    assert rewrite_links(link, source, find_pages()) == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert check_page(page, tmp_path) >= 4


@pytest.mark.parametrize(
    ("shown", "real", "expected"),
    [
        ("loss 8.104 1,000 tok/s 0:45 left", "loss 8.105 2,345 tok/s 1:02:03 left", True),
        ("loss 8.1", "loss 8.4", False),
        ("saved runs/a", "saved runs/b", False),
        ("first\n...\nlast", "first\nx\ny\nlast", True),
        ("first\n...\nlast", "first\nx", False),
        ("one", "one\ntwo", False),
        ("started 2026-11-23 15:31", "started 2027-01-02 03:04", True),
    ],
)
def test_output_agrees_but_for_times_and_last_digits(shown: str, real: str, expected: bool) -> None:
    assert matches(shown.splitlines(), real.splitlines()) is expected


def test_a_block_that_does_not_run_has_a_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a GPU -->\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n")
    assert check_page(page, tmp_path) == 1
    page.write_text(page.read_text().replace("<!-- not run: needs a GPU -->\n", ""))
    with pytest.raises(PageError, match="exit code 1: false"):
        check_page(page, tmp_path)


PAGES_THAT_RUN = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "ci",
        "coding_assistants",
        "environment_variables",
        "json_schemas",
        "numerics_policy",
        "recipe_composition",
        "recipe_resolution",
        "why_text_recipes",
    )
]


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert check_page(page, tmp_path) >= 1


def test_language_models_get_a_list_of_all_pages(tmp_path: Path) -> None:
    copy_pages(tmp_path)
    pages = list(find_navigation_pages(CONFIG["nav"], tmp_path))
    index = build_index(pages)
    assert index.startswith("# titanrun\n\n> titanrun trains language models")
    assert [line for line in index.splitlines() if line.startswith("## ")] == [
        *(f"## {kind}" for kind in KINDS),
        "## Optional",
    ]
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", index, re.MULTILINE)
    assert sorted(linked) == sorted(iter_pages(CONFIG["nav"]))
    described = [page for page in pages if page.description]
    assert len(described) > 0.9 * len(pages)


@pytest.fixture
def address() -> Iterator[str]:
    """The built site, served on this machine."""
    assert (SITE / "index.html").is_file(), "this test needs the site: make docs"

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def build_site(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the pages in a folder, without network, as `make docs` does."""
    nowhere = "http://127.0.0.1:9"
    shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    return subprocess.run(
        [ROOT / ".venv-docs" / "bin" / "zensical", "build", "--clean", "--strict"],
        cwd=folder,
        env={**os.environ, "http_proxy": nowhere, "https_proxy": nowhere},
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_BUILD_SECONDS,
    )


@pytest.mark.site
@pytest.mark.parametrize(
    ("link", "expected"),
    [("", 0), ("[a](nowhere.md)", 1), ("[a](data.md#no-such-heading)", 1), ("[a](#nor-this)", 1)],
)
def test_the_site_is_built_without_network_and_dead_links_fail(
    link: str, expected: int, tmp_path: Path
) -> None:
    copy_pages(tmp_path / "build" / "docs")
    with (tmp_path / "build" / "docs" / "ci.md").open("a") as page:
        page.write(f"\n{link}\n")
    done = build_site(tmp_path)
    assert done.returncode == expected, done.stdout + done.stderr
    assert ("No issues found" in done.stdout + done.stderr) == (expected == 0)


@pytest.mark.site
@pytest.mark.parametrize("page", ["index.html", "data.html", "status.html", "models/llama3.html"])
def test_a_browser_asks_no_other_host(page: str, address: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "this test needs a browser: apt-get install chromium"
    log = tmp_path / "net.json"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    folders = [f"--user-data-dir={tmp_path}/browser", f"--log-net-log={log}"]
    shown = subprocess.run(
        [browser, *options, *folders, "--dump-dom", f"{address}/{page}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "md-content" in shown.stdout
    requests = [
        event["params"]
        for event in json.loads(log.read_text())["events"]
        if "url" in event.get("params", {}) and "initiator" in event["params"]
    ]
    asked = [request for request in requests if request["initiator"].startswith(address)]
    assert len(asked) > 2
    hosts = {urlsplit(request["url"]).hostname for request in asked}
    assert hosts == {"127.0.0.1"}
