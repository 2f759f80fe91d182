"""The reference: fresh, complete, and every example in it holds."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from titanrun.config.base import Config
from titanrun.config.describe_field import describe_fields, get_example_value, is_section_type
from titanrun.config.problems import ProblemCode, ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_flow_yaml, to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.recipe.reference.explain import explain_word
from titanrun.recipe.reference.problem_codes import PROBLEM_CODES
from titanrun.recipe.reference.reference_page import build_reference_page
from titanrun.recipe.reference.schema_topics import SchemaTopic, get_topics, list_explainable_paths
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rules.registry import RULES

ROOT = Path(__file__).parents[3]
TEXT = build_reference_page()
BASE = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny", "seq_len": 64, "steps": 400},
}
# codes whose example is no recipe, or needs a file beside it
ELSEWHERE = {"file", "usage", "data"}


def configs() -> list[SchemaTopic]:
    return [topic for topic in get_topics() if not topic.is_slot]


def test_the_committed_reference_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_reference_has_every_topic_code_and_rule() -> None:
    for topic in get_topics():
        assert not topic.keys or f"# `{topic.title}`\n" in TEXT, topic.title
    assert all(f"### `{code}`" in TEXT for code in get_args(ProblemCode))
    assert all(f"\n### `{rule}`\n" in TEXT for rule in RULES)


@pytest.mark.parametrize("topic", configs(), ids=lambda topic: topic.title)
def test_every_field_is_described_and_its_example_validates(topic: SchemaTopic) -> None:
    config = topic.config
    required = {
        name: written(config, name)
        for name, field in config.model_fields.items()
        if field.is_required() and name != "name"
    }
    for field in describe_fields(config):
        assert field.type, field.name
        assert field.text, field.name
        if not is_section_type(config.model_fields[field.name].annotation):
            value = read_source_text(
                SourceText(
                    "example", to_flow_yaml({field.name: written(config, field.name)})[1:-1]
                ),
                "yaml",
            )
            assert isinstance(to_plain_data(value), dict)
            config.model_validate({**required, **to_plain_data(value)})


def written(config: type[Config], name: str) -> Any:
    field = config.model_fields[name]
    return (
        {"dataset": "tiny"}
        if is_section_type(field.annotation) and field.is_required()
        else get_example_value(field)
    )


@pytest.mark.parametrize("path", list_explainable_paths())
def test_every_path_is_explained(path: str) -> None:
    assert explain_word(path).startswith(path)


@pytest.mark.parametrize(
    "word",
    [
        *PROBLEM_CODES,
        "conflict/batch-sizes-divide",
        "optimizer:adamw",
        "model:llama3.rope",
        "model:qwen3.attention",
        "converters[0]",
        "extends",
    ],
)
def test_other_words_are_explained(word: str) -> None:
    assert explain_word(word)


def test_every_problem_code_has_a_meaning() -> None:
    assert set(PROBLEM_CODES) == set(get_args(ProblemCode))


@pytest.mark.parametrize(
    "code",
    [code for code, meaning in PROBLEM_CODES.items() if meaning.wrong and code not in ELSEWHERE],
)
def test_the_example_of_a_code_has_that_problem_and_its_remedy_has_none(
    code: ProblemCode, tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(to_yaml(BASE), encoding="utf-8")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"extends: base.yaml\n{PROBLEM_CODES[code].wrong}\n", encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(str(recipe), environment={})
    assert {problem.code for problem in caught.value.problems} == {code}
    recipe.write_text(f"extends: base.yaml\n{PROBLEM_CODES[code].right}\n", encoding="utf-8")
    assert resolve_recipe(str(recipe), environment={}).warnings == ()


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("training.stepz", "'training.steps'"),
        ("optimizer:adamww", "'optimizer:adamw'"),
        ("unknow-key", "'unknown-key'"),
        ("batch-size-divides", "'batch-sizes-divide'"),
        ("training.lr", "'optimizer.lr'"),
    ],
)
def test_a_word_nobody_knows_gets_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(ProblemsFound) as caught:
        explain_word(word)
    assert meant in str(caught.value.problems[0].hint)
