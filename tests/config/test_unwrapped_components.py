"""Items of a list with the keys of a component: one problem says what is missing."""

from pathlib import Path

import pytest
import yaml

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file

DATASET = ("training", "dataset")
RECIPE = {"version": 1, "model": {"name": "llama3", "flavor": "debugmodel"}, "tokenizer": "tiny"}


def find_problems(folder: Path, sources: list[object]) -> list[Problem]:
    """Return the problems of a recipe with a mixture of these sources."""
    training = {"dataset": {"name": "mixture", "sources": sources}, "steps": 4}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({**RECIPE, "kind": "sft", "training": training}))
    return list(validate_file(str(file), [], level="rules", environment={}).problems)


def test_sources_without_their_key_are_one_problem_whose_hint_is_valid(tmp_path: Path) -> None:
    source = {"name": "chat", "path": "chats.jsonl", "too_long": "cut", "weight": 2.0}
    (found,) = find_problems(tmp_path, [source, source, source])
    assert (found.code, found.path[-1]) == ("missing-key", "dataset")
    assert [other.path[-1] for other in found.related] == [1, 2]
    fixed = yaml.safe_load((found.hint or "").removeprefix("write "))
    inner = {key: value for key, value in source.items() if key != "weight"}
    assert fixed == {"dataset": inner, "weight": 2.0}
    assert [one for one in find_problems(tmp_path, [fixed] * 3) if one.path[:2] == DATASET] == []


@pytest.mark.parametrize("name", ["tiny_chat", "tiny"])
def test_the_name_of_a_dataset_is_told_its_key(name: str, tmp_path: Path) -> None:
    (found,) = find_problems(tmp_path, [name])
    assert found.hint == f"write {{dataset: {name}}}"


def test_a_long_source_is_told_which_keys_to_indent(tmp_path: Path) -> None:
    source = {"name": "chat", "path": "a" * 100, "weight": 2.0}
    (found,) = find_problems(tmp_path, [source])
    assert found.hint == "indent name and path below dataset; weight stays beside it"


def test_an_unknown_key_of_a_source_stays_a_problem(tmp_path: Path) -> None:
    found = find_problems(tmp_path, [{"name": "tiny_chat", "wight": 2.0}])
    assert sorted(one.code for one in found) == ["missing-key", "unknown-key"]
