"""The page and the report in Firefox: what differs between browsers, not all scenarios again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ui.conftest import UiProcess, write_run
from tests.ui.firefox import Firefox
from tests.ui.watched_page import AXE
from titanrun.report.run_report import build_run_report

pytestmark = pytest.mark.firefox

PAGES = (
    "/edit?file=recipes/mine.yaml",
    "/runs",
    "/run?id=first",
    "/compare?runs=first,second",
    "/data?file=recipes/mine.yaml",
    "/plan?file=recipes/mine.yaml",
    "/chat",
    "/launch?file=recipes/mine.yaml",
)
# Firefox has no narrower windows
WIDTHS = (1280, 500)
LOSSES: list[object] = [8.0, 6.0, "nan", 5.0]
FIND_FAULTS = "return (await axe.run(document)).violations.map(one => [one.id, one.nodes[0].html])"
SPY = "window.refused = []; document.addEventListener('securitypolicyviolation', event => "
SPY += "refused.push(event.violatedDirective));"
END_KEY = "\ue010"  # as WebDriver writes it


@pytest.fixture(params=[False, True], ids=["light", "dark"])
def firefox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Firefox]:
    started = Firefox(tmp_path, is_dark=request.param)
    yield started
    started.close()


def check_page(firefox: Firefox, name: str) -> None:
    """Fail for what axe finds, what the browser refused, and a page that is too wide."""
    firefox.run(AXE.read_text() + "; return null")
    assert firefox.run(FIND_FAULTS) == [], name
    assert firefox.run("return window.refused ?? []") == [], name
    assert firefox.run("return document.documentElement.scrollWidth <= innerWidth"), name


def test_every_page_is_complete(
    firefox: Firefox, start_ui: Callable[..., UiProcess], workspace: Path
) -> None:
    for name in ("first", "second"):
        write_run(workspace / "runs" / name, f"dump_folder=runs/{name}", losses=LOSSES)
    server = start_ui()
    firefox.go(server.link)
    firefox.wait_for("document.querySelector('h1')?.textContent === 'mine.yaml'")
    assert "token" not in firefox.run("return location.href")
    for width in WIDTHS:
        firefox.resize(width)
        for path in PAGES:
            firefox.go(server.origin + path)
            firefox.run(SPY)
            firefox.wait_for("document.querySelector('h1')")
            check_page(firefox, f"{path} at {width}")
    firefox.go(f"{server.origin}/run?id=first")
    firefox.wait_for("document.querySelector('canvas')")


def test_mistakes_are_underlined_while_keys_are_pressed_and_corrected(
    firefox: Firefox, start_ui: Callable[..., UiProcess], workspace: Path
) -> None:
    server = start_ui()
    firefox.go(server.link)
    firefox.wait_for("document.querySelector('.cm-content')")
    firefox.click(".cm-line")
    firefox.type(".cm-content", f"{END_KEY}\ndescripton: typed in Firefox")
    firefox.wait_for("document.querySelector('.cm-lintRange-error')?.textContent === 'descripton'")
    find = "[...document.querySelectorAll('button')].find(one => one.textContent.startsWith("
    firefox.wait_for(f"{find}'Replace by'))")
    firefox.run(f"{find}'Replace by')).click()")
    firefox.wait_for("!document.querySelector('.cm-lintRange-error')")
    firefox.run(f"{find}'Save')).click()")
    recipe = workspace / "recipes" / "mine.yaml"
    firefox.wait_for(f"{find}'Save')).disabled")
    assert "description: typed in Firefox" in recipe.read_text()


def test_a_running_run_grows_without_a_reload(
    firefox: Firefox, start_ui: Callable[..., UiProcess], workspace: Path
) -> None:
    run = write_run(workspace / "runs" / "first", losses=[8.0, 6.0])
    server = start_ui()
    firefox.go(server.link)
    firefox.wait_for("document.querySelector('h1')")
    firefox.go(f"{server.origin}/run?id=first")
    firefox.wait_for("document.body.innerText.includes('6.0000')")
    firefox.run("window.isSamePage = true")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "loss": 4.25, "tps": 1000.0}) + "\n")
    firefox.wait_for("document.body.innerText.includes('4.2500')")
    assert firefox.run("return window.isSamePage") is True


def test_the_report_has_no_faults(firefox: Firefox, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "runs" / name, losses=LOSSES) for name in ("first", "second")]
    for number, chosen in enumerate((runs[:1], runs)):
        file = tmp_path / f"report-{number}.html"
        file.write_text(build_run_report(chosen, has_log=True))
        for width in WIDTHS:
            firefox.resize(width)
            firefox.go(f"file://{file}")
            firefox.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
            check_page(firefox, f"{len(chosen)} runs at {width}")
