"""torchft's replica groups are refused with one reason, whether they come by a recipe or by a
configuration of torchtitan."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.migrate.key_mapping import TORCHFT
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtitan_extensions import EXTENSIONS
from titanrun.recipe.migrate.torchtitan_table import TORCHTITAN_KEYS
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
GROUPS = (
    "[fault_tolerance]\nenable = true\ngroup_size = 2\nprocess_group = 'gloo'\nsemi_sync_method "
    "= 'diloco'\nsync_steps = 10\n"
)


def fates(text: str, folder: Path) -> dict[str, tuple[str, str]]:
    file = folder / "config.toml"
    file.write_text(text)
    items = migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()).items
    return {item.path: (item.outcome, item.words) for item in items if item.entry}


@pytest.mark.parametrize(
    "overrides",
    [
        ["fault_tolerance.enable=true", "fault_tolerance.group_size=2"],
        ["checkpoint.enable_ft_dataloader_checkpoints=false"],
    ],
)
def test_a_recipe_gets_one_problem_that_says_why_and_what_gives_restarts(
    overrides: list[str], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(str(tmp_path / "recipe.yaml"), overrides, environment={})
    (problem,) = caught.value.problems
    assert (problem.code, TORCHFT in str(problem.hint), "launch.max_restarts" in TORCHFT) == (
        "unknown-key",
        True,
        True,
    )


def test_every_field_that_asks_for_groups_is_refused_for_the_same_reason(tmp_path: Path) -> None:
    found = fates(GROUPS, tmp_path)
    assert found.pop("fault_tolerance.process_group") == ("unread", f"left out: {TORCHFT}")
    assert set(found.values()) == {("refused", TORCHFT)}
    keys = [
        key for key in (*TORCHTITAN_KEYS, *EXTENSIONS) if key.path.startswith("fault_tolerance.")
    ]
    assert len(keys) == 13
    assert all((key.target, key.how) == (None, TORCHFT) for key in keys)


def test_groups_that_are_switched_off_are_no_reason_to_refuse_anything(tmp_path: Path) -> None:
    assert {fate for fate, _ in fates(GROUPS.replace("true", "false"), tmp_path).values()} == {
        "unread"
    }
