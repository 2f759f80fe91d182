"""Take the pictures of docs/ui.md: real runs of the debug recipe, in Chromium.

Usage: python tools/take_ui_shots.py FOLDER

Needs chromium and playwright (make ui-shots). For another folder than docs/images it takes every
page in both themes and two sizes, with ten runs and with none, to look at before a release.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
SMALL = ("model.n_layers=1", "model.dim=64", "model.n_heads=4", "training.seq_len=32")
OFTEN = ("metrics.log_freq=1", "checkpoint.interval=20", "validation.freq=10", "training.steps=80")
RUNS = ((8e-4, 0), (8e-4, 1), (8e-4, 2), (2e-3, 0), (4e-3, 0), (1e-2, 0))
# with these and the chat there are ten runs
MORE_RUNS = ((3e-4, 0), (3e-3, 0), (6e-3, 0))
MISTAKES = (("steps: 80", "step: 80"), ("flavor: debugmodel", "flavor: debugmodell"))
PAGES = {
    "edit": "/edit?file=recipes/draft.yaml",
    "values": "/edit?file=recipes/llama3_debug.yaml&panel=values",
    "runs": "/runs",
    "run": "/run?id=lr-0.002-seed-0&smooth=0.5",
    "compare": "/compare?runs=lr-0.0008-seed-0,lr-0.002-seed-0,lr-0.01-seed-0&smooth=0.6",
    "data": "/data?file=recipes/llama3_sft_debug.yaml",
    "statistics": "/data?file=recipes/llama3_debug.yaml&tab=statistics",
    "plan": "/plan?file=shipped:llama3_8b.yaml&ranks=1,8&devices=h100,h200&cell=8-h100",
    "chat": "/chat",
    "launch": "/launch?file=recipes/llama3_debug.yaml&set=optimizer.lr%3D3e-3",
}
EMPTY_PAGES = ("edit", "runs", "compare", "data", "plan", "chat", "launch")
SIZES = {"": (1280, 800), "-phone": (390, 844)}


def main() -> None:
    """Train the runs and take the pictures."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    is_for_docs = target.resolve() == ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as place:
        workspace = Path(place) / "llama"
        prepare_workspace(workspace, RUNS if is_for_docs else (*RUNS, *MORE_RUNS))
        with served(workspace, Path(place)) as link:
            take_pictures(link, target, is_for_docs)
        if not is_for_docs:
            empty = Path(place) / "empty"
            empty.mkdir()
            with served(empty, Path(place)) as link:
                take_empty_pictures(link, target)


