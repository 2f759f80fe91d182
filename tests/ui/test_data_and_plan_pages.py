"""The pages Data and Plan in Chromium: what commands that only read have answered."""

import shutil
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tests.ui.conftest import RECIPES, UiProcess
from tests.ui.watched_page import Watched, check_everywhere

pytestmark = pytest.mark.browser
PLAN = "/plan?file=recipes/mine.yaml&ranks=1,2,64&devices=h100,h200"
TIMEOUT = 180_000


def add_chat_recipe(ui: UiProcess) -> None:
    shutil.copy(RECIPES / "llama3_sft_debug.yaml", ui.workspace / "recipes" / "chat.yaml")


def test_rows_mark_the_tokens_that_count(watched: Watched) -> None:
    add_chat_recipe(watched.ui)
    page = watched.open("/data?file=recipes/chat.yaml")
    page.wait_for_selector(".command:has-text('titanrun data show ./recipes/chat.yaml')")
    assert page.locator(".row-text").count() == 0
    page.click("button:has-text('Show the rows')")
    page.wait_for_selector(".row-text", timeout=TIMEOUT)
    counted = page.inner_text("strong.counted >> nth=1")
    assert "<|end_of_text|>" in counted and "User:" not in counted
    style = page.evaluate(
        "(s => [s.fontWeight, s.textDecorationLine])"
        "(getComputedStyle(document.querySelector('.row-text strong')))"
    )
    assert style == ["600", "underline"]
    assert page.inner_text(".chip >> nth=1") == "<|begin_of_text|>"
    # a reload shows the answer again, and another row is another command
    page.reload()
    page.wait_for_selector(".row-text")
    page.fill("input.count", "3")
    page.wait_for_selector(".command:has-text('--row 3')")
    page.click("button:has-text('Show the rows')")
    page.wait_for_selector("text=row 3", timeout=TIMEOUT)
    check_everywhere(watched, {"rows": "/data?file=recipes/chat.yaml", "empty": "/data"})


def test_statistics_have_histograms_and_mistakes_their_message(watched: Watched) -> None:
    page = watched.open("/data?file=recipes/mine.yaml&tab=statistics")
    page.click("button:has-text('Measure')")
    page.wait_for_selector(".bars rect", timeout=TIMEOUT)
    # the same figures as titanrun data stats prints
    assert "3,821" in page.inner_text(".facts >> nth=0")
    assert "249 tokens" in page.inner_text(".facts >> nth=0")
    page.click(".bars summary >> nth=0")
    cells = page.eval_on_selector_all(
        ".bars >> nth=0 >> td.number", "all => all.map(x => +x.innerText.replace(/,/g, ''))"
    )
    assert sum(cells) == 3821
    check_everywhere(watched, {"statistics": "/data?file=recipes/mine.yaml&tab=statistics"})
    watched.open("/data?file=recipes/mine.yaml&set=dump_folder%3Druns%2Fx%0Atraining.data_cache!")
    page.click("button:has-text('Show the rows')")
    page.wait_for_selector(".output:has-text('error')", timeout=TIMEOUT)


def test_what_a_stream_leaves_out_is_not_counted(watched: Watched) -> None:
    texts = "".join(f'{{"text": "{number} words"}}\n' for number in range(2000))
    (watched.ui.workspace / "texts.jsonl").write_text(texts)
    dataset = "training.dataset={name: text, path: texts.jsonl, streaming: true}"
    settings = quote(f"{dataset}\nvalidation.enable=false")
    page = watched.open(f"/data?file=recipes/mine.yaml&tab=statistics&set={settings}")
    page.click("button:has-text('Measure')")
    page.wait_for_selector(".facts", timeout=TIMEOUT)
    facts = page.eval_on_selector_all(
        ".facts >> nth=0 >> div", "all => all.map(x => [...x.children].map(y => y.innerText))"
    )
    assert ["Left out", "not counted"] in facts and ["Truncated", "not counted"] in facts


def test_the_plan_fills_cell_by_cell_and_is_kept(watched: Watched) -> None:
    page = watched.open(PLAN)
    page.wait_for_selector("summary:has-text('6 commands')")
    page.click("summary:has-text('6 commands')")
    shown = page.inner_text("pre.output")
    assert "--world-size 64 --device h200 --json" in shown
    page.click("button:has-text('Plan'):enabled")
    page.wait_for_function(
        "() => document.querySelectorAll('.plan-cell').length === 6", timeout=TIMEOUT
    )
    states = "all => all.map(x => x.innerText.slice(2))"
    assert set(page.eval_on_selector_all(".plan-cell .state", states)) == {"fits"}
    page.click(".plan-cell >> nth=2")
    page.wait_for_selector("section[aria-label='Chosen plan'] h2")
    assert "optimizer states" in page.inner_text("section[aria-label='Chosen plan']")
    # what was planned is known until the recipe changes
    page.reload()
    page.wait_for_selector("section[aria-label='Chosen plan'] h2")
    check_everywhere(watched, {"plan": PLAN + "&cell=2-h100", "empty": "/plan"})
    recipe = watched.ui.workspace / "recipes" / "mine.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 80", "steps: 81"))
    watched.open(PLAN)
    page.wait_for_selector("summary:has-text('6 commands')")
    assert page.locator(".plan-cell").count() == 0


def test_a_plan_that_does_not_work_says_why(watched: Watched) -> None:
    words = "parallelism.tensor_parallel_degree%3D3"
    page = watched.open(f"/plan?file=recipes/mine.yaml&ranks=2&devices=h100&set={words}")
    watched.allowed = ("Failed to load resource",)
    page.wait_for_selector("button:has-text('Plan'):enabled, .notice.tone-error")
    if page.locator(".notice.tone-error").count() == 0:
        page.click("button:has-text('Plan'):enabled")
        page.wait_for_selector(".plan-fault", timeout=TIMEOUT)
    assert "3" in page.inner_text(".notice.tone-error, .plan-fault")


def test_read_only_pages_run_nothing(browser: object, start_ui: Callable[..., UiProcess]) -> None:
    found = Watched(browser, start_ui("--read-only"))
    for path in ("/data?file=recipes/mine.yaml", PLAN):
        page = found.open(path)
        page.wait_for_selector("text=The server is read-only")
        assert page.locator("main button").count() == 0
    found.context.close()
    assert found.faults == []
