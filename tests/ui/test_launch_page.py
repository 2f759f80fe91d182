"""The page Launch in Chromium."""

import shutil
from collections.abc import Callable

import pytest

from tests.ui.conftest import RECIPES, UiProcess, write_run
from tests.ui.watched_page import SMALL, Watched, check_everywhere, wait_until

pytestmark = pytest.mark.browser
LABELS = "[...document.querySelectorAll('ol.jobs code')].map(x => x.innerText.split('runs/')[1])"


def add_to_queue(watched: Watched, name: str, *words: str) -> None:
    page = watched.page
    page.fill("textarea", "\n".join([*SMALL, *words, f"dump_folder=runs/{name}"]))
    page.wait_for_selector(f".command:has-text('runs/{name}')")
    page.click("button:has-text('Add to queue')")
    page.wait_for_selector(f".job:has-text('runs/{name}')")


def test_the_only_recipe_of_a_workspace_is_chosen(watched: Watched) -> None:
    recipes = watched.ui.workspace / "recipes"
    for path in ("/data", "/plan", "/launch"):
        page = watched.open(path)
        wait_until(page, "document.querySelector('main select')?.value === 'recipes/mine.yaml'")
    shutil.copy(recipes / "mine.yaml", recipes / "other.yaml")
    page = watched.open("/data")
    page.wait_for_selector("option:has-text('recipes/other.yaml')", state="attached")
    assert page.input_value("main select") == ""


def test_three_jobs_share_one_slot_and_outlive_the_server(
    watched: Watched, start_ui: Callable[..., UiProcess]
) -> None:
    page = watched.open("/launch")
    page.select_option("main select", "recipes/mine.yaml")
    add_to_queue(watched, "long", "training.steps=100000")
    page.wait_for_selector(".job[data-state=running] a:has-text('long')", timeout=60_000)
    for name in ("second", "third", "fourth"):
        add_to_queue(watched, name, "training.steps=2", "lr_scheduler.warmup_steps=1")
    assert page.evaluate(LABELS) == ["second", "third", "fourth"]
    page.wait_for_selector(".top .pill:has-text('3 queued')")
    # by keyboard: the third begins before the second
    page.focus("[aria-label='move 2 up']")
    page.keyboard.press("Enter")
    wait_until(page, f"{LABELS}[0] === 'third'")
    page.click("ol.jobs li:has-text('runs/fourth') button:has-text('Cancel')")
    page.wait_for_selector(".job[data-state=cancelled]:has-text('by you')")
    watched.allowed = ("Failed to load resource",)
    watched.ui.process.kill()
    watched.ui.process.wait()
    watched.ui.link = start_ui("--port", str(watched.ui.port)).link
    page.goto(watched.ui.link)
    watched.open("/launch")
    page.wait_for_selector(".job[data-state=running] a:has-text('long')")
    assert page.evaluate(LABELS) == ["third", "second"]
    rows = watched.ui.workspace / "runs" / "long" / "metrics.jsonl"
    while not rows.is_file():
        page.wait_for_timeout(200)
    page.click(".job[data-state=running] button:has-text('Stop')")
    done = ".job[data-state=done]"
    page.wait_for_selector(f"{done} >> nth=1", timeout=90_000)
    # newest first
    names = page.eval_on_selector_all(f"{done} a", "all => all.map(x => x.innerText)")
    assert names == ["second", "third"]
    page.wait_for_selector(".job[data-state=cancelled] a:has-text('long')")
    assert any((watched.ui.workspace / "runs/long/checkpoint").glob("step-*"))
    page.click(f"{done} summary >> nth=0")
    page.wait_for_selector(".output:has-text('run directory: runs/second')")


def test_what_differs_from_the_last_run_and_sweeps_are_shown(watched: Watched) -> None:
    folder = watched.ui.workspace
    write_run(folder / "runs" / "llama3-debug", "optimizer.lr=1e-4", losses=[3.0])
    shutil.copytree(RECIPES / "sweeps", folder / "recipes" / "sweeps")
    (folder / "recipes" / "sweep.yaml").write_text(
        "version: 1\nrecipe: mine.yaml\nfolder: runs/s\nmetric: loss\n"
        "grid: {optimizer.lr: [0.001, 0.002]}\n"
    )
    page = watched.open("/launch?file=recipes/mine.yaml")
    page.wait_for_selector("text=from the last run, llama3-debug")
    assert "0.0001 → 0.002" in page.inner_text(".changes").replace("\n", " ")
    page.select_option("main select", "recipes/sweep.yaml")
    page.click("summary:has-text('results of the sweep')")
    page.click("button:has-text('Show the table')")
    page.wait_for_selector("table tbody tr >> nth=1")
    assert "0.001" in page.inner_text("table")


def test_a_job_for_slurm_is_shown_before_it_is_submitted(watched: Watched) -> None:
    page = watched.open("/launch?file=recipes/mine.yaml")
    page.fill("textarea", "launch.name=slurm\nlaunch.nnodes=2\ndump_folder=runs/far")
    page.click("button:has-text('Show the job')")
    page.wait_for_selector(".output:has-text('#SBATCH')")
    assert "--nodes=2" in page.inner_text(".output")
    assert not (watched.ui.workspace / "runs").exists()


def test_a_mistake_shows_no_command(watched: Watched) -> None:
    page = watched.page
    watched.allowed = ("Failed to load resource",)
    watched.open("/launch?file=recipes/mine.yaml")
    page.fill("textarea", "--trust")
    page.wait_for_selector("text=an override is path=value")
    page.fill("textarea", "optimizer.lr=fast")
    page.wait_for_selector(".notice.tone-error:has-text('fast')")
    assert page.locator("button:has-text('Start now'):enabled").count() == 0


def test_axe_finds_nothing_on_launch(watched: Watched) -> None:
    check_everywhere(watched, {"empty": "/launch"})
    page = watched.open("/launch?file=recipes/mine.yaml")
    page.click("button:has-text('Start now')")
    page.fill("textarea", "dump_folder=recipes/mine.yaml")
    page.wait_for_selector(".command:has-text('dump_folder')")
    page.click("button:has-text('Add to queue')")
    page.wait_for_selector(".job[data-state=failed]", timeout=60_000)
    page.click(".job[data-state=running] button:has-text('Stop')")
    page.wait_for_selector(".job[data-state=cancelled]", timeout=60_000)
    check_everywhere(watched, {"filled": "/launch?file=recipes/mine.yaml"})


def test_a_read_only_page_shows_the_queue_without_buttons(
    browser: object, start_ui: Callable[..., UiProcess]
) -> None:
    found = Watched(browser, start_ui("--read-only"))
    page = found.open("/launch")
    page.wait_for_selector("text=Nothing waits")
    assert page.locator("main button").count() == 0
    found.context.close()
    assert found.faults == []
