"""Keys and gestures that the pages promise, in Chromium."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.ui.conftest import write_run
from tests.ui.watched_page import Watched, get_text, set_text, wait_until

pytestmark = pytest.mark.browser
TWO_MISTAKES = (
    "version: 1\n"
    "extends: [parts/tiny_corpus.yaml, parts/fp32.yaml]\n"
    "model: {name: llama3, flavor: debugmodell}\n"
    "training: {dataset: tiny, step: 8}\n"
)
SELECTED = "getSelection().toString()"


@pytest.fixture
def page(watched: Watched) -> Any:
    """The editor with two mistakes, and the cursor at the beginning of the text."""
    page = watched.open("/edit?file=recipes/mine.yaml")
    page.wait_for_selector(".cm-line")
    set_text(page, TWO_MISTAKES)
    page.wait_for_selector(".cm-lintRange-error >> nth=1")
    page.keyboard.press("Control+Home")
    return page


def test_f8_goes_from_problem_to_problem_and_a_panel_lists_them(page: Any) -> None:
    for word in ("debugmodell", "step", "debugmodell"):
        page.keyboard.press("F8")
        wait_until(page, f"{SELECTED} === '{word}'")
    page.keyboard.press("Control+Shift+M")
    page.wait_for_selector(".cm-panel-lint")
    assert "debugmodell" in page.inner_text(".cm-panel-lint")
    page.keyboard.press("Escape")
    page.wait_for_selector(".cm-panel-lint", state="detached")


def test_tab_indents_only_where_the_status_bar_says_so(page: Any) -> None:
    assert "Tab leaves the editor" in page.inner_text(".status-bar")
    page.keyboard.press("Control+m")
    page.wait_for_selector(".status-bar:has-text('Tab indents')")
    page.keyboard.press("Tab")
    assert get_text(page).startswith("  version: 1")
    page.keyboard.press("Control+m")
    page.wait_for_selector(".status-bar:has-text('Tab leaves the editor')")
    page.keyboard.press("Tab")
    assert page.evaluate("!document.activeElement.closest('.cm-editor')")


def test_a_click_with_ctrl_opens_the_extended_file_that_it_meets(page: Any) -> None:
    box = page.locator(".cm-line:has-text('extends')").bounding_box()
    # at the last of the names: a character of the monospaced text is as wide as any other
    width = page.evaluate(
        "(line => { const range = document.createRange(); range.selectNodeContents(line);"
        " return range.getBoundingClientRect().width / line.innerText.length; })"
        "([...document.querySelectorAll('.cm-line')].find(x => x.innerText.includes('extends')))"
    )
    column = TWO_MISTAKES.splitlines()[1].index("fp32")
    left = page.locator(".cm-line:has-text('extends') span").first.bounding_box()["x"]
    page.keyboard.down("Control")
    page.mouse.click(left + (column + 0.5) * width, box["y"] + box["height"] / 2)
    page.keyboard.up("Control")
    wait_until(page, "TITLE.startsWith('fp32.yaml')")


def test_what_is_announced_changes_at_most_once_in_two_seconds(page: Any) -> None:
    page.evaluate(
        """() => {
          window.said = [];
          const region = document.querySelector('.side-body > [role=status]');
          let before = region.innerText;
          // a node may be put again where it was, which nobody hears
          const listen = () => {
            const now = region.innerText;
            if (now !== before) window.said.push([performance.now(), now]);
            before = now;
          };
          new MutationObserver(listen).observe(
            region, {subtree: true, childList: true, characterData: true});
        }"""
    )
    three = TWO_MISTAKES + "x: 1\n"
    for text, count in ((three, 3), (TWO_MISTAKES, 2)) * 3 + ((three, 3),):
        set_text(page, text)
        page.wait_for_selector(f"[data-tab=problems]:has-text('Problems {count}')")
    wait_until(page, "window.said.at(-1)?.[1] === '3 problems'")
    times = [time for time, _ in page.evaluate("window.said")]
    assert all(later - earlier >= 1990 for earlier, later in pairwise(times)), page.evaluate(
        "window.said"
    )


def test_a_drag_zooms_into_a_curve_and_a_double_click_shows_all_of_it(
    watched: Watched, workspace: Path
) -> None:
    write_run(workspace / "runs" / "long", losses=[9.0 - step / 50 for step in range(400)])
    page = watched.open("/run?id=long")
    page.wait_for_selector("p[role=status]:has-text('The run is finished')", state="attached")
    plot = page.locator(".chart .u-over").first
    plot.wait_for()
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2

    def read_step_at(share: float) -> int:
        page.mouse.move(box["x"] + share * box["width"], middle)
        words = page.inner_text(".chart >> nth=0 >> .legend-x").split()
        return int(words[-1].replace(",", ""))

    assert 190 <= read_step_at(0.5) <= 210
    page.mouse.move(box["x"] + 0.5 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], middle, steps=5)
    page.mouse.up()
    assert 240 <= read_step_at(0.5) <= 260
    plot.dblclick()
    assert 190 <= read_step_at(0.5) <= 210
