"""Several runs in one recipe."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.config.render import render
from titanrun.recipe.levels import Examined, examine_file, joined
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.recipe.staged import problems_between, stages_in_order, whole_text
from titanrun.recipe.stages import HasStages

RECIPE = """version: 1
name: both
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64, steps: 4}
optimizer: {lr: 1.0e-3}
checkpoint: {enable: true}
stages:
  - id: pretrain
  - id: sft
    training: {dataset: tiny_chat, epochs: 2}
    optimizer: {name: sgd, lr: 2.0e-3}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    return file


def stage(recipe: Path, id: str, *overrides: str) -> Resolved:
    return resolve(f"{recipe}#{id}", overrides, environment={})


def examined(recipe: Path, *overrides: str) -> Examined:
    whole = examine_file(str(recipe), overrides, level="rules", environment={})
    each = [
        examine_file(f"{recipe}#{id}", overrides, level="rules", environment={})
        for id in whole.stages
    ]
    return joined(whole, each)


def messages(recipe: Path, *overrides: str) -> list[str]:
    return [problem.message for problem in examined(recipe, *overrides).problems]


def test_a_stage_is_the_recipe_with_what_it_says_over_it(recipe: Path) -> None:
    pretrain, sft = stage(recipe, "pretrain").run, stage(recipe, "sft").run
    assert (pretrain.name, sft.name) == ("both-pretrain", "both-sft")
    assert (pretrain.training.dataset.name, sft.training.dataset.name) == ("tiny", "tiny_chat")
    assert (pretrain.training.seq_len, sft.training.seq_len) == (64, 64)
    # a stage that says its length in another unit takes no other
    assert (pretrain.training.steps, sft.training.steps, sft.training.epochs) == (4, None, 2)
    assert (pretrain.optimizer.name, sft.optimizer.name) == ("adamw", "sgd")
    assert stage(recipe, "sft").tree.origin.source.name == str(recipe)


def test_overrides_are_for_all_stages_or_for_one(recipe: Path) -> None:
    changes = ("training.seq_len=32", "stages.sft.optimizer.lr=5e-3", "stages[0].training.steps=9")
    pretrain, sft = stage(recipe, "pretrain", *changes).run, stage(recipe, "sft", *changes).run
    assert (pretrain.training.seq_len, sft.training.seq_len) == (32, 32)
    assert (pretrain.training.steps, sft.training.epochs) == (9, 2)
    assert (pretrain.optimizer.lr, sft.optimizer.lr) == (1e-3, 5e-3)


def test_one_run_is_meant_where_a_recipe_has_several(recipe: Path) -> None:
    with pytest.raises(HasStages) as caught:
        resolve(str(recipe), environment={})
    assert caught.value.ids == ("pretrain", "sft")
    assert caught.value.problems[0].origin is not None and caught.value.problems[0].origin.line == 7


@pytest.mark.parametrize(
    ("name", "override", "message", "help"),
    [
        ("sfd", "", "has no stage 'sfd'", "did you mean 'sft'?"),
        (
            "sft",
            "stages.pretrian.optimizer.lr=1",
            "the recipe has no stage 'pretrian'",
            "its stages are pretrain and sft",
        ),
        (
            "sft",
            "stages[2].optimizer.lr=1",
            "the recipe has no stage '2'",
            "its stages are pretrain and sft",
        ),
    ],
)
def test_a_stage_that_is_not_there_is_a_problem(
    recipe: Path, name: str, override: str, message: str, help: str
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        stage(recipe, name, *filter(None, [override]))
    assert message in caught.value.problems[0].message
    assert caught.value.problems[0].help == help


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("stages: sft", "stages are a list, one mapping a stage"),
        ("stages: []", "stages are a list, one mapping a stage"),
        ("stages: [sft]", "a stage is a mapping"),
        ("stages: [{name: sft}]", "a stage needs 'id'"),
        (
            "stages: [{id: ../sft}]",
            "the id of a stage is a name of letters, digits, _ and -: its folder is called so",
        ),
        ("stages: [{id: a}, {id: a}]", "two stages are called 'a'"),
        ("stages: [{id: a, dump_folder: x}]", "'dump_folder' is not a stage's"),
        ("stages: [{id: a, stages: [{id: b}]}]", "'stages' is not a stage's"),
    ],
)
def test_stages_of_another_form_are_problems_with_their_place(
    recipe: Path, stages: str, message: str
) -> None:
    recipe.write_text(RECIPE.partition("stages:")[0] + stages)
    (problem,) = examine_file(str(recipe), (), level="rules", environment={}).problems
    assert problem.message == message
    assert problem.origin is not None and problem.origin.line == 7


@pytest.mark.parametrize(
    "written",
    ["stages: [[x, {id: a}]]", "stages: {id: [x]}", "stages: [{id: [x]}]", "extends: [[x]]"],
)
def test_lists_and_mappings_where_a_stage_has_none_are_shown_as_they_were_written(
    recipe: Path, written: str
) -> None:
    recipe.write_text(RECIPE.partition("stages:")[0] + written)
    (problem,) = examine_file(str(recipe), (), level="rules", environment={}).problems
    assert '"got": ' in render([problem], format="json")
    assert "Node" not in render([problem], format="json")


def test_a_stage_that_cannot_be_read_is_one_mistake(recipe: Path) -> None:
    recipe.write_text(
        RECIPE.partition("stages:")[0] + "stages: [!!python/object/apply:os.system [x]]"
    )
    (problem,) = examine_file(str(recipe), (), level="rules", environment={}).problems
    assert problem.message == "tag !!python/object/apply:os.system is not allowed"


def test_what_is_wrong_in_several_stages_is_said_once_and_in_one_at_its_place(recipe: Path) -> None:
    assert messages(recipe) == []
    recipe.write_text(
        RECIPE.replace("lr: 1.0e-3", "lr: 1.0e-3}\nconverters: [lorra]\nloss: {").replace(
            "lr: 2.0e-3", "momentun: 0.5"
        )
    )
    found = examined(recipe)
    assert [
        (problem.code, problem.origin and problem.origin.line) for problem in found.problems
    ] == [
        ("unknown-name", 6),
        ("unknown-key", 13),
    ]
    assert found.exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "checkpoint.enable=false",
            "stage 'sft' starts from stage 'pretrain', which saves nothing",
        ),
        (
            "stages.pretrain.checkpoint.load_only=true",
            "stage 'sft' starts from stage 'pretrain', which saves nothing",
        ),
        (
            "stages.sft.model.n_layers=3",
            "stage 'sft' has model.n_layers 3, and stage 'pretrain', from which it starts, 6",
        ),
    ],
)
def test_a_stage_must_be_able_to_start_from_the_one_before(
    recipe: Path, change: str, message: str
) -> None:
    assert messages(recipe, change) == [message]


def test_a_stage_may_say_what_it_starts_from(recipe: Path) -> None:
    recipe.write_text(
        RECIPE + "    checkpoint: {initial_load_path: elsewhere}\n    model: {n_layers: 3}\n"
    )
    assert messages(recipe) == []


def test_the_recipe_as_it_ran_resolves_to_the_same_runs(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(HasStages) as caught:
        resolve(str(recipe), environment={})
    ids = caught.value.ids
    stages = stages_in_order(ids, [stage(recipe, id) for id in ids], caught.value.tree)
    assert [one.before for one in stages] == [None, 0]
    assert problems_between(stages) == []
    again = tmp_path / "stages.yaml"
    again.write_text(whole_text("both", stages))
    assert [stage(again, id).text for id in ids] == [one.run.text for one in stages]
    assert examined(again).problems == ()
