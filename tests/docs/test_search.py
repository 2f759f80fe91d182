"""The built site as a reader uses it: the search answers, axe finds nothing, phones show it."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.test_site import SITE, address
from tools.copy_pages import ROOT
from tools.publish_site import publish_site

__all__ = ["address"]

pytestmark = pytest.mark.site

QUESTIONS: dict[str, dict[str, list[str]]] = YAML(typ="safe").load(
    Path(__file__).with_name("questions.yaml")
)
FIRST_RESULTS = 5
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
# one of each kind
PAGES = [
    "index", "install", "status", "tutorials/first_run", "finetuning", "ui", "commands/train",
    "reference", "reference/model", "reference/rules", "exit_codes", "models/llama3",
    "fault_injection",
]  # fmt: skip
PHONE = {"width": 390, "height": 844}
# the dialog is drawn into a shadow root
READ_LINKS = """() => {
    const found = [];
    const walk = (root) => root.querySelectorAll("*").forEach((element) => {
        if (root !== document && element.matches("a[href]")) found.push(element.href);
        if (element.shadowRoot) walk(element.shadowRoot);
    });
    walk(document);
    return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "this test needs a browser: apt-get install chromium"
    with sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield window
        window.close()


@pytest.fixture
def page(address: str, browser: Any) -> Iterator[Any]:
    """The start page, with the search open."""
    opened = browser.new_page()
    opened.goto(f"{address}/index.html")
    opened.wait_for_load_state("networkidle")
    opened.keyboard.press("/")
    opened.locator("input:visible").first.wait_for()
    yield opened
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_no_page_is_wider_than_a_phone(
    address: str, browser: Any, scheme: str
) -> None:
    opened = browser.new_page(viewport=PHONE, color_scheme=scheme)
    faults = {}
    for name in PAGES:
        opened.goto(f"{address}/{name}.html")
        opened.wait_for_load_state("networkidle")
        found = opened.evaluate(AXE.read_text() + "; axe.run(document)")
        width = opened.evaluate("document.documentElement.scrollWidth")
        faults[name] = [rule["id"] for rule in found["violations"]]
        faults[name] += ["too wide"] if width > PHONE["width"] else []
    opened.close()
    assert {name: found for name, found in faults.items() if found} == {}


def test_readers_choose_between_versions(tmp_path: Path, browser: Any) -> None:
    for is_release in (False, True):
        publish_site(SITE, tmp_path, is_release=is_release, version="7.1.0")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        opened = browser.new_page()
        opened.goto(f"{address}/")
        opened.wait_for_url(f"{address}/latest/")
        opened.goto(f"{address}/dev/operations.html")
        opened.wait_for_url(f"{address}/dev/troubleshooting.html")
        opened.locator(".md-version").first.wait_for()
        links = [link.get_attribute("href") for link in opened.locator(".md-version a").all()]
        opened.close()
        server.shutdown()
    assert links == [f"{address}/7.1/", f"{address}/dev/"]


def test_no_page_loads_scripts_of_others() -> None:
    assert len(list(SITE.rglob("*.html"))) > 100
    assert [page for page in SITE.rglob("*.html") if "unpkg" in page.read_text()] == []


def find_first_results(page: Any, question: str, answers: set[str]) -> list[str]:
    """Type a question, and return the pages of the first results once an answer is among them.

    Without an answer, return those that are there after three seconds.
    """
    words = page.locator("input:visible").first
    words.fill("")
    words.fill(question)
    names: list[str] = []
    for _ in range(10):
        page.wait_for_timeout(300)
        links = page.evaluate(READ_LINKS)[:FIRST_RESULTS]
        names = [link.partition("#")[0].rpartition("/")[2].removesuffix(".html") for link in links]
        if answers & set(names):
            break
    return names


def test_the_first_results_answer_the_questions_of_readers(page: Any) -> None:
    missed = {}
    for questions in QUESTIONS.values():
        for question, answers in questions.items():
            found = find_first_results(page, question, set(answers))
            if not set(answers) & set(found):
                missed[question] = found
    assert missed == {}
