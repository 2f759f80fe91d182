"""The reference: fresh, complete, and every example in it holds."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from titanrun.config.base import Config
from titanrun.config.describe import described, example_of, is_section
from titanrun.config.emit import emit, flow
from titanrun.config.problems import Code, ProblemsFound, SourceText
from titanrun.config.source import read_text
from titanrun.config.tree import plain
from titanrun.recipe.codes import MEANINGS
from titanrun.recipe.explained import explanation
from titanrun.recipe.reference import reference
from titanrun.recipe.resolve import resolve
from titanrun.recipe.rules.book import RULES
from titanrun.recipe.topics import Topic, all_paths, topics

ROOT = Path(__file__).parents[2]
TEXT = reference()
BASE = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny", "seq_len": 64, "steps": 400},
}
# codes whose example is no recipe, or needs a file beside it
ELSEWHERE = {"file", "usage", "data"}


def configs() -> list[Topic]:
    return [topic for topic in topics() if not topic.is_slot]


def test_the_committed_reference_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_reference_has_every_topic_code_and_rule() -> None:
    for topic in topics():
        assert not topic.keys or f"# `{topic.title}`\n" in TEXT, topic.title
    assert all(f"### `{code}`" in TEXT for code in get_args(Code))
    assert all(f"- `{id}`" in TEXT for id in RULES)


@pytest.mark.parametrize("topic", configs(), ids=lambda topic: topic.title)
def test_every_field_is_described_and_its_example_validates(topic: Topic) -> None:
    config = topic.config
    required = {
        name: written(config, name)
        for name, field in config.model_fields.items()
        if field.is_required() and name != "name"
    }
    for field in described(config):
        assert field.type, field.name
        assert field.text, field.name
        if not is_section(config.model_fields[field.name].annotation):
            value = read_text(
                SourceText("example", flow({field.name: written(config, field.name)})[1:-1]), "yaml"
            )
            assert isinstance(plain(value), dict)
            config.model_validate({**required, **plain(value)})


def written(config: type[Config], name: str) -> Any:
    field = config.model_fields[name]
    return (
        {"dataset": "tiny"}
        if is_section(field.annotation) and field.is_required()
        else example_of(field)
    )


@pytest.mark.parametrize("path", all_paths())
def test_every_path_is_explained(path: str) -> None:
    assert explanation(path).startswith(path)


@pytest.mark.parametrize(
    "word",
    [
        *MEANINGS,
        "conflict/batch-sizes-divide",
        "optimizer:adamw",
        "model:llama3.rope",
        "model:qwen3.attention",
        "converters[0]",
        "extends",
    ],
)
def test_other_words_are_explained(word: str) -> None:
    assert explanation(word)


def test_every_problem_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(get_args(Code))


@pytest.mark.parametrize(
    "code", [code for code, meaning in MEANINGS.items() if meaning.wrong and code not in ELSEWHERE]
)
def test_the_example_of_a_code_has_that_problem_and_its_remedy_has_none(
    code: Code, tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(emit(BASE), encoding="utf-8")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"extends: base.yaml\n{MEANINGS[code].wrong}\n", encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        resolve(str(recipe), environment={})
    assert {problem.code for problem in caught.value.problems} == {code}
    recipe.write_text(f"extends: base.yaml\n{MEANINGS[code].right}\n", encoding="utf-8")
    assert resolve(str(recipe), environment={}).warnings == ()


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr", "'optimizer.lr'"),
        ("learning_rate", "'optimizer.lr'"),
        ("adamw", "'optimizer:adamw'"),
        ("training.stepz", "'training.steps'"),
        ("optimizer:adamww", "'optimizer:adamw'"),
        ("unknow-key", "'unknown-key'"),
        ("batch-size-divides", "'batch-sizes-divide'"),
        ("training.lr", "'optimizer.lr'"),
    ],
)
def test_a_word_nobody_knows_gets_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(ProblemsFound) as caught:
        explanation(word)
    assert meant in str(caught.value.problems[0].help)
