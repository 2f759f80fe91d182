"""The table of torchtitan's keys: complete, and what it says of each key is what happens to it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_toml, to_yaml
from titanrun.config.tree import find_node, to_plain_data
from titanrun.recipe.migrate.key_mapping import SourceKey
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.migration_plan import NOT_BUILT, MigrationItem
from titanrun.recipe.migrate.target_paths import get_data_path, parse_target
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtitan_extensions import EXTENSIONS
from titanrun.recipe.migrate.torchtitan_table import TORCHTITAN_KEYS
from titanrun.recipe.resolving.resolve import resolve_recipe

# leaves of each section of torchtitan 0.2.2, counted in its own configuration
LEAVES = {
    "job": 6,
    "profiling": 7,
    "metrics": 6,
    "model": 6,
    "optimizer": 8,
    "lr_scheduler": 5,
    "training": 17,
    "parallelism": 21,
    "checkpoint": 18,
    "activation_checkpoint": 9,
    "compile": 3,
    "quantize": 11,
    "comm": 6,
    "memory_estimation": 2,
    "fault_tolerance": 7,
    "experimental": 2,
    "validation": 11,
    "debug": 4,
}
# values other than the default, where none follows from its type
OTHER: dict[str, Any] = {
    "job.config_file": "mine.toml",
    "job.save_config_file": "config.json",
    "model.name": "gpt_oss",
    "model.flavor": "8B",
    "model.tokenizer_path": "assets/tokenizer",
    "model.converters": ["quantize.linear.mx"],
    "optimizer.name": "Adam",
    "optimizer.implementation": "foreach",
    "lr_scheduler.total_steps": 20000,
    "lr_scheduler.decay_ratio": 0.5,
    "lr_scheduler.decay_type": "cosine",
    "lr_scheduler.min_lr_factor": 0.1,
    "training.dataset_path": "data.json",
    "training.global_batch_size": 16,
    "training.dtype": "bfloat16",
    "training.mixed_precision_param": "float32",
    "training.mixed_precision_reduce": "bfloat16",
    "training.dataloader.prefetch_factor": 3,
    "parallelism.data_parallel_shard_degree": 2,
    "parallelism.fsdp_reshard_after_forward": "never",
    "parallelism.module_fqns_per_model_part": [["tok_embeddings"], ["layers.0"]],
    "parallelism.pipeline_parallel_layers_per_stage": 2,
    "parallelism.pipeline_parallel_schedule": "GPipe",
    "parallelism.pipeline_parallel_schedule_csv": "mine.csv",
    "parallelism.context_parallel_load_balancer": "ptrr",
    "parallelism.context_parallel_rotate_method": "alltoall",
    "parallelism.expert_parallel_comm_backend": "deepep",
    "checkpoint.initial_load_path": "weights",
    "checkpoint.export_dtype": "bfloat16",
    "checkpoint.async_mode": "async",
    "checkpoint.load_step": 10,
    "checkpoint.exclude_from_loading": ["dataloader"],
    "activation_checkpoint.mode": "full",
    "activation_checkpoint.selective_ac_option": "op",
    "activation_checkpoint.memory_budget": 0.25,
    "activation_checkpoint.determinism_check": "none",
    "compile.components": ["loss"],
    "quantize.linear.float8.recipe_name": "rowwise",
    "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice": "cuda",
    "quantize.linear.mx.recipe_name": "mxfp8_cublas_rceil",
    "comm.mode": "fake_backend",
    "fault_tolerance.process_group": "nccl",
    "fault_tolerance.group_size": 2,
    "fault_tolerance.semi_sync_method": "diloco",
    "validation.dataset_path": "held_out.json",
    "validation.steps": 5,
    "debug.seed": 7,
    "fault_tolerance.module_fqns_per_model_fragment": [["layers.0"]],
    "encoder.autoencoder_path": "ae.safetensors",
    "compile.graph_passes": "auto_bucketing",
    "inference.prompts_path": "prompts.txt",
}
# what must be written beside a key so that it means something
EXPERTS = {"model.name": "qwen3", "model.flavor": "debugmodel_moe"}
BESIDE: dict[str, dict[str, Any]] = {
    "checkpoint.export_dtype": {"checkpoint.last_save_in_hf": True},
    # a path of C4 is that of a whole dataset
    "validation.dataset_path": {"validation.dataset": "c4_test"},
    "checkpoint.initial_load_model_only": {"checkpoint.initial_load_path": "weights"},
    "parallelism.expert_parallel_degree": EXPERTS,
    "parallelism.expert_tensor_parallel_degree": {
        **EXPERTS,
        "parallelism.expert_parallel_degree": 2,
    },
    "parallelism.pipeline_parallel_expert_parallel_overlap": {
        **EXPERTS,
        "parallelism.pipeline_parallel_schedule": "DualPipeV",
    },
    "debug.moe_force_load_balance": EXPERTS,
}
SMALL: dict[str, Any] = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "tokenizer": "tiny",
    "training": {"dataset": {"name": "tiny"}, "steps": 10},
}
ABSENT = {"not-built", "unknown-name", "unknown-key"}


def other(key: SourceKey) -> Any:
    """A value that is not the default."""
    if key.path in OTHER:
        return OTHER[key.path]
    if isinstance(key.default, bool):
        return not key.default
    if isinstance(key.default, int | float):
        return key.default * 2 or 3
    return ["moe"] if isinstance(key.default, list) else f"{key.default}other"


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted paths as sections."""
    data: dict[str, Any] = {}
    for path, value in values.items():
        holder = data
        *sections, last = path.split(".")
        for section in sections:
            holder = holder.setdefault(section, {})
        holder[last] = value
    return data


