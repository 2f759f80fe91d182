"""Several runs in one recipe."""

from pathlib import Path

import pytest

from titanrun.config.diagnostics import render_problems
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.multi_stage import StageRequiredError
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.stage_sequence import (
    build_stage_sequence,
    find_stage_problems,
    format_multi_stage_recipe,
    get_initial_load_path,
)
from titanrun.recipe.resolving.validation_levels import (
    ValidationResult,
    merge_stage_results,
    validate_file,
)

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


def stage(recipe: Path, stage_id: str, *overrides: str) -> Resolved:
    return resolve_recipe(f"{recipe}#{stage_id}", overrides, environment={})


def examined(recipe: Path, *overrides: str) -> ValidationResult:
    whole = validate_file(str(recipe), overrides, level="rules", environment={})
    each = [
        validate_file(f"{recipe}#{stage_id}", overrides, level="rules", environment={})
        for stage_id in whole.stages
    ]
    return merge_stage_results(whole, each)


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
    changes = (
        "training.seq_len=32",
        "model.attention.mask=block_causal",
        "stages.sft.optimizer.lr=5e-3",
        "stages.sft.description=chats",
        "stages[0].training.steps=9",
    )
    pretrain, sft = stage(recipe, "pretrain", *changes).run, stage(recipe, "sft", *changes).run
    assert (pretrain.description, sft.description) == ("", "chats")
    for run in (pretrain, sft):
        assert run.model.attention.mask == "block_causal"
    assert (pretrain.training.seq_len, sft.training.seq_len) == (32, 32)
    assert (pretrain.training.steps, sft.training.epochs) == (9, 2)
    assert (pretrain.optimizer.lr, sft.optimizer.lr) == (1e-3, 5e-3)


def test_a_stage_loads_from_its_parent_in_the_spelling_that_it_recorded(
    recipe: Path, tmp_path: Path
) -> None:
    parent, folder = tmp_path / "pretrain", tmp_path / "sft"
    folder.mkdir()
    (tmp_path / "link").symlink_to(parent)
    run = stage(recipe, "sft")
    assert get_initial_load_path(parent, run, folder) == str(parent)
    for recorded, expected in (
        (tmp_path / "link", tmp_path / "link"),
        (tmp_path / "moved", parent),
        ("s3://bucket/pretrain", parent),
        (None, parent),
    ):
        override = f"checkpoint.initial_load_path={'null' if recorded is None else recorded}"
        begun = stage(recipe, "pretrain", override)
        (folder / "resolved.yaml").write_text(begun.text)
        assert get_initial_load_path(parent, run, folder) == str(expected), recorded
    remote = stage(recipe, "sft", "checkpoint.folder=s3://bucket/sft")
    assert get_initial_load_path(parent, remote, folder) == "s3://bucket/sft"


def test_one_run_is_meant_where_a_recipe_has_several(recipe: Path) -> None:
    with pytest.raises(StageRequiredError) as caught:
        resolve_recipe(str(recipe), environment={})
    assert caught.value.stage_ids == ("pretrain", "sft")
    assert caught.value.problems[0].origin is not None and caught.value.problems[0].origin.line == 7


