"""Several datasets in the place of one are told as what reads them all, which validates."""

from pathlib import Path

import pytest
import yaml

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

PACKED = "{name: chat, path: a.jsonl, packing: best_fit}"
MASK = "attention: {mask: block_causal}"


def write_recipe(folder: Path, dataset: str, text: str) -> str:
    for name, line in (
        ("a", '{"messages": [{"role": "user", "content": "hi"}]}\n' * 3),
        ("b", '{"messages": [{"role": "user", "content": "hi"}]}\n'),
        ("pairs", '{"chosen": [], "rejected": []}\n'),
        ("more", '{"chosen": [], "rejected": []}\n'),
    ):
        (folder / f"{name}.jsonl").write_text(line)
    file = folder / "recipe.yaml"
    file.write_text(
        f"version: 1\nmodel: {{name: llama3, flavor: debugmodel, {MASK}}}\ntokenizer: tiny\n"
        f"training: {{seq_len: 64, dataset: {dataset}}}\n{text}"
    )
    return str(file)


def find_hint(folder: Path, dataset: str, text: str) -> str:
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(write_recipe(folder, dataset, text), environment={})
    return str(found.value.problems[0].hint)


@pytest.mark.parametrize(
    ("listed", "text", "told"),
    [
        (
            f"[{PACKED}, {PACKED.replace('a.jsonl', 'b.jsonl')}]",
            "kind: sft\n",
            '{name: chat, path: "{a,b}.jsonl", packing: best_fit}',
        ),
        ("[a.jsonl, b.jsonl]", "kind: sft\n", '{name: chat, path: "{a,b}.jsonl"}'),
        (
            "[pairs.jsonl, more.jsonl]",
            "loss: dpo\n",
            '{name: preference, path: "{pairs,more}.jsonl"}',
        ),
        (
            "[{name: chat, path: a.jsonl}, {name: chat, path: b.jsonl, train_on: last_reply}]",
            "kind: sft\n",
            "{name: mixture, sources: [{dataset: {name: chat, path: a.jsonl}, weight: 3}, "
            "{dataset: {name: chat, path: b.jsonl, train_on: last_reply}, weight: 1}]}",
        ),
        (
            "[tiny_chat, tiny]",
            "kind: sft\n",
            "{name: mixture, sources: [{dataset: {name: tiny_chat}}, {dataset: {name: tiny}}]}",
        ),
        (
            "[{dataset: tiny, weight: 2}, {dataset: tiny_chat}]",
            "",
            "{name: mixture, sources: [{dataset: tiny, weight: 2}, {dataset: tiny_chat}]}",
        ),
    ],
)
def test_several_datasets_are_told_as_one(
    listed: str, text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = find_hint(tmp_path, listed, text)
    assert hint.split("; ")[0] == f"write training.dataset: {told}"
    assert isinstance(yaml.safe_load(told), dict)
    assert resolve_recipe(write_recipe(tmp_path, told, text), environment={})


def test_a_counted_hold_out_becomes_a_share_of_a_mixture(tmp_path: Path) -> None:
    hint = find_hint(tmp_path, "[tiny, tiny_chat]", "validation: {holdout: 12}\n")
    assert hint.endswith("write validation.holdout: 0.05")


@pytest.mark.parametrize(
    "listed", ["[{name: chat, path: a.jsonl}]", "[{name: chat}, {path: a.jsonl}]"]
)
def test_one_dataset_behind_dashes_stays_one(listed: str, tmp_path: Path) -> None:
    assert find_hint(tmp_path, listed, "kind: sft\n").startswith("remove the brackets or dashes")


def test_several_entries_of_another_section_are_not_joined(tmp_path: Path) -> None:
    hint = find_hint(tmp_path, "tiny", "optimizer: [{lr: 1.0e-3}, {lr: 1.0e-4}]\n")
    assert hint.startswith("keep one of them, and remove the brackets or dashes")
