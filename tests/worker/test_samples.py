"""Texts that a model writes while it is trained."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.chat_template import apply_chat_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.worker.rank_main import main
from titanrun.worker.weights.load_model import load_model

TINY = (
    "model.vocab_size=2048",
    "tokenizer=tiny",
    "training.dataset=tiny",
    "training.steps=4",
    "checkpoint.interval=2",
)
TOKENIZER = build_tiny_tokenizer(TinyTokenizerConfig())
Run = Callable[..., Path]


def texts(resolved: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (resolved.parent / "samples.jsonl").read_text().splitlines()
    ]


def expected(resolved: Path, step: int, ids: list[int], count: int) -> str:
    """The likeliest tokens by the checkpoint's weights, each from a pass over all before it."""
    recipe = load_resolved(resolved)
    model = load_model(
        recipe, {"checkpoint": str(resolved.parent / "checkpoint" / f"step-{step}")}, seq_len=64
    )
    found = list(ids)
    with torch.no_grad():
        for _ in range(count):
            found.append(int(model(torch.tensor([found]))[0, -1].argmax()))
            if found[-1] == TOKENIZER.eos_id:
                break
    return TOKENIZER.decode(found[len(ids) :])


def test_texts_are_what_generate_gives_and_change_no_bit(run: Run) -> None:
    samples = "metrics.samples={prompts: [The goat, Once], freq: 2, max_new_tokens: 5}"
    plain, writing = run("plain", *TINY), run("writing", *TINY, samples)
    assert main([str(plain)]) == 0
    assert main([str(writing)]) == 0
    found = texts(writing)
    assert [(line["step"], line["prompt"]) for line in found] == [
        (2, "The goat"),
        (2, "Once"),
        (4, "The goat"),
        (4, "Once"),
    ]
    for line in found:
        ids = TOKENIZER.encode(line["prompt"], add_bos=True, add_eos=False)
        assert line["text"] == expected(writing, line["step"], ids, 5)
    losses = [
        [(line["loss"], line["grad_norm"]) for line in read_metrics(path.parent / "metrics.jsonl")]
        for path in (plain, writing)
    ]
    assert losses[0] == losses[1]
    assert not (plain.parent / "samples.jsonl").exists()


def test_a_prompt_may_be_what_a_user_says(run: Run) -> None:
    resolved = run(
        "chat",
        *TINY,
        "training.seq_len=32",
        "metrics.samples={prompts: ['Say: a'], freq: 4, max_new_tokens: 3, chat: true}",
    )
    assert main([str(resolved)]) == 0
    (line,) = texts(resolved)
    text = apply_chat_template(
        TinyTokenizerConfig().folder,
        [{"role": "user", "content": "Say: a"}],
        add_generation_prompt=True,
    )
    assert line["text"] == expected(
        resolved, 4, TOKENIZER.encode(text, add_bos=False, add_eos=False), 3
    )


def test_a_prompt_without_room_behind_it_is_a_problem(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([str(run("long", *TINY, "metrics.samples={prompts: [Once], max_new_tokens: 16}"))])
        == 3
    )
    assert "of the 16 new tokens fit into seq_len 16" in capsys.readouterr().err