@contextmanager
def served(workspace: Path, place: Path) -> Iterator[str]:
    """Serve a workspace; gives the link that opens it."""
    command = [sys.executable, "-m", "titanrun", "ui", str(workspace), "--no-browser"]
    environment = {**os.environ, "XDG_STATE_HOME": f"{place}/state"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as ui:
        assert ui.stdout is not None
        try:
            yield ui.stdout.readline().strip()
        finally:
            ui.terminate()


def prepare_workspace(workspace: Path, runs: tuple[tuple[float, int], ...]) -> None:
    """Write recipes, one with mistakes, and train them."""
    (workspace / "recipes" / "parts").mkdir(parents=True)
    for name in (
        "llama3_debug.yaml",
        "llama3_sft_debug.yaml",
        "parts/tiny_corpus.yaml",
        "parts/fp32.yaml",
    ):
        shutil.copy(ROOT / "recipes" / name, workspace / "recipes" / name)
    text = (workspace / "recipes" / "llama3_debug.yaml").read_text()
    for right, wrong in MISTAKES:
        text = text.replace(right, wrong)
    (workspace / "recipes" / "draft.yaml").write_text(text)
    chat = ("training.steps=80", "checkpoint.interval=40", "dump_folder=runs/chat")
    command = [sys.executable, "-m", "titanrun", "train", "recipes/llama3_sft_debug.yaml", *chat]
    subprocess.run(command, cwd=workspace, check=True)
    for rate, seed in runs:
        name = f"lr-{rate:g}-seed-{seed}"
        words = [f"optimizer.lr={rate}", f"debug.seed={seed}", f"dump_folder=runs/{name}"]
        train = [sys.executable, "-m", "titanrun", "train", "recipes/llama3_debug.yaml"]
        subprocess.run([*train, *SMALL, *OFTEN, *words], cwd=workspace, check=True)


@contextmanager
def opened(link: str) -> Iterator[Any]:
    """Open the page in Chromium."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link)
        page.wait_for_selector("h1")
        yield page
        browser.close()


def take_pictures(link: str, target: Path, is_for_docs: bool) -> None:
    """Take a picture of every page."""
    origin = link.partition("/?")[0]
    with opened(link) as page:
        ask_commands(page, origin)
        talk(page, origin)
        fill_queue(page, origin)
        if is_for_docs:
            page.set_viewport_size({"width": 1280, "height": 800})
            take_theme(page, origin, PAGES, target, "-light")
        else:
            take_themes(page, origin, PAGES, target, "")
        empty_queue(page, origin)


def take_empty_pictures(link: str, target: Path) -> None:
    """Take a picture of every page of a workspace that holds nothing."""
    pages = {name: f"/{name}" for name in EMPTY_PAGES}
    with opened(link) as page:
        take_themes(page, link.partition("/?")[0], pages, target, "-empty")


def take_themes(page: Any, origin: str, pages: dict[str, str], target: Path, suffix: str) -> None:
    """Take the pictures in both themes and sizes."""
    for size, (width, height) in SIZES.items():
        for theme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=theme)
            take_theme(page, origin, pages, target, f"{suffix}{size}-{theme}")


def ask_commands(page: Any, origin: str) -> None:
    """Let the commands answer that only read."""
    asked = {"data": "Show the rows", "statistics": "Measure", "plan": "Plan"}
    for name, label in asked.items():
        page.goto(origin + PAGES[name])
        page.click(f"main button:text-is('{label}'):enabled")
        waits = "() => document.querySelector('.row-text, .bars') || "
        waits += "document.querySelectorAll('.plan-cell').length === 4"
        page.wait_for_function(waits, timeout=200_000)


def talk(page: Any, origin: str) -> None:
    """Ask two checkpoints the same; the conversation is at the address that is left."""
    page.goto(f"{origin}/chat?left=chat@40&right=chat@80")
    page.click("button:has-text('Load and talk')")
    page.wait_for_selector(".sampling input", timeout=60_000)
    page.fill(".message textarea", "Say: moon river bird")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Which reply is better?", timeout=60_000)
    PAGES["chat"] = page.url.removeprefix(origin)


def fill_queue(page: Any, origin: str) -> None:
    """Let commands run and wait, which take longer than the pictures."""
    for rate in ("3e-3", "5e-3", "6e-3"):
        words = "%0A".join((*SMALL, "training.steps=20000", f"optimizer.lr={rate}"))
        page.goto(f"{origin}/launch?file=recipes/llama3_debug.yaml&set={words.replace('=', '%3D')}")
        page.click("button:has-text('Add to queue')")
        page.wait_for_selector(f".job:has-text('lr={rate}')")
    page.wait_for_selector(".job a[href*=run]", timeout=60_000)


def empty_queue(page: Any, origin: str) -> None:
    """Let nothing go on once the pictures are taken."""
    page.goto(f"{origin}/launch")
    page.wait_for_selector(".job")
    while page.locator("ol.jobs button:has-text('Cancel')").count():
        page.click("ol.jobs button:has-text('Cancel') >> nth=0")
        page.wait_for_timeout(500)
    page.click(".job button:has-text('Stop')")
    page.wait_for_selector(".job[data-state=running]", state="detached", timeout=60_000)


def take_theme(page: Any, origin: str, pages: dict[str, str], target: Path, suffix: str) -> None:
    """Take a picture of every page as it is set up."""
    for name, path in pages.items():
        page.goto(f"{origin}{path}")
        page.wait_for_timeout(2000)
        page.screenshot(path=target / f"ui-{name}{suffix}.png")


if __name__ == "__main__":
    main()
