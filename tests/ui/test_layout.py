"""Where things stand in a page, in Chromium: beside their lines, inside their panels, on phones."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ui.conftest import write_run
from tests.ui.watched_page import Watched, wait_until

pytestmark = pytest.mark.browser
LOSSES = {"low": 2.0, "middle": 5.0, "high": 8.0}


@pytest.fixture
def three_runs(workspace: Path) -> Path:
    runs = workspace / "runs"
    for name, loss in LOSSES.items():
        write_run(runs / name, losses=[9.0, loss])
    return runs


def get_box(page: Any, selector: str) -> dict[str, float]:
    box: dict[str, float] = page.locator(selector).first.bounding_box()
    return box


def test_names_stand_at_the_ends_of_wide_lines_and_below_narrow_ones(
    watched: Watched, three_runs: Path
) -> None:
    page = watched.open("/compare?runs=low,middle,high&metrics=loss")
    page.wait_for_selector(".chart.wide .legend li >> nth=2")
    wait_until(page, "document.querySelector('.chart.wide li').style.top !== '0px'")
    plot = get_box(page, ".plot")
    tops = {name: get_box(page, f".legend li:has-text('{name}')")["y"] for name in LOSSES}
    assert sorted(tops, key=lambda name: tops[name]) == ["high", "middle", "low"]
    assert all(plot["y"] - 10 <= top <= plot["y"] + plot["height"] for top in tops.values())
    assert get_box(page, ".legend li")["x"] >= plot["x"] + plot["width"]
    watched.check_axe()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector(".chart.wide", state="detached")
    plot = get_box(page, ".plot")
    assert get_box(page, ".legend li")["y"] >= plot["y"] + plot["height"]


def test_smoothing_leaves_a_schedule_as_it_is(watched: Watched, three_runs: Path) -> None:
    for run in three_runs.iterdir():
        rows = [{"step": step, "loss": 9.0 - step, "lr": 1.0 - step / 4} for step in (1, 2, 3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = watched.open("/compare?runs=low,high&metrics=loss,lr&smooth=0.9")
    page.wait_for_selector(".chart:has-text('Learning rate') .legend :text-is('2.5e-1')")
    page.wait_for_selector(".chart:has-text('Loss') .legend .figure:not(:text-is('6.0000'))")


def test_an_axis_of_steps_has_whole_numbers_only(watched: Watched, three_runs: Path) -> None:
    page = watched.open()
    page.add_init_script(
        """const draw = CanvasRenderingContext2D.prototype.fillText;
        window.drawn = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
          window.drawn.push([text, y]);
          return draw.call(this, text, x, y);
        };"""
    )
    page.goto(f"{watched.ui.origin}/compare?runs=low,high&metrics=loss")
    page.wait_for_selector(".chart .u-over")
    wait_until(page, "window.drawn.length > 4")
    drawn = page.evaluate("window.drawn")
    lowest = max(y for _, y in drawn)
    assert {text for text, y in drawn if y == lowest} == {"1", "2"}


def test_menus_are_closed_by_escape_a_click_elsewhere_and_the_end_of_the_focus(
    watched: Watched, three_runs: Path
) -> None:
    page = watched.open("/compare?runs=low,middle&metrics=loss")
    title, body = "summary:has-text('Metrics')", ".controls .menu[open]"
    for leave in (
        lambda: page.keyboard.press("Escape"),
        lambda: page.click("h1"),
        lambda: page.focus("a.brand"),
    ):
        page.click(title)
        page.wait_for_selector(body)
        watched.check_axe()
        leave()
        page.wait_for_selector(body, state="detached")
    page.click(title)
    page.keyboard.press("Escape")
    wait_until(page, "document.activeElement.innerText.startsWith('Metrics')")
    # what is chosen in a menu leaves it open
    page.click("summary:has-text('Add a run')")
    page.click(".menu[open] button:has-text('high')")
    page.wait_for_selector(".run-chip:has-text('high')")


def test_nothing_is_wider_than_the_panel_beside_the_text(
    watched: Watched, three_runs: Path
) -> None:
    write_run(three_runs / ("a-run-with-a-name-" * 5), losses=[3.0])
    page = watched.open("/edit?file=recipes/mine.yaml&panel=difference")
    page.wait_for_selector(".side select")
    page.wait_for_selector(".side option:text-is('low')", state="attached")
    page.select_option(".side select", "run:low")
    page.wait_for_selector(".side .changes, .side .empty")
    wide = page.evaluate(
        "(x => x.scrollWidth - x.clientWidth)(document.querySelector('.side-body'))"
    )
    assert wide <= 0


@pytest.mark.parametrize(
    ("path", "tab"), [("/edit?panel=nothing", "Problems"), ("/run?id=low&tab=nothing", "Curves")]
)
def test_an_unknown_part_in_the_address_shows_the_first_one(
    watched: Watched, three_runs: Path, path: str, tab: str
) -> None:
    page = watched.open(path)
    page.wait_for_selector(f"[role=tab][aria-selected=true]:has-text('{tab}')")
    page.wait_for_selector("[role=tabpanel] :is(.empty, .problem, .chart)")


def test_a_phone_shows_under_a_row_what_has_no_column(watched: Watched, three_runs: Path) -> None:
    page = watched.open("/runs")
    page.wait_for_selector("table.runs")
    assert not page.is_visible(".col-rest >> nth=0")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector(".col-rest:has-text('1,002 tok/s · 1 min · 2026')")
    assert not page.is_visible(".col-tps >> nth=0")


def test_a_shipped_recipe_has_no_problems_in_an_empty_workspace(
    watched: Watched, workspace: Path
) -> None:
    for path in workspace.rglob("*.yaml"):
        path.unlink()
    page = watched.open("/edit")
    page.wait_for_selector(".side :text('No problems')")
    assert "shipped:parts/" in page.inner_text(".cm-content")


def test_a_stage_leads_to_the_other_stages_of_its_recipe(watched: Watched, workspace: Path) -> None:
    whole = workspace / "runs" / "whole"
    for name in ("sft", "dpo"):
        write_run(whole / name, losses=[3.0])
    (whole / "stages.yaml").write_text("stages: [{id: sft}, {id: dpo}, {id: rl}]\n")
    page = watched.open("/run?id=whole/sft&tab=about")
    page.wait_for_selector("p:has-text('Stages: sft → dpo → rl (not begun)')")
    watched.check_axe()
    page.click("p:has-text('Stages') a")
    wait_until(page, "TITLE === 'whole/dpo'")
