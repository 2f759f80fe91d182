"""torchft's replica groups come over from a configuration of torchtitan; what needs
other communication is refused."""

from pathlib import Path

import pytest

from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.resolving.resolve import resolve_recipe

SYNC = (
    "[fault_tolerance]\nenable = true\ngroup_size = 2\nprocess_group = 'gloo'\n"
    "process_group_timeout_ms = 20000\nreplica_id = 1\n"
)
# the values of its debug_model.toml and the keys of its FaultTolerance class
LLAMA3_FT = """
[job]
dump_folder = "./outputs"
custom_config_module = "torchtitan.components.ft.config"
[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 10
profiler_active = 10
profiler_warmup = 0
enable_memory_snapshot = false
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"
[training]
local_batch_size = 8
seq_len = 2048
steps = 100
dataset = "c4_test"
[checkpoint]
enable = false
folder = "saves"
interval = 20
last_save_model_only = false
export_dtype = "float32"
async_mode = "disabled"
enable_ft_dataloader_checkpoints = true
[comm]
train_timeout_seconds = 15
[fault_tolerance]
enable = true
process_group = "nccl"
process_group_timeout_ms = 10000
replica_id = 0
group_size = 2
min_replica_size = 1
semi_sync_method = "diloco"
sync_steps = 10
should_quantize = false
fragment_sync_delay = 0
fragment_update_alpha = 0.0
num_fragments = 2
module_fqns_per_model_fragment = []
"""
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


def test_groups_that_agree_now_and_then_come_over(tmp_path: Path) -> None:
    found = fates(SYNC + SEMI, tmp_path)
    assert [found[name] for name in ("semi_sync_method", "sync_steps", "num_fragments")] == [
        "changed",
        "mapped",
        "mapped",
    ]
    assert "refused" not in found.values()


def test_other_communication_is_refused(tmp_path: Path) -> None:
    assert fates(SYNC.replace("gloo", "nccl"), tmp_path)["process_group"] == "unread"
    assert fates(SYNC.replace("gloo", "mccl"), tmp_path)["process_group"] == "refused"
    assert fates(SYNC + SEMI + "should_quantize = true\n", tmp_path)["should_quantize"] == "refused"


def test_the_example_of_torchtitan_comes_over_and_is_a_valid_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(LLAMA3_FT)
    migration = migrate_file(
        str(tmp_path / "config.toml"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    )
    assert (migration.exit_code, migration.problems) == (0, ())
    (tmp_path / "recipe.yaml").write_text(migration.text)
    run = resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}).run
    config = run.fault_tolerance
    assert (config.semi_sync_method, config.sync_steps, config.fragment_count) == ("diloco", 10, 2)
    assert run.training.global_batch_size == 16
    checkpoint = run.checkpoint
    assert (checkpoint.enable, checkpoint.folder, checkpoint.interval) == (True, "saves", 20)
    assert not run.profiling.enable_profiling
    found = {item.path: item for item in migration.items}
    assert "group that returns" in found["checkpoint.enable"].words
    assert "write no traces" in found["profiling.enable_profiling"].words


def test_a_start_that_checkpoints_off_would_not_read_stays_unread(tmp_path: Path) -> None:
    """Checkpoints are switched on to be saved; what torchtitan would not load is not loaded."""
    found = fates(SYNC + "[checkpoint]\nenable = false\ninitial_load_path = 'other'\n", tmp_path)
    assert found["checkpoint.enable"] == "changed"
    assert found["checkpoint.initial_load_path"] == "unread"


def test_groups_without_a_checkpoint_section_get_one(tmp_path: Path) -> None:
    """torchtitan's default is no checkpoints."""
    (tmp_path / "config.toml").write_text(
        LLAMA3_FT.replace("[checkpoint]\nenable = false", "[checkpoint]")
    )
    migration = migrate_file(
        str(tmp_path / "config.toml"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    )
    assert (migration.exit_code, migration.problems) == (0, ())


def test_what_only_observes_or_saves_in_another_way_is_changed_with_a_reason(
    tmp_path: Path,
) -> None:
    observed = (
        "[profiling]\nenable_memory_snapshot = true\n[metrics]\nsave_for_all_ranks = true\n"
        "[checkpoint]\nenable = true\nasync_mode = 'async'\n"
    )
    found = fates(SYNC + observed, tmp_path)
    assert found["profiling.enable_memory_snapshot"] == "changed"
    assert found["metrics.save_for_all_ranks"] == "changed"
    assert found["checkpoint.async_mode"] == "changed"
    assert "refused" not in found.values()


def test_the_batch_is_that_of_all_groups(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(SYNC + "[training]\nglobal_batch_size = 24\n")
    text = migrate_file(
        str(tmp_path / "config.toml"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    ).text
    assert "global_batch_size: 48" in text


def test_fragments_that_are_listed_are_not_counted(tmp_path: Path) -> None:
    listed = "module_fqns_per_model_fragment = [['tok_embeddings', 'layers.0'], ['output']]\n"
    found = fates(SYNC + SEMI + listed, tmp_path)
    assert (found["module_fqns_per_model_fragment"], found["num_fragments"]) == ("mapped", "unread")


def test_groups_that_are_switched_off_are_no_reason_to_refuse_anything(tmp_path: Path) -> None:
    assert set(fates(SYNC.replace("true", "false") + SEMI, tmp_path).values()) <= {
        "unread",
        "mapped",
    }


@pytest.mark.parametrize("enable", ["true", "false"])
def test_groups_save_checkpoints_and_write_no_traces(enable: str, tmp_path: Path) -> None:
    text = SYNC.replace("true", enable) + "[profiling]\nenable_profiling = true\n"
    found = fates(text, tmp_path)
    if enable == "true":
        assert (found["profiling.enable_profiling"], migrated_saves(tmp_path)) == ("changed", True)
    else:
        assert (found["profiling.enable_profiling"], migrated_saves(tmp_path)) == ("mapped", False)


def migrated_saves(folder: Path) -> bool:
    """Return whether the recipe of the last file saves checkpoints."""
    text = migrate_file(
        str(folder / "config.toml"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    ).text
    return "checkpoint:\n  enable: true\n" in text