@pytest.mark.parametrize(
    ("name", "override", "message", "hint"),
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
    recipe: Path, name: str, override: str, message: str, hint: str
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        stage(recipe, name, *filter(None, [override]))
    assert message in caught.value.problems[0].message
    assert caught.value.problems[0].hint == hint


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("stages.0.training.steps=10", "write stages.pretrain.training.steps=10"),
        ("--stages.1.optimizer.lr=1e-3", "write stages.sft.optimizer.lr=1e-3"),
        ("stages.2.training.steps=10", "its stages are pretrain and sft"),
    ],
)
def test_a_stage_counted_after_a_dot_is_named_by_its_id(
    recipe: Path, override: str, hint: str
) -> None:
    problem = examined(recipe, override).problems[0]
    assert (problem.code, problem.hint) == ("usage", hint)
    assert problem.message.startswith("a stage is named by its id, not by a number")
    assert problem.origin is not None and problem.origin.source.text == override


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("stages: sft", "stages must be a list with one mapping per stage"),
        ("stages: []", "stages must be a list with one mapping per stage"),
        ("stages: [sft]", "a stage must be a mapping"),
        ("stages: [{name: sft}]", "missing required key 'id' in a stage"),
        (
            "stages: [{id: ../sft}]",
            "a stage id must consist of letters, digits, _ and -: it names the stage's folder",
        ),
        ("stages: [{id: a}, {id: a}]", "two stages have the id 'a'"),
        ("stages: [{id: a, dump_folder: x}]", "'dump_folder' is not allowed in a stage"),
        ("stages: [{id: a, stages: [{id: b}]}]", "'stages' is not allowed in a stage"),
    ],
)
def test_stages_of_another_form_are_problems_with_their_place(
    recipe: Path, stages: str, message: str
) -> None:
    recipe.write_text(RECIPE.partition("stages:")[0] + stages)
    (problem,) = validate_file(str(recipe), (), level="rules", environment={}).problems
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
    (problem,) = validate_file(str(recipe), (), level="rules", environment={}).problems
    assert '"got": ' in render_problems([problem], output_format="json")
    assert "Node" not in render_problems([problem], output_format="json")


def test_a_stage_that_cannot_be_read_is_one_mistake(recipe: Path) -> None:
    recipe.write_text(
        RECIPE.partition("stages:")[0] + "stages: [!!python/object/apply:os.system [x]]"
    )
    (problem,) = validate_file(str(recipe), (), level="rules", environment={}).problems
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
            "stage 'sft' starts from stage 'pretrain', which saves no checkpoint",
        ),
        (
            "stages.pretrain.checkpoint.load_only=true",
            "stage 'sft' starts from stage 'pretrain', which saves no checkpoint",
        ),
        (
            "stages.sft.model.n_layers=3",
            "stage 'sft' has model.n_layers 3, but stage 'pretrain', from which it starts, has 6",
        ),
    ],
)
def test_a_stage_must_be_able_to_start_from_the_one_before(
    recipe: Path, change: str, message: str
) -> None:
    assert messages(recipe, change) == [message]


def test_a_stage_with_another_model_is_shown_at_the_key_that_says_so(recipe: Path) -> None:
    recipe.write_text(RECIPE + "    model: {n_layers: 3}\n")
    (found,) = examined(recipe).problems
    line = len(RECIPE.splitlines()) + 1
    assert str(found.origin) == f"{recipe}:{line}:13"


def test_a_stage_may_say_what_it_starts_from(recipe: Path) -> None:
    recipe.write_text(
        RECIPE + "    checkpoint: {initial_load_path: elsewhere}\n    model: {n_layers: 3}\n"
    )
    assert messages(recipe) == []


def test_the_recipe_as_it_ran_resolves_to_the_same_runs(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(StageRequiredError) as caught:
        resolve_recipe(str(recipe), environment={})
    ids = caught.value.stage_ids
    stages = build_stage_sequence(ids, [stage(recipe, one) for one in ids], caught.value.tree)
    assert [one.parent_index for one in stages] == [None, 0]
    assert find_stage_problems(stages) == []
    again = tmp_path / "stages.yaml"
    again.write_text(format_multi_stage_recipe("both", stages))
    assert [stage(again, one).text for one in ids] == [one.resolved.text for one in stages]
    assert examined(again).problems == ()


def test_the_kind_that_does_not_fit_is_changed_in_its_stage(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "version: 1\nkind: sft\n"
        "model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}\n"
        "training: {dataset: tiny_chat, seq_len: 64, steps: 4}\noptimizer: {lr: 1.0e-6}\n"
        "checkpoint: {enable: true}\n"
        "stages:\n  - id: chats\n  - id: pairs\n    loss: dpo\n"
        "    training: {dataset: tiny_pairs}\n"
    )
    hint = "set kind: pretrain in stage 'pairs', for a loss that compares replies"
    assert [problem.hint for problem in examined(recipe).problems] == [hint]
    recipe.write_text(recipe.read_text() + "    kind: pretrain\n")
    assert not messages(recipe)
