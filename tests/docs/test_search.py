"""The built site as a reader uses it: the search answers, axe finds nothing, phones show it."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_site import SITE, address
from tools.copy_pages import ROOT
from tools.publish_site import publish_site

__all__ = ["address"]

pytestmark = pytest.mark.site

# what a reader types, and the pages that answer it
QUESTIONS = {
    "out of memory": ["troubleshooting", "memory"],
    "resume after a crash": ["troubleshooting"],
    "local_batch_size": ["training"],
    "NaN loss": ["troubleshooting"],
    "multiple GPUs": ["several_gpus", "parallelism"],
    "train on your own text": ["own_text", "data"],
    "LoRA": ["lora"],
    "chat template": ["finetuning"],
    "DPO": ["finetuning"],
    "custom rewards": ["rl", "own_reward"],
    "vLLM": ["rl"],
    "Slurm": ["clusters"],
    "S3 checkpoints": ["object_storage"],
    "export to Hugging Face": ["chat", "push"],
    "wandb": ["components", "experiment_tracking"],
    "migrate from torchtitan": ["migration_torchtitan"],
    "gradient accumulation": ["memory", "training"],
    "install without PyTorch": ["install"],
    "pre-commit": ["ci"],
    "hyperparameter search": ["managing_runs"],
    "Docker": ["containers"],
    "VS Code": ["editors"],
    "exit codes": ["commands", "coding_assistants"],
    "python version supported": ["install"],
    "install only validate without torch": ["install"],
    "resume interrupted run": ["troubleshooting"],
    "write a reward function": ["own_reward"],
    "add a model": ["extending"],
    "learning rate warmup": ["lr_scheduler", "components"],
    "compare two runs": ["managing_runs"],
    "serve model OpenAI API": ["serve", "serving"],
    "convert torchtune config": ["migration_torchtune"],
    "run directory files": ["run_directory"],
    "train offline without network": ["environment_variables"],
    "override extends": ["recipe_composition"],
    "how is auto resolved": ["recipe_resolution"],
    "why not Python configuration": ["why_text_recipes"],
    "mixed precision": ["numerics_policy", "training"],
    "bitwise reproducible": ["numerics_policy", "reproducibility"],
}
FIRST_RESULTS = 5
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
# one of each kind
PAGES = [
    "index", "install", "status", "tutorials/first_run", "finetuning", "ui", "commands/train",
    "reference", "reference/model", "models/llama3", "fault_injection",
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


def test_the_first_results_answer_the_questions_of_readers(page: Any) -> None:
    words = page.locator("input:visible").first
    missed = {}
    for question, answers in QUESTIONS.items():
        words.fill("")
        words.fill(question)
        page.wait_for_timeout(1000)
        names = [link.partition("#")[0].rpartition("/")[2] for link in page.evaluate(READ_LINKS)]
        if not {f"{name}.html" for name in answers} & set(names[:FIRST_RESULTS]):
            missed[question] = names[:FIRST_RESULTS]
    assert missed == {}
