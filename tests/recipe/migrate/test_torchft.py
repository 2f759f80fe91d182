"""torchft's replica groups come over from a configuration of torchtitan; what is not built of them
is refused with one reason."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.migrate.key_mapping import SEMI_SYNC
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
SYNC = (
    "[fault_tolerance]\nenable = true\ngroup_size = 2\nprocess_group = 'gloo'\n"
    "process_group_timeout_ms = 20000\nreplica_id = 1\n"
)
SEMI = "semi_sync_method = 'diloco'\nsync_steps = 10\nnum_fragments = 2\n"


def fates(text: str, folder: Path) -> dict[str, str]:
    file = folder / "config.toml"
    file.write_text(text)
    items = migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()).items
    return {
        item.path.removeprefix("fault_tolerance."): item.outcome for item in items if item.entry
    }


def test_groups_that_agree_on_every_step_come_over(tmp_path: Path) -> None:
    assert fates(SYNC, tmp_path) == {
        "enable": "changed",
        "group_size": "mapped",
        "process_group": "unread",
        "process_group_timeout_ms": "mapped",
        "replica_id": "unread",
    }


def test_groups_that_agree_now_and_then_are_refused(tmp_path: Path) -> None:
    found = fates(SYNC + SEMI, tmp_path)
    names = ("semi_sync_method", "sync_steps", "num_fragments")
    assert [found[name] for name in names] == ["refused"] * 3
    assert fates(SYNC.replace("gloo", "nccl"), tmp_path)["process_group"] == "refused"


def test_groups_that_are_switched_off_are_no_reason_to_refuse_anything(tmp_path: Path) -> None:
    assert set(fates(SYNC.replace("true", "false") + SEMI, tmp_path).values()) <= {
        "unread",
        "mapped",
    }


def test_a_recipe_with_a_key_of_torchtitan_is_told_why_it_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(
            str(tmp_path / "recipe.yaml"),
            ["fault_tolerance.semi_sync_method=diloco"],
            environment={},
        )
    (problem,) = caught.value.problems
    assert (problem.code, SEMI_SYNC in str(problem.hint)) == ("unknown-key", True)
