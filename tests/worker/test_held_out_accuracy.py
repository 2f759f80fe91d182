"""Accuracy on held-out data, by transformers with trl's formula."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.worker.test_dpo import QUESTIONS, REPLIES, folder, preference_run
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
__all__ = ["folder"]


def build_chats() -> list[list[dict[str, str]]]:
    """Conversations of one and of two turns."""
    turns = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": good}]
        for question, (good, _) in zip(QUESTIONS, REPLIES, strict=True)
    ]
    return [*turns, turns[0] + turns[2]]


def count_by_trl(path: Path) -> tuple[int, int]:
    """Return trl's num_correct and num_valid of the answer tokens.

    trl 1.16 records their quotient as mean_token_accuracy.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    right = valid = 0
    for messages in build_chats():
        text = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, counted = torch.tensor(text["input_ids"]), torch.tensor(text["assistant_masks"]).bool()
        with torch.no_grad():
            predicted = model(ids[None]).logits[0, :-1].argmax(-1)
        right += int(((predicted == ids[1:]) & counted[1:]).sum())
        valid += int(counted[1:].sum())
    return right, valid


@pytest.fixture(scope="module")
def learned(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows some of the replies."""
    path = tmp_path_factory.mktemp("learned")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    ids = [torch.tensor(tokenizer.apply_chat_template(one)["input_ids"]) for one in build_chats()]
    for _ in range(15):
        for one in ids[:2]:
            model(one[None], labels=one[None]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    (path / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": one}) + "\n" for one in build_chats())
    )
    return path


@pytest.mark.parametrize("loss", ["cross_entropy", "chunked_cross_entropy"])
def test_it_is_the_share_of_answer_tokens_that_are_the_likeliest(
    loss: str, run: Run, learned: Path
) -> None:
    chats = f"{{name: chat, path: {learned}/chats.jsonl, packing: best_fit}}"
    resolved = run(
        "accuracy",
        f"model={{name: llama3, flavor: auto, hf_assets_path: {learned}, "
        f"attention: {{mask: block_causal}}}}",
        "tokenizer=auto",
        f"training.dataset={chats}",
        "training.seq_len=64",
        "training.local_batch_size=2",
        "training.global_batch_size=2",
        "training.steps=1",
        "optimizer={name: sgd, lr: 1.0e-30}",
        "lr_scheduler={name: constant, warmup_steps: 0}",
        f"loss={loss}",
        "validation.enable=true",
        f"validation.dataset={chats}",
        f"validation.further=[{{id: again, dataset: {chats}}}]",
        "validation.local_batch_size=2",
        "checkpoint.initial_load_in_hf=true",
    )
    assert main([str(resolved)]) == 0
    (line,) = read_metrics(resolved.parent / "metrics.jsonl")
    right, valid = count_by_trl(learned)
    assert 5 < right < valid - 5
    assert line["validation/accuracy"] == line["validation/again/accuracy"] == right / valid


def test_of_pairs_it_is_the_share_in_the_right_order(run: Run, folder: Path) -> None:
    pairs = f"{{name: preference, path: {folder}/pairs.jsonl, shuffle: false}}"
    resolved = preference_run(
        run,
        folder,
        "pairs",
        "validation.enable=true",
        f"validation.dataset={pairs}",
        "validation.freq=1",
        "validation.local_batch_size=2",
        lr=0.05,
    )
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    # the pairs of training are those of validation, seen before the update of the next step
    before_update = [line["dpo/accuracy"] for line in lines[1:]]
    assert [line["validation/accuracy"] for line in lines[:-1]] == before_update
    assert before_update[-1] > 0
