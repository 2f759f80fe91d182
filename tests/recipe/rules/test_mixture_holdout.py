"""A share that holds out nothing of a source is told before the run, as the run decides it."""

import json
from pathlib import Path

import pytest

from titanrun.components.data.config import MixtureDatasetConfig
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.mixture_dataset import build_mixture_dataset
from titanrun.components.data.spec.holdout_hash import compute_holdout_hash, make_messages_key
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.validation_levels import validate_file

RECIPE = """
version: 1
kind: sft
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset:
    name: mixture
    sources:
    - {weight: 1, dataset: {name: chat, path: one.jsonl}}
    - {weight: 1, dataset: {name: chat, path: two.jsonl}}
  seq_len: 64
  steps: 4
  global_batch_size: 1
  local_batch_size: 1
"""


@pytest.fixture(autouse=True)
def in_folder_with_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)
    for name, count in (("one", 20), ("two", 12)):
        records = [
            {
                "messages": [
                    {"role": "user", "content": f"{name} {number}"},
                    {"role": "assistant", "content": "yes"},
                ]
            }
            for number in range(count)
        ]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


def find_problems(size: float) -> list[Problem]:
    found = validate_file(
        "recipe.yaml", [f"validation.holdout={size}"], level="environment", environment={}
    )
    return [problem for problem in found.problems if problem.rule == "holdout-fills-both-sides"]


def can_be_built(size: float) -> bool:
    """Whether the run's own dataset of held-out conversations can be built."""
    config = resolve_recipe("recipe.yaml", environment={}).recipe.training.dataset
    assert isinstance(config, MixtureDatasetConfig)
    try:
        build_mixture_dataset(
            config,
            tokenizer=build_tiny_tokenizer(TinyTokenizerConfig()),
            sample_length=65,
            cache_folder=Path("cache"),
            holdout=Holdout(size, is_validation=True),
        )
    except ProblemsFound:
        return False
    return True


@pytest.mark.parametrize("size", [0.001, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4])
def test_the_rule_says_what_the_run_would(size: float) -> None:
    errors = [problem for problem in find_problems(size) if problem.severity == "error"]
    assert (errors == []) == can_be_built(size)


def read_advice(size: float) -> float:
    """The share that the first problem advises."""
    return read_share(str(find_problems(size)[0].hint))


def read_share(hint: str) -> float:
    """The share that a hint begins with."""
    return float(hint.removeprefix("set validation.holdout: ").split(",")[0])


def test_the_advised_share_is_the_smallest_that_reaches_every_source() -> None:
    advised = read_advice(0.001)
    assert find_problems(advised) == [] and can_be_built(advised)
    assert find_problems(advised - 0.01) != []


def test_a_source_without_held_out_documents_is_told_with_a_share_that_reaches_it() -> None:
    (problem,) = find_problems(0.1)
    assert problem.severity == "warning"
    assert "0 of the 20 conversations of 'one.jsonl'" in problem.message
    assert "this source is not validated" in problem.message
    assert find_problems(read_advice(0.1)) == []


def find_count_hint(count: int) -> str:
    found = validate_file(
        "recipe.yaml", [f"validation.holdout={count}"], level="rules", environment={}
    )
    (problem,) = found.problems
    assert problem.message == f"a mixture holds out a share of its documents, not {count} of them"
    return str(problem.hint)


@pytest.mark.parametrize("count", [2, 3, 6, 12, 100])
def test_a_number_of_documents_leads_to_a_share_that_works_at_once(count: int) -> None:
    advised = read_share(find_count_hint(count))
    assert [one for one in find_problems(advised) if one.severity == "error"] == []
    assert can_be_built(advised)


def test_the_share_of_a_number_of_documents_holds_that_many_out() -> None:
    assert find_count_hint(6) == (
        "set validation.holdout: 0.13, which holds out 6 of the 32 documents"
    )
    assert "; " in find_count_hint(3) and find_problems(read_share(find_count_hint(3))) != []


def test_a_number_of_documents_that_are_not_counted_leads_to_a_share() -> None:
    Path("two.jsonl").unlink()
    told = find_count_hint(20)
    assert told == "set validation.holdout to a share: 20 of 1,000 is 0.02"


def test_a_source_that_no_share_reaches_is_named() -> None:
    Path("two.jsonl").write_text("".join(Path("two.jsonl").read_text().splitlines(True)[:3]))
    (problem,) = find_problems(0.2)
    assert "add documents to 'two.jsonl'" in str(problem.hint)


def test_a_source_with_nothing_left_to_train_on_is_an_error() -> None:
    lines = Path("two.jsonl").read_text().splitlines(True)
    Path("two.jsonl").write_text("".join(sorted(lines, key=hash_line)[:4]))
    (problem,) = find_problems(0.5)
    assert problem.severity == "error" and "be left to train on" in problem.message


def hash_line(line: str) -> int:
    return compute_holdout_hash(make_messages_key(json.loads(line)["messages"]))


def test_a_source_that_is_not_here_says_nothing() -> None:
    Path("two.jsonl").unlink()
    (problem,) = find_problems(0.001)
    assert problem.severity == "warning" and "'one.jsonl'" in problem.message
