"""A path whose files have several layouts is told the mixture that reads them all."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from titanrun.components.data.config import MixtureDatasetConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """
version: 1
kind: sft
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training: {dataset: {name: chat, path: data, packing: best_fit, shuffle: false}, seq_len: 64}
validation: {holdout: 12}
"""
CHAT = [{"role": "user", "content": "Say moon"}, {"role": "assistant", "content": "moon"}]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)
    Path("data").mkdir()
    write("alpaca", {"instruction": "Say moon", "output": "moon"}, 30)
    write("chats", {"messages": CHAT}, 60)
    return tmp_path / "data"


def write(name: str, record: dict[str, Any], count: int) -> None:
    lines = [json.dumps(record).replace("Say", f"{number} Say") for number in range(count)]
    Path(f"data/{name}.jsonl").write_text("\n".join(lines) + "\n")


def check(*overrides: str) -> Recipe:
    return resolve_recipe(
        "recipe.yaml", list(overrides), environment={}, should_check_inputs=True
    ).run


def get_hint(*overrides: str) -> str:
    with pytest.raises(ProblemsFound) as found:
        check(*overrides)
    (problem,) = found.value.problems
    return str(problem.hint)


def test_the_mixture_that_is_told_keeps_the_settings_and_validates() -> None:
    found = re.fullmatch(
        r"the files have several layouts: write the dataset as (.*), and set (validation.holdout): "
        r"(\S+), which holds out 12 .*",
        get_hint(),
    )
    assert found is not None
    told = check(f"training.dataset={found[1]}", f"{found[2]}={found[3]}").training.dataset
    assert isinstance(told, MixtureDatasetConfig)
    assert not told.shuffle
    sources = [one.dataset.model_dump() for one in told.sources]
    assert [one["layout"] for one in sources] == ["alpaca", "messages"]
    assert {one["packing"] for one in sources} == {"best_fit"}
    # so many sequences each has
    assert [one.weight for one in told.sources] == [10, 20]


def test_the_source_of_a_mixture_becomes_several_with_its_weight() -> None:
    sources = "{{dataset: tiny_chat}}, {}"
    mixture = "training.dataset={{name: mixture, sources: [{}]}}"
    source = "{dataset: {name: chat, path: data}, weight: 0.3}"
    share = "validation.holdout=0.3"
    hint = get_hint(mixture.format(sources.format(source)), share)
    told = hint.removeprefix("the files have several layouts: write the source as ")
    assert told != hint
    found = check(mixture.format(sources.format(told)), share).training.dataset
    assert isinstance(found, MixtureDatasetConfig)
    assert [one.weight for one in found.sources] == [1, 0.1, 0.2]


def test_files_of_one_layout_are_one_source_with_a_glob() -> None:
    write("alpaca-2", {"instruction": "Say sun", "output": "sun"}, 30)
    assert 'path: "data/alpaca*.jsonl", packing: best_fit, layout' in get_hint()


def test_files_that_no_layout_reads_are_left_out_of_the_mixture() -> None:
    without = get_hint()
    write("texts", {"text": "Say moon"}, 5)
    assert get_hint() == without and "write the dataset as" in without


def test_the_path_of_the_files_that_fit_is_told() -> None:
    Path("data/alpaca.jsonl").unlink()
    write("few", {"messages": CHAT}, 20)
    write("pairs", {"prompt": "Say moon", "chosen": "moon", "rejected": "sun"}, 20)
    write("texts", {"text": "Say moon"}, 5)
    hint = 'write path: "data/{chats,few}.jsonl", which leaves out others'
    assert get_hint() == hint
    assert check('training.dataset.path="data/{chats,few}.jsonl"').training.dataset.name == "chat"


def test_one_layout_of_all_files_is_told_as_that() -> None:
    Path("data/chats.jsonl").unlink()
    write("alpaca-2", {"instruction": "Say sun", "output": "sun"}, 30)
    assert get_hint() == "set layout: alpaca"


def test_pairs_are_no_mixture() -> None:
    for name in ("alpaca", "chats"):
        Path(f"data/{name}.jsonl").unlink()
    write("one", {"prompt": "Say moon", "chosen": "moon", "rejected": "sun"}, 20)
    write("two", {"prompt": "Say moon", "better": "moon", "worse": "sun"}, 20)
    hint = get_hint("kind=pretrain", "loss=dpo", "training.dataset={name: preference, path: data}")
    assert hint.startswith("write the records of all files with the same columns")
