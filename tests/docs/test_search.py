"""The search of the built site, as a reader uses it: the answer is among the first results."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docs.test_site import address

__all__ = ["address"]

pytestmark = pytest.mark.site

# what a reader types, and the pages that answer it
QUESTIONS = {
    "out of memory": ["troubleshooting", "memory"],
    "resume after a crash": ["troubleshooting"],
    "local_batch_size": ["reference"],
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
    "gradient accumulation": ["memory", "reference"],
    "install without PyTorch": ["install"],
    "pre-commit": ["ci"],
    "hyperparameter search": ["managing_runs"],
    "Docker": ["containers"],
    "VS Code": ["editors"],
    "exit codes": ["commands", "coding_assistants"],
}
FIRST_RESULTS = 5
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


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    """The start page in Chromium, with the search open."""
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "this test needs a browser: apt-get install chromium"
    with sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        opened = window.new_page()
        opened.goto(f"{address}/index.html")
        opened.wait_for_load_state("networkidle")
        opened.keyboard.press("/")
        opened.locator("input:visible").first.wait_for()
        yield opened
        window.close()


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
