"""What the pages offer beside their first use, in Chromium: everything that a person looks for."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ui.conftest import UiProcess, write_run
from tests.ui.watched_page import SMALL, Watched, check_everywhere, set_text, wait_until

pytestmark = pytest.mark.browser
ROWS = "document.querySelectorAll('table.runs tbody tr').length"


@pytest.fixture
def three_runs(workspace: Path) -> Path:
    runs = workspace / "runs"
    for number, name in enumerate(("first", "second", "third")):
        write_run(runs / name, f"debug.seed={number}", losses=[3.0 - number / 10, 2.0])
    return runs


def test_the_palette_finds_pages_recipes_and_runs(watched: Watched, three_runs: Path) -> None:
    page = watched.open("/runs")
    page.wait_for_selector("table.runs")

    def open_palette() -> None:
        page.keyboard.press("Control+k")
        page.wait_for_selector("dialog input:focus")

    for text, end in (
        ("second", "/run?id=second"),
        ("fp32", "/edit?file=recipes%2Fparts%2Ffp32.yaml"),
        ("compare page", "/compare"),
    ):
        open_palette()
        page.keyboard.type(text)
        first = "[role=option][aria-selected=true]"
        page.wait_for_selector(f"{first}:has-text('{text.split()[0].title()}'), {first}")
        wait_until(page, f"document.querySelector(\"{first}\").innerText.toLowerCase()"
                   f".includes('{text.split()[0]}')")  # fmt: skip
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{end}")
        page.wait_for_selector("dialog", state="detached")
    open_palette()
    page.keyboard.type("dark theme")
    page.wait_for_selector("[role=option]:has-text('Dark theme')")
    watched.check_axe()
    page.keyboard.press("Enter")
    wait_until(page, "document.documentElement.dataset.theme === 'dark'")
    page.wait_for_selector("dialog", state="detached")
    open_palette()
    page.keyboard.type("nothing has this name")
    page.wait_for_selector("text=Nothing has this name")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_columns_are_chosen_and_runs_archived_and_reported(
    watched: Watched, three_runs: Path, tmp_path: Path
) -> None:
    page = watched.open("/runs")
    page.click("summary:has-text('Columns')")
    page.uncheck(".menu label:has-text('Speed') input")
    page.wait_for_selector("th.col-tps", state="detached")
    page.reload()
    page.wait_for_selector("table.runs")
    assert page.locator(".col-tps").count() == 0
    assert page.locator("table.runs tbody tr").count() == 3
    page.check("[aria-label='choose first']")
    page.check("[aria-label='choose third']")
    page.click("button:text-is('Report')")
    page.wait_for_selector("dialog .command:has-text('titanrun report runs/')")
    watched.check_axe()
    with page.expect_download() as saved:
        page.click("button:has-text('Download runs.html')")
    target = tmp_path / "saved.html"
    saved.value.save_as(target)
    text = target.read_text()
    assert text.startswith("<!DOCTYPE html>") and "first" in text and "third" in text
    assert str(watched.ui.workspace) not in text
    page.click("dialog button:text-is('Close')")
    page.click("button:text-is('Archive')")
    wait_until(page, f"{ROWS} === 1")
    assert (three_runs / ".archive" / "first" / "run.json").is_file()
    page.click("button:text-is('Undo')")
    wait_until(page, f"{ROWS} === 3")
    assert (three_runs / "third" / "run.json").is_file()


def test_a_problem_is_explained_and_leads_to_its_file(watched: Watched) -> None:
    page = watched.open("/edit?file=recipes/mine.yaml")
    page.wait_for_selector(".cm-line")
    text = (watched.ui.workspace / "recipes" / "mine.yaml").read_text()
    set_text(page, text.replace("steps: 80", "step: 80"))
    page.click("button:text-is('Explain')")
    page.wait_for_selector("dialog pre:has-text('unknown-key')")
    watched.check_axe()
    page.keyboard.press("Escape")
    part = watched.ui.workspace / "recipes" / "parts" / "fp32.yaml"
    part.write_text(part.read_text() + "checkpoint: {interva: 3}\n")
    set_text(page, text)
    page.click("button:text-is('Open fp32.yaml')")
    wait_until(page, "TITLE.startsWith('fp32.yaml')")
    assert f"line={len(part.read_text().splitlines())}" in page.url


def test_the_size_of_a_recipe_leads_to_plan_data_and_launch(watched: Watched) -> None:
    page = watched.open("/edit?file=recipes/mine.yaml&panel=outline")
    page.wait_for_selector(".side .facts")
    facts = page.inner_text(".side .facts").replace("\n", " ")
    # 80 steps of 8 rows of 256 tokens
    assert "Tokens per step 2,048" in facts and "Tokens 163,840" in facts
    check_everywhere(watched, {"size": "/edit?file=recipes/mine.yaml&panel=outline"})
    page.set_viewport_size({"width": 1280, "height": 844})
    for label in ("Plan", "Data", "Launch"):
        watched.open("/edit?file=recipes/mine.yaml&panel=outline")
        page.click(f".side a:text-is('{label}')")
        page.wait_for_url(f"**/{label.lower()}?file=recipes%2Fmine.yaml")
        page.wait_for_selector(f"h1:has-text('{label}')")


def test_overrides_are_part_of_the_command_and_not_of_the_file(watched: Watched) -> None:
    page = watched.open("/edit?file=recipes/mine.yaml&panel=outline")
    page.wait_for_selector(".side .facts")
    file = watched.ui.workspace / "recipes" / "mine.yaml"
    before = file.read_bytes()
    page.click("summary:has-text('Overrides')")
    page.fill(".overrides textarea", "training.steps=9\noptimizer.l")
    page.wait_for_selector(".overrides [role=status]:has-text('optimizer.l')")
    # 9 steps of 8 rows of 256 tokens
    wait_until(page, "document.querySelector('.side .facts').innerText.includes('18,432')")
    page.fill(".overrides textarea", "training.steps=9\noptimizer.lrr=1")
    page.click("[data-tab=problems]")
    page.wait_for_selector(".problem:has-text('lrr')")
    assert page.locator(".cm-lintRange-error").count() == 0
    page.fill(".overrides textarea", "training.steps=9")
    page.wait_for_selector("text=No problems")
    check_everywhere(watched, {"edit": page.url.removeprefix(watched.ui.origin)})
    page.set_viewport_size({"width": 1280, "height": 844})
    page.wait_for_selector("button:has-text('Run …'):enabled")
    page.click("button:has-text('Run …')")
    page.wait_for_selector("dialog .command:has-text('mine.yaml training.steps=9')")
    assert file.read_bytes() == before


def test_lines_tell_where_inherited_values_come_from(watched: Watched) -> None:
    page = watched.open("/edit?file=recipes/mine.yaml")
    page.wait_for_selector(".cm-line")
    assert page.locator(".line-note").count() == 0
    page.check("label:has-text('Origins') input")
    page.wait_for_selector(".line-note")
    notes = page.eval_on_selector_all(".line-note", "all => all.map(x => x.textContent)")
    assert any("dataset.name tiny from tiny_corpus.yaml" in note for note in notes), notes
    # a note is no text: what is copied and saved has none of it
    text = (watched.ui.workspace / "recipes" / "mine.yaml").read_text()
    page.click(".cm-content")
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    assert page.evaluate("navigator.clipboard.readText()").strip() == text.strip()
    page.reload()
    page.wait_for_selector(".line-note")
    watched.check_axe()
    page.uncheck("label:has-text('Origins') input")
    page.wait_for_selector(".line-note", state="detached")


def test_saves_resumes_and_spikes_are_marked_and_said(watched: Watched, three_runs: Path) -> None:
    run = three_runs / "first"
    (run / "logs" / "rank-0.log").write_text(
        "2026-01-01 10:00:00,123 INFO resuming after step 1 from runs/first/checkpoint/step-1\n"
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 9.0, "guard/loss_spikes": 1}\n')
    page = watched.open("/run?id=first")
    page.wait_for_selector(".marks")
    assert page.inner_text(".mark-resume").endswith("resumed at step 1")
    assert page.inner_text(".mark-spike").endswith("spike at step 3")
    # the triangle itself: pixels of the warning color at the bottom of the first chart
    page.wait_for_selector(".chart canvas")
    count = """() => {
      const canvas = document.querySelector('.chart canvas');
      const {width, height} = canvas;
      const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);
      const hex = getComputedStyle(document.documentElement).getPropertyValue('--warning').trim();
      const want = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
      let found = 0;
      for (let at = 0; at < data.length; at += 4) {
        found += want.every((value, part) => data[at + part] === value) ? 1 : 0;
      }
      return found;
    }"""
    assert page.evaluate(count) > 10
    assert run.is_dir()


def test_a_thousand_runs_are_paged_filtered_sorted_and_tagged_by_keyboard(
    watched: Watched, workspace: Path
) -> None:
    first = write_run(workspace / "runs" / "run-0000", losses=[8.0, 7.0])
    for number in range(1, 1000):
        folder = first.with_name(f"run-{number:04}")
        folder.mkdir()
        for name in ("run.json", "status.json"):
            shutil.copyfile(first / name, folder / name)
        (folder / "metrics.jsonl").write_text(f'{{"step": 1, "loss": {1 + number / 1000}}}\n')
    page = watched.open("/runs?sort=loss&order=ascending")
    page.wait_for_selector("[role=status]:text-is('1,000')")
    names = "[...document.querySelectorAll('table.runs tbody a')].map(x => x.innerText)"
    assert page.evaluate(f"{names}[0]") == "run-0001"
    page.focus("nav[aria-label='Pages of the list'] button:has-text('Next')")
    page.keyboard.press("Enter")
    wait_until(page, f"{names}[0] === 'run-0201'")
    assert page.evaluate(f"{names}.length") == 200
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("Enter")
    wait_until(page, f"{names}[0] === 'run-0401'")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("run-09 loss<1.93")
    wait_until(page, f"{ROWS} === 30")
    page.focus("button.sort:has-text('Loss') >> nth=0")
    page.keyboard.press("Enter")
    wait_until(page, f"{names}[0] === 'run-0929'")
    for name in ("run-0929", "run-0928"):
        page.focus(f"[aria-label='choose {name}']")
        page.keyboard.press("Space")
    page.focus("[aria-label='New tag']")
    page.keyboard.type("best")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tag:has-text('best') >> nth=1")
    tags = [json.loads(path.read_text())["tags"] for path in workspace.glob("runs/*/tags.json")]
    assert tags == [["best"], ["best"]]
    page.fill("[data-filter]", "tag:best")
    wait_until(page, f"{ROWS} === 2")


def test_every_state_has_a_word_and_a_shape(watched: Watched, workspace: Path) -> None:
    runs = workspace / "runs"
    here = {"host": socket.gethostname(), "boot_id": "another boot"}
    write_run(runs / "crashed", losses=[3.0], state="running", pid=1, **here)
    write_run(runs / "stale", losses=[3.0], state="running", host="elsewhere", boot_id="x")
    write_run(runs / "failed", losses=[3.0, "nan"], state="failed", exit_code=1)
    write_run(runs / "preempted", losses=[3.0], state="preempted", exit_code=75)
    write_run(runs / "finished", losses=[3.0])
    page = watched.open("/runs")
    page.wait_for_selector("table.runs")
    shown = page.eval_on_selector_all(
        "table.runs tbody tr",
        "all => all.map(x => [x.querySelector('.col-name a').innerText, "
        "x.querySelector('.shape').innerText, x.querySelector('.state').innerText])",
    )
    found = {name: (shape, words.removeprefix(shape).strip()) for name, shape, words in shown}
    assert {name: word for name, (_, word) in found.items()} == {
        name: name for name in ("stale", "failed", "preempted", "finished", "crashed")
    }
    assert all(shape for shape, _ in found.values())
    watched.open("/run?id=failed")
    page.wait_for_selector(".chart")
    page.click(".chart >> nth=0 >> button:has-text('Table')")
    assert page.inner_text(".chart-table tbody tr:last-child td:last-child") == "not finite"
    check_everywhere(watched, {"runs": "/runs", "stale": "/run?id=stale"})


def test_no_page_receives_the_value_of_a_secret(
    browser: Any, start_ui: Callable[..., UiProcess], workspace: Path
) -> None:
    secret = "hf_secret-4711-abcdef"
    server = start_ui(WANDB_API_KEY=secret)
    recipe = workspace / "recipes" / "mine.yaml"
    trackers = "  trackers: [{name: wandb, api_key: '${env:WANDB_API_KEY}'}]"
    recipe.write_text(recipe.read_text().replace("metrics:", f"metrics:\n{trackers}"))
    write_run(workspace / "runs" / "a", losses=[3.0, 2.0])
    write_run(workspace / "runs" / "b", "optimizer.lr=0.1", losses=[3.0, 2.0])
    found = Watched(browser, server)
    found.allowed = ("Failed to load resource",)
    bodies: list[tuple[str, str]] = []

    def record(response: Any) -> None:
        if "/api/events" not in response.url:
            bodies.append((response.url, response.text()))

    found.page.on("requestfinished", lambda request: record(request.response()))
    page = found.open("/edit?file=recipes/mine.yaml")
    page.wait_for_selector(".problem:has-text('looks like a secret')")
    page.hover(".cm-line:has-text('api_key') span >> nth=1")
    page.click("button:text-is('Explain')")
    page.wait_for_selector("dialog pre")
    page.keyboard.press("Escape")
    for path in (
        "/edit?file=recipes/mine.yaml&panel=values",
        "/edit?file=shipped:llama3_debug.yaml&panel=schedule",
        "/run?id=a&tab=settings",
        "/run?id=a&tab=about",
        "/compare?runs=a,b",
        "/launch?file=recipes/mine.yaml",
        "/plan?file=recipes/mine.yaml",
    ):
        found.open(path)
        page.wait_for_timeout(800)
    assert len(bodies) > 30 and any("WANDB_API_KEY" in body for _, body in bodies)
    assert [url for url, body in bodies if secret in body] == []
    assert secret not in page.content()
    found.context.close()


def test_nothing_moves_where_motion_is_unwanted(watched: Watched) -> None:
    page = watched.open("/edit?file=recipes/mine.yaml")
    durations = "all => [...new Set(all.map(x => getComputedStyle(x).transitionDuration))]"
    page.emulate_media(reduced_motion="no-preference")
    assert "0.12s, 0.12s" in page.eval_on_selector_all("button", durations)
    page.emulate_media(reduced_motion="reduce")
    assert page.eval_on_selector_all("*", durations) == ["0s"]


def test_recipes_are_run_and_runs_stopped_by_keyboard_alone(watched: Watched) -> None:
    page = watched.open("/edit?file=recipes/mine.yaml")
    page.wait_for_selector(".cm-line")
    page.wait_for_selector("button:has-text('Run …'):enabled")
    page.focus(".cm-content")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("dialog")
    words = [*SMALL, "training.steps=100000", "dump_folder=runs/keys"]
    press_until(page, "document.activeElement.tagName === 'TEXTAREA'")
    for word in words:
        page.keyboard.type(word)
        page.keyboard.press("Enter")
    page.wait_for_selector("dialog .command:has-text('runs/keys')")
    press_until(page, "document.activeElement.innerText === 'Start'")
    page.keyboard.press("Enter")
    page.wait_for_url("**/run?id=keys", timeout=90_000)
    page.wait_for_selector(".state:has-text('running')", timeout=90_000)
    page.wait_for_selector(".chart", timeout=60_000)
    press_until(page, "document.activeElement.innerText === 'Stop'")
    page.keyboard.press("Enter")
    page.wait_for_selector(".state:has-text('preempted')", timeout=90_000)
    status = json.loads((watched.ui.workspace / "runs/keys/status.json").read_text())
    assert status["exit_code"] == 75
    press_until(page, "document.activeElement.dataset?.tab === 'curves'")
    for tab in ("log", "problems", "checkpoints"):
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"[data-tab={tab}][aria-selected=true]")
    press_until(page, "document.activeElement.innerText === 'Verify'")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .command:has-text('titanrun checkpoint verify')")
    press_until(page, "document.activeElement.innerText === 'Start'")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .output:has-text(': ok')", timeout=60_000)
    page.keyboard.press("Escape")
    check_everywhere(watched, {"checkpoints": "/run?id=keys&tab=checkpoints"})
    page.set_viewport_size({"width": 1280, "height": 844})
    press_until(page, "document.activeElement.getAttribute('href')?.startsWith('/chat?')")
    page.keyboard.press("Enter")
    # a fast machine has saved more than once by now: the first of the checkpoints is meant
    chat = re.compile(r"/chat\?left=keys%40(\d+)")
    page.wait_for_url(chat)
    found = chat.search(page.url)
    assert found is not None and int(found[1]) <= status["step"]
    watched.open("/run?id=keys&tab=checkpoints")
    page.wait_for_selector("button:text-is('Export')")
    page.click("button:text-is('Export')")
    page.select_option("dialog select", "torch")
    page.wait_for_selector("dialog .command:has-text('--format torch')")
    page.click("dialog button:text-is('Start')")
    page.wait_for_selector("dialog [role=status]:has-text('exit code 0')", timeout=90_000)
    assert (watched.ui.workspace / f"keys-step-{found[1]}.pt").is_file()


def press_until(page: Any, claim: str) -> None:
    """Press Tab until the focus is where a person wants it."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(claim):
            return
    raise AssertionError(f"Tab does not lead to: {claim}")
