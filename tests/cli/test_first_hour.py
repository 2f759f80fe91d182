"""The first hour of a user, typed command by command: init, validate, train, chat, export, push.

The judges are the Hub's own client and transformers, which chats with the exported folder.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.model_hub import serve_model, write_model
from tests.cli.push_hub import UploadHub

# a random model has to learn everything, and both sides compute in float32
LEARNS = ("training.epochs=6", "optimizer.lr=1e-2", "training.mixed_precision_param=float32")

QUESTIONS = ["902 Say moon", "903 Say moon"]

Titanrun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def titanrun(tmp_path: Path) -> Iterator[Titanrun]:
    """Run a command in a folder that has conversations only, where there is a hub."""
    (tmp_path / "mine").mkdir()
    chats = [
        [
            {"role": "user", "content": f"{number} Say moon"},
            {"role": "assistant", "content": "moon"},
        ]
        for number in range(800)
    ]
    lines = [f"{json.dumps({'messages': messages})}\n" for messages in chats]
    (tmp_path / "mine" / "chats.jsonl").write_text("".join(lines))
    with serve_model(write_model(tmp_path / "model"), tmp_path / "home") as variables:

        def run(*words: str, typed: str | None = None) -> "subprocess.CompletedProcess[str]":
            done = subprocess.run(
                [sys.executable, "-m", "titanrun", *words],
                capture_output=True,
                text=True,
                check=False,
                input=typed,
                cwd=tmp_path / "mine",
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160", **variables},
            )
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            return done

        yield run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_a_name_to_a_published_chat_model(titanrun: Titanrun, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    named = ("--model", "hub:owner/model", "--data", "chats.jsonl", "-o", "mine.yaml")
    done = titanrun("init", "--kind", "sft", *named)
    assert done.stderr.splitlines()[-1] == "next: titanrun validate mine.yaml --level environment"
    assert len((place / "mine.yaml").read_text().splitlines()) <= 40
    done = titanrun("validate", "mine.yaml", "--level", "environment")
    assert done.stderr.splitlines()[-1] == "next: titanrun train mine.yaml"

    shown = titanrun("train", "mine.yaml", *LEARNS).stderr
    for fact in (
        "held out ",
        "conversations in ",
        "saves at the end",
        "epoch ",
        " left",
        "best held-out loss: ",
    ):
        assert fact in shown, shown
    (run,) = (path for path in (place / "runs").iterdir() if path.name.startswith("mine-"))
    assert shown.splitlines()[-1].startswith(f"next: titanrun chat runs/{run.name}")

    done = titanrun(
        "chat",
        "mine",
        "--temperature",
        "0",
        typed="".join(f"{question}\n" for question in QUESTIONS),
    )
    replies = [json.loads(line)["reply"] for line in done.stdout.splitlines()]
    assert replies[0].strip() == "moon"
    done = titanrun("checkpoint", "export", "mine", "out", "--format", "hf")
    assert chat_in_transformers(place / "out", QUESTIONS) == replies

    done = titanrun("push", "mine", "me/mine", "--private")
    assert "/me/mine/commit/" in done.stdout
    card = UploadHub.files["README.md"].decode()
    assert 'base_model: "owner/model"' in card


def chat_in_transformers(folder: Path, questions: list[str]) -> list[str]:
    """Return greedy replies by the exported template, model and end of turn alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    messages: list[dict[str, str]] = []
    replies = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**prompt, do_sample=False, max_new_tokens=16)
        reply = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        # the template writes the blank before a reply, which is no part of its content
        reply = reply.removeprefix(" ")
        messages.append({"role": "assistant", "content": reply})
        replies.append(reply)
    return replies
