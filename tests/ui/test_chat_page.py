"""The page Chat in Chromium."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.ui.conftest import RECIPES, UiProcess
from tests.ui.watched_page import Watched, check_everywhere

pytestmark = pytest.mark.browser
TIMEOUT = 90_000


def train_chat_model(ui: UiProcess) -> None:
    shutil.copy(RECIPES / "llama3_sft_debug.yaml", ui.workspace / "recipes" / "chat.yaml")
    words = ("training.steps=2", "checkpoint.interval=1", "lr_scheduler.warmup_steps=1")
    place = ("validation.enable=false", "checkpoint.keep_latest_k=2", "dump_folder=runs/chat")
    command = [sys.executable, "-m", "titanrun", "train", "recipes/chat.yaml", *words, *place]
    subprocess.run(command, cwd=ui.workspace, check=True, capture_output=True)


def test_two_checkpoints_reply_are_stopped_and_compared(watched: Watched) -> None:
    train_chat_model(watched.ui)
    page = watched.open("/chat")
    page.select_option("main select >> nth=0", "chat")
    page.wait_for_selector("main select >> nth=2")
    page.select_option("main select >> nth=2", "chat")
    page.wait_for_selector("main select >> nth=3")
    page.select_option("main select >> nth=1", "1")
    shell = "titanrun chat ./runs/chat/checkpoint/step-1 ./runs/chat/checkpoint/step-2 --requests"
    page.wait_for_selector(f".command:has-text('{shell}')")
    check_everywhere(watched, {"start": "/chat?left=chat@1&right=chat@2"})
    page.click("button:has-text('Load and talk')")
    page.wait_for_selector("fieldset >> nth=1", timeout=TIMEOUT)
    # a person talks without the protocol of the page
    assert page.text_content(".command code") == shell.removesuffix(" --requests")
    talk = page.url.removeprefix(watched.ui.origin)
    # the left one goes on for long, and is stopped in the middle
    page.fill("fieldset >> nth=0 >> label:has-text('Most tokens') input", "1500")
    page.fill(".message textarea", "Say: <b>moon</b>")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.reply-text')?.innerText.length > 3")
    page.click("button:has-text('Stop')")
    page.wait_for_selector(".reply >> nth=0 >> text=stopped by you", timeout=TIMEOUT)
    assert page.inner_text(".said").endswith("Say: <b>moon</b>")
    page.click("summary:has-text('Sampling')")
    page.fill("fieldset >> nth=0 >> label:has-text('Most tokens') input", "5")
    page.fill("fieldset >> nth=1 >> label:has-text('Most tokens') input", "5")
    page.fill(".message textarea", "Say: sun")
    page.click("button:has-text('Send')")
    page.wait_for_selector(".reply >> nth=3 >> text=/ended|limit/", timeout=TIMEOUT)
    page.wait_for_selector("text=Which reply is better?")
    page.click("button:text-is('Tie')")
    page.wait_for_selector("text=A tie: nothing is written")
    assert page.locator("button:text-is('Right')").count() == 0
    assert not (watched.ui.workspace / "picks.jsonl").exists()
    page.fill(".message textarea", "Say: star")
    page.click("button:has-text('Send')")
    page.wait_for_selector(".reply >> nth=5 >> text=/ended|limit/", timeout=TIMEOUT)
    page.wait_for_selector("text=Which reply is better?")
    replies = page.eval_on_selector_all(".reply-text", "all => all.map(x => x.textContent)")
    page.click("button:text-is('Right')")
    page.wait_for_selector("text=Saved to picks.jsonl")
    picks = watched.ui.workspace / "picks.jsonl"
    [pair] = [json.loads(line) for line in picks.read_text().splitlines()]
    assert pair["chosen"][0]["content"] == replies[5]
    assert pair["rejected"][0]["content"] == replies[4]
    # the conversation outlives a reload
    page.reload()
    page.wait_for_selector(".reply >> nth=5")
    check_everywhere(watched, {"talk": talk})
    page.click("button:has-text('End the conversation')")
    page.wait_for_selector("button:has-text('Load and talk')")


def test_nobody_to_talk_to_is_said(watched: Watched) -> None:
    page = watched.open("/chat")
    page.wait_for_selector("text=No run to talk to yet")
    check_everywhere(watched, {"empty": "/chat"})


def test_a_read_only_page_has_no_conversations(
    browser: object, start_ui: Callable[..., UiProcess]
) -> None:
    found = Watched(browser, start_ui("--read-only"))
    page = found.open("/chat")
    page.wait_for_selector("text=The server is read-only")
    assert page.locator("main button").count() == 0
    found.context.close()
    assert found.faults == []