def settings(key: SourceKey) -> dict[str, Any]:
    """The key with a value of its own, and what makes torchtitan read it."""
    needed = {need.path: need.example for need in key.needs}
    return {**needed, **BESIDE.get(key.path, {}), key.path: other(key)}


def has_no_place(target: str, value: Any, tmp_path: Path) -> bool:
    """Whether validate refuses a recipe with `value` at `target` as something that is not built."""
    steps = parse_target(target)
    data: Any = {**SMALL}
    holder = data
    for index, step in enumerate(steps[:-1]):
        if steps[index + 1].startswith("["):
            holder[step] = [{"name": steps[index + 1][1:-1]}]
            holder = holder[step][0]
        elif not step.startswith("["):
            holder[step] = {**holder.get(step, {})}
            holder = holder[step]
    if steps[-2:-1] == ("dataset",):
        holder["name"] = "c4_validation"
    holder[steps[-1]] = value
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(data), encoding="utf-8")
    try:
        resolve_recipe(str(recipe), environment={})
    except ProblemsFound as found:
        return any(problem.code in ABSENT for problem in found.problems)
    return False


def test_the_table_has_every_leaf_once() -> None:
    assert Counter(key.path.partition(".")[0] for key in TORCHTITAN_KEYS) == LEAVES
    assert sum(LEAVES.values()) == len({key.path for key in TORCHTITAN_KEYS}) == 149


@pytest.mark.parametrize("key", [*TORCHTITAN_KEYS, *EXTENSIONS], ids=lambda key: key.path)
def test_a_key_ends_as_the_table_says(key: SourceKey, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(to_toml(nested(settings(key))), encoding="utf-8")
    migration = migrate_file(str(file), TORCHTITAN, recipe_name="recipe.yaml", header_lines=())
    assert {item.path for item in migration.items if item.entry} == set(settings(key))
    (item,) = [item for item in migration.items if item.entry and item.path == key.path]
    if NOT_BUILT in item.words:
        assert (item.outcome, key.outcome != "refused") == ("refused", True)
        becomes = key.convert_value(other(key), {**settings(key)}).targets
        assert any(has_no_place(target, value, tmp_path) for target, value in becomes.items()), (
            "it is there, and was refused"
        )
        assert f"# {key.path} = " in migration.text or item.targets
        assert_written(item, migration.text)
        return
    assert item.outcome == key.outcome, item.words
    if key.how and item.outcome != "mapped" and key.convert is None:
        assert item.words == key.how
    assert_written(item, migration.text)


def assert_written(item: MigrationItem, text: str) -> None:
    """The values of the item stand in the recipe."""
    tree = read_source_text(SourceText("recipe.yaml", text), "yaml")
    for target, value in item.targets.items():
        path = get_data_path(to_plain_data(tree), target)
        node = find_node(tree, path) or find_node(tree, path[:-1])
        assert node is not None
        assert to_plain_data(node) in (value, [value])
