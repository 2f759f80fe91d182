"""Few documents are refused before a run exactly if tokenizing them would refuse them."""

import json
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training: {dataset: DATASET, seq_len: 64, data_cache: cache}
validation: {enable: false}
"""
DATASETS = {
    "text": "{name: text, path: records.jsonl, packing: best_fit}",
    "chat": "{name: chat, path: records.jsonl, packing: best_fit}",
    "prompts": "{name: chat, path: records.jsonl, packing: best_fit, layout: prompt_completion}",
}
SIZES = ("0.05", "0.3", "2", "9")


def write_records(folder: Path, count: int) -> None:
    """Write records of which two are equal."""
    lines = []
    for number in [0, *range(count - 1)]:
        question, answer = f"question {number}", f"answer {number}"
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        plain = {"text": question, "prompt": question, "completion": answer}
        lines.append(json.dumps({**plain, "messages": messages, "author": f"{number % 5}"}))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")


def find_message(recipe: str, *, reads_files: bool, overrides: list[str]) -> str | None:
    """Return what is wrong with a split, as found by the rules or by tokenizing."""
    try:
        resolved = resolve_recipe(
            recipe, overrides, environment={}, should_check_inputs=reads_files
        )
        if not reads_files:
            plain = {"repair": False, "workers": None, "part": None, "finish": False}
            ACTIONS["build"]({"resolved": resolved.text, **plain})
    except ProblemsFound as error:
        (problem,) = error.problems
        assert problem.path == ("validation", "holdout")
        return f"{problem.message}; {problem.hint}"
    return None


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("by", [None, "author"])
def test_the_rule_says_what_tokenizing_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path, 10)
    (tmp_path / "r.yaml").write_text(RECIPE.replace("DATASET", DATASETS[kind]))
    found = []
    for size in SIZES:
        overrides = [f"validation.holdout={size}"]
        overrides += [] if by is None else [f"validation.holdout_by={by}"]
        found.append(find_message("r.yaml", reads_files=True, overrides=overrides))
        assert found[-1] == find_message("r.yaml", reads_files=False, overrides=overrides)
    assert None in found and any(
        message and "set validation.holdout: " in message for message in found
    )


def test_fewer_than_four_documents_cannot_be_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path, 3)
    (tmp_path / "r.yaml").write_text(RECIPE.replace("DATASET", DATASETS["text"]))
    overrides = ["validation.holdout=0.5"]
    message = find_message("r.yaml", reads_files=True, overrides=overrides)
    assert message == find_message("r.yaml", reads_files=False, overrides=overrides)
    assert message is not None and "no share is enough for so few: remove section" in message
