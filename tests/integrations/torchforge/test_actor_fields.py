"""Every documented field of TorchForge's TitanTrainer: its default, and what another value changes.
What a field of the recipe does is
held by the test that tests/recipe/leaves.yaml names for it."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.integrations.torchforge.actor_fields import FIELD_DEFAULTS
from titanrun.integrations.torchforge.titan_trainer import TitanTrainer

MOE = {"model.name": "qwen3", "model.flavor": "debugmodel_moe"}
SAVES = {"checkpoint.enable": True}
LOADS = {**SAVES, "checkpoint.initial_load_in_hf": True}
PIPE = {"parallelism.pipeline_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 1}
BOTH = ["optimizer", "lr_scheduler"]
LAYERS = ["tok_embeddings", "layers.0", "layers.1", "layers.2"]
REST = ["layers.3", "layers.4", "layers.5", "norm", "output"]
TENSOR = {"parallelism.tensor_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 1}
EXPERT = {
    **MOE,
    "parallelism.expert_parallel_degree": 2,
    "parallelism.data_parallel_shard_degree": 2,
}
FULL = {"activation_checkpoint.mode": "full"}
COMPILED = {"compile.enable": True}
FLOAT8 = {"model.converters": ["quantize.linear.float8"]}
GATHERS = {
    **FLOAT8,
    "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
    "parallelism.data_parallel_shard_degree": 2,
}
GROUPED = {**MOE, "model.converters": ["quantize.grouped_mm.float8"]}
MX = {"model.converters": ["quantize.linear.mx"]}
MX_GROUPED = {**MOE, "model.converters": ["quantize.grouped_mm.mx"]}
REFUSED = "refused"
CHECKED = "a problem that names the field: no other value of its kind is there"
OWN = "what the actor itself does: a test of its own here, or in test_titan_trainer.py"

# field, documented default, another value, path in the recipe and value there (of the same words
# unless told), further fields, ranks
ROWS: list[tuple[Any, ...]] = [
    ("job.config_file", None, None, OWN),
    ("job.dump_folder", "./torchtitan/outputs", "elsewhere", "dump_folder"),
    ("job.description", "default job", "mine", "description"),
    ("job.print_config", False, True, "debug.print_config"),
    ("job.custom_config_module", "", "mine.config", REFUSED),
    ("model.name", "llama3", "qwen3", "model.name"),
    ("model.flavor", "debugmodel", "8B", "model.flavor"),
    ("model.hf_assets_path", "./tests/assets/tokenizer", "assets", "model.hf_assets_path"),
    ("model.tokenizer_path", None, "assets", "model.hf_assets_path"),
    ("model.converters", [], ["quantize.linear.float8"], "converters.0.name", "float8_linear"),
    ("model.print_after_conversion", False, True, "model.print_after_conversion", True, FLOAT8),
    ("optimizer.name", "AdamW", "Adam", "optimizer.name", "adam"),
    ("optimizer.lr", 8e-4, 1e-5, "optimizer.lr"),
    ("optimizer.beta1", 0.9, 0.8, "optimizer.beta1"),
    ("optimizer.beta2", 0.95, 0.999, "optimizer.beta2"),
    ("optimizer.eps", 1e-8, 1e-6, "optimizer.eps"),
    ("optimizer.weight_decay", 0.1, 0.0, "optimizer.weight_decay"),
    ("optimizer.implementation", "fused", "for-loop", "optimizer.implementation"),
    (
        "optimizer.early_step_in_backward",
        False,
        True,
        "optimizer.early_step_in_backward",
        True,
        {"training.max_norm": None},
    ),
    ("lr_scheduler.warmup_steps", 200, 7, "lr_scheduler.warmup_steps"),
    ("lr_scheduler.total_steps", None, 20000, "lr_scheduler.total_steps"),
    ("lr_scheduler.decay_ratio", None, 0.5, "lr_scheduler.decay_ratio"),
    (
        "lr_scheduler.decay_type",
        "linear",
        "cosine",
        "lr_scheduler.decay_type",
        "cosine",
        {"lr_scheduler.decay_ratio": 0.5},
    ),
    (
        "lr_scheduler.min_lr_factor",
        0.0,
        0.1,
        "lr_scheduler.min_lr_factor",
        0.1,
        {"lr_scheduler.decay_ratio": 0.5},
    ),
    ("training.dataset", "c4_test", "c4", REFUSED),
    ("training.dataset_path", None, "data", REFUSED),
    ("training.local_batch_size", 8, 2, "training.local_batch_size"),
    ("training.global_batch_size", -1, 16, "training.global_batch_size"),
    ("training.seq_len", 2048, 64, "training.seq_len"),
    ("training.max_norm", 1.0, 0.5, "training.max_norm"),
    ("training.steps", 10000, 300, "training.steps"),
    (
        "training.enable_cpu_offload",
        False,
        True,
        "training.enable_cpu_offload",
        True,
        {"parallelism.data_parallel_shard_degree": 2},
        2,
    ),
    ("training.dtype", "float32", "bfloat16", "training.dtype"),
    ("training.mixed_precision_param", "bfloat16", "float32", "training.mixed_precision_param"),
    ("training.mixed_precision_reduce", "float32", "bfloat16", CHECKED),
    ("training.gc_freq", 50, 1, "training.gc_freq"),
    ("training.gc_debug", False, True, "training.gc_debug"),
    ("training.seed", None, 5, "debug.seed"),
    ("training.deterministic", False, True, "debug.deterministic"),
    (
        "training.debug_moe_force_load_balance",
        False,
        True,
        "debug.moe_force_load_balance",
        True,
        MOE,
    ),
    (
        "parallelism.data_parallel_replicate_degree",
        1,
        2,
        "parallelism.data_parallel_replicate_degree",
        2,
        {},
        2,
    ),
    ("parallelism.enable_compiled_autograd", False, True, REFUSED),
    (
        "parallelism.data_parallel_shard_degree",
        -1,
        2,
        "parallelism.data_parallel_shard_degree",
        2,
        {},
        2,
    ),
    (
        "parallelism.fsdp_reshard_after_forward",
        "default",
        "never",
        "parallelism.fsdp_reshard_after_forward",
        "never",
        {},
        2,
    ),
    ("parallelism.tensor_parallel_degree", 1, 2, "parallelism.tensor_parallel_degree", 2, {}, 2),
    (
        "parallelism.disable_loss_parallel",
        False,
        True,
        "parallelism.disable_loss_parallel",
        True,
        TENSOR,
        2,
    ),
    (
        "parallelism.enable_async_tensor_parallel",
        False,
        True,
        "parallelism.enable_async_tensor_parallel",
        True,
        {**TENSOR, **COMPILED},
        2,
    ),
    (
        "parallelism.pipeline_parallel_degree",
        1,
        2,
        "parallelism.pipeline_parallel_degree",
        2,
        {},
        2,
    ),
    (
        "parallelism.module_fqns_per_model_part",
        None,
        [LAYERS, REST],
        "parallelism.module_fqns_per_model_part",
        [LAYERS, REST],
        PIPE,
        2,
    ),
    (
        "parallelism.pipeline_parallel_first_stage_less_layers",
        1,
        2,
        "parallelism.pipeline_parallel_first_stage_less_layers",
        2,
        PIPE,
        2,
    ),
    (
        "parallelism.pipeline_parallel_last_stage_less_layers",
        1,
        2,
        "parallelism.pipeline_parallel_last_stage_less_layers",
        2,
        PIPE,
        2,
    ),
    (
        "parallelism.pipeline_parallel_layers_per_stage",
        None,
        4,
        "parallelism.pipeline_parallel_layers_per_stage",
        4,
        PIPE,
        2,
    ),
    (
        "parallelism.pipeline_parallel_schedule",
        "1F1B",
        "GPipe",
        "parallelism.pipeline_parallel_schedule",
        "GPipe",
        PIPE,
        2,
    ),
    (
        "parallelism.pipeline_parallel_schedule_csv",
        "",
        "plan.csv",
        "parallelism.pipeline_parallel_schedule_csv",
        "plan.csv",
        PIPE,
        2,
    ),
    (
        "parallelism.pipeline_parallel_microbatch_size",
        1,
        2,
        "parallelism.pipeline_parallel_microbatch_size",
        2,
        PIPE,
        2,
    ),
    ("parallelism.context_parallel_degree", 1, 2, "parallelism.context_parallel_degree", 2, {}, 2),
    (
        *(
            "parallelism.context_parallel_rotate_method",
            "allgather",
            "alltoall",
            "parallelism.context_parallel_rotate_method",
            "alltoall",
        ),
        {"parallelism.context_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 1},
        2,
    ),
    ("parallelism.expert_parallel_degree", 1, 2, "parallelism.expert_parallel_degree", 2, MOE, 2),
    (
        "parallelism.expert_tensor_parallel_degree",
        1,
        2,
        "parallelism.expert_tensor_parallel_degree",
        2,
        {**EXPERT, "parallelism.tensor_parallel_degree": 2},
        4,
    ),
    ("checkpoint.enable", False, True, "checkpoint.enable"),
    ("checkpoint.enable_ft_dataloader_checkpoints", True, False, REFUSED),
    ("checkpoint.folder", "checkpoint", "saved", "checkpoint.folder", "saved", SAVES),
    ("checkpoint.interval", 500, 3, "checkpoint.interval", 3, SAVES),
    (
        "checkpoint.initial_load_path",
        None,
        "weights",
        "checkpoint.initial_load_path",
        "weights",
        SAVES,
    ),
    (
        "checkpoint.initial_load_model_only",
        True,
        False,
        "checkpoint.initial_load_model_only",
        False,
        {**SAVES, "checkpoint.initial_load_path": "run"},
    ),
    ("checkpoint.initial_load_in_hf", False, True, "checkpoint.initial_load_in_hf", True, SAVES),
    (
        "checkpoint.initial_load_in_hf_quantized",
        False,
        True,
        "checkpoint.initial_load_in_hf_quantized",
        True,
        LOADS,
    ),
    (
        "checkpoint.last_save_model_only",
        True,
        False,
        "checkpoint.last_save_model_only",
        False,
        SAVES,
    ),
    ("checkpoint.last_save_in_hf", False, True, "checkpoint.last_save_in_hf", True, SAVES),
    (
        "checkpoint.export_dtype",
        "float32",
        "bfloat16",
        "checkpoint.export_dtype",
        "bfloat16",
        {**SAVES, "checkpoint.last_save_in_hf": True},
    ),
    ("checkpoint.async_mode", "disabled", "async", "checkpoint.async_mode", "async", SAVES),
    ("checkpoint.keep_latest_k", 10, 2, "checkpoint.keep_latest_k", 2, SAVES),
    ("checkpoint.load_step", -1, 3, "checkpoint.load_step", 3, SAVES),
    ("checkpoint.exclude_from_loading", [], BOTH, "checkpoint.exclude_from_loading", BOTH, SAVES),
    (
        "checkpoint.enable_first_step_checkpoint",
        False,
        True,
        "checkpoint.enable_first_step_checkpoint",
        True,
        SAVES,
    ),
    (
        "checkpoint.create_seed_checkpoint",
        False,
        True,
        "checkpoint.create_seed_checkpoint",
        True,
        SAVES,
    ),
    ("checkpoint.load_only", False, True, "checkpoint.load_only", True, SAVES),
    ("activation_checkpoint.mode", "selective", "full", "activation_checkpoint.name"),
    (
        "activation_checkpoint.selective_ac_option",
        "2",
        "op",
        "activation_checkpoint.selective_ac_option",
    ),
    (
        *(
            "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
            ["moe.router.gate"],
            ["layers"],
        ),
        *(
            "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
            ["layers"],
            {"activation_checkpoint.selective_ac_option": "op"},
        ),
    ),
    ("activation_checkpoint.early_stop", False, True, "activation_checkpoint.early_stop"),
    (
        *(
            "activation_checkpoint.memory_budget",
            0.5,
            0.25,
            "activation_checkpoint.memory_budget",
            0.25,
        ),
        {"activation_checkpoint.mode": "memory_budget", **COMPILED},
    ),
    ("activation_checkpoint.visualize_memory_budget_pareto", False, True, OWN),
    (
        "activation_checkpoint.preserve_rng_state",
        True,
        False,
        "activation_checkpoint.preserve_rng_state",
    ),
    (
        "activation_checkpoint.determinism_check",
        "default",
        "none",
        "activation_checkpoint.determinism_check",
        "none",
        FULL,
    ),
    ("activation_checkpoint.debug", False, True, "activation_checkpoint.debug", True, FULL),
    ("compile.enable", False, True, "compile.enable"),
    ("compile.components", ["model", "loss"], ["loss"], "compile.components", ["loss"], COMPILED),
    ("compile.backend", "inductor", "aot_eager", "compile.backend", "aot_eager", COMPILED),
    ("comm.init_timeout_seconds", 300, 30, "comm.init_timeout_seconds"),
    ("comm.train_timeout_seconds", 100, 30, "comm.train_timeout_seconds"),
    ("comm.trace_buf_size", 20000, 0, "comm.trace_buf_size"),
    ("comm.save_traces_folder", "comm_traces", "traces", "comm.save_traces_folder"),
    ("comm.save_traces_file_prefix", "rank_", "r", "comm.save_traces_file_prefix"),
    ("memory_estimation.enable", False, True, REFUSED),
    ("memory_estimation.disable_fake_mode", False, True, REFUSED),
]
for field, default, other, with_ in [
    (
        "linear.float8.enable_fsdp_float8_all_gather",
        False,
        True,
        {**FLOAT8, "parallelism.data_parallel_shard_degree": 2},
    ),
    ("linear.float8.precompute_float8_dynamic_scale_for_fsdp", False, True, GATHERS),
    ("linear.float8.recipe_name", None, "rowwise", FLOAT8),
    ("linear.float8.filter_fqns", [], ["output"], FLOAT8),
    ("linear.float8.emulate", False, True, FLOAT8),
    ("grouped_mm.float8.fqns", [], ["layers.1"], GROUPED),
    ("linear.mx.mxfp8_dim1_cast_kernel_choice", "triton", "torch", MX),
    ("linear.mx.recipe_name", "mxfp8_cublas", "mxfp8_cublas_rceil", MX),
    ("linear.mx.filter_fqns", ["output"], [], MX),
    ("grouped_mm.mx.recipe_name", "mxfp8", "mxfp8_wgrad_with_hp", MX_GROUPED),
    ("grouped_mm.mx.fqns", [], ["layers.1"], MX_GROUPED),
]:
    ROWS.append(
        (
            f"quantize.{field}",
            default,
            other,
            "converters.0." + field.rpartition(".")[2],
            other,
            with_,
            2,
        )
    )


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of fields by path."""
    sections: dict[str, Any] = {}
    for path, value in values.items():
        *steps, last = path.split(".")
        holder = sections
        for step in steps:
            holder = holder.setdefault(step, {})
        holder[last] = value
    return sections


def at(data: Any, path: str) -> Any:
    """What stands there; None where there is no such place."""
    for step in path.split("."):
        if isinstance(data, list | tuple):
            data = data[int(step)] if int(step) < len(data) else None
        else:
            data = None if data is None else data.get(step)
    return data


def recipe_of(values: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The recipe that fields make, every `auto` decided; dump_folder is of the recipe alone."""
    resolved = TitanTrainer(**nested(values))._translation.resolve(ranks)
    return {**dump_config(resolved.run), "dump_folder": resolved.recipe.dump_folder}


@cache
def plain(ranks: int, *given: tuple[str, str]) -> dict[str, Any]:
    return recipe_of({path: eval(text) for path, text in given}, ranks)


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in ROWS])
def test_a_field_has_its_documented_default_and_another_value_changes_the_run(
    row: tuple[Any, ...],
) -> None:
    path, default, other, target, *rest = row
    section: Any = TitanTrainer()
    for step in path.split("."):
        section = getattr(section, step)
    assert section == default and type(section) is type(default)
    if target == OWN:
        return
    expected, with_, ranks = [*rest, *(other, {}, 1)[len(rest) :]]
    if target in (REFUSED, CHECKED):
        with pytest.raises(ProblemsFound) as found:
            recipe_of({**with_, path: other}, ranks)
        [problem] = found.value.problems
        assert problem.path == tuple(path.split("."))
        assert problem.message.startswith(f"{path} is not supported: ") == (target == REFUSED)
        return
    before = plain(ranks, *((key, repr(value)) for key, value in with_.items()))
    after = recipe_of({**with_, path: other}, ranks)
    assert at(after, target) == expected
    assert at(before, target) != expected


def test_the_table_has_every_field_and_few_are_refused() -> None:
    named = {row[0] for row in ROWS}
    assert len(named) == len(ROWS) and named <= set(FIELD_DEFAULTS)
    # what torchtitan 0.2.2 has beside the page
    beyond = {path.rpartition(".")[2] for path in set(FIELD_DEFAULTS) - named}
    assert beyond == {
        *(
            "num_workers",
            "persistent_workers",
            "pin_memory",
            "prefetch_factor",
            "mode",
            "context_parallel_load_balancer",
        ),
        *("pipeline_parallel_expert_parallel_overlap", "expert_parallel_comm_backend"),
    }
    assert sum(row[3] == REFUSED for row in ROWS) == 7 <= 8


def test_fields_of_a_file_stand_under_those_that_are_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "job.toml").write_text(
        '[optimizer]\nlr = 0.5\nbeta1 = 0.7\n[metrics]\nlog_freq = 3\n[training]\ndataset = "c4"\n'
    )
    trainer = TitanTrainer(job={"config_file": str(tmp_path / "job.toml")}, optimizer={"lr": 0.25})
    assert (trainer.optimizer.lr, trainer.optimizer.beta1) == (0.25, 0.7)
    assert trainer._translation.resolve(1).run.optimizer.beta1 == 0.7  # type: ignore[attr-defined]
    assert (
        "metrics.log_freq is ignored" in caplog.text
        and "training.dataset is ignored" in caplog.text
    )


@pytest.mark.parametrize(
    ("given", "path", "message", "hint"),
    [
        ({"optimizer": {"lr": -1}}, "optimizer.lr", "-1 is not above 0", None),
        (
            {"optimizer": {"learning_rate": 1}},
            "optimizer.learning_rate",
            "optimizer has no field learning_rate",
            None,
        ),
        (
            {"optimizer": {"beta3": 0.5}},
            "optimizer.beta3",
            "optimizer has no field beta3",
            "did you mean optimizer.beta",
        ),
        (
            {"training": 3},
            "training",
            "training is 3, not a mapping of its fields",
            "write training={...}",
        ),
        (
            {"training": {"seed": 0.5}},
            "training.seed",
            "expected a whole number, got the number 0.5",
            None,
        ),
        (
            {"model": {"flavor": "debugmodl"}},
            "model.flavor",
            "llama3 has no flavor 'debugmodl'",
            "did you mean 'debugmodel'?",
        ),
        (
            {"activation_checkpoint": {"mode": "sel"}},
            "activation_checkpoint.mode",
            "activation_checkpoint.mode is 'sel'",
            None,
        ),
        ({"use_dcp": 1}, "use_dcp", "use_dcp is 1, not a bool", None),
        (
            {"loss": "mse"},
            "loss",
            "loss is 'mse', which is not callable",
            "pass loss(logits, **targets)",
        ),
    ],
)
def test_a_wrong_field_is_a_problem_in_the_words_of_who_gave_it(
    given: dict[str, Any], path: str, message: str, hint: str | None
) -> None:
    with pytest.raises(ProblemsFound) as found:
        TitanTrainer(**given)
    [problem] = found.value.problems
    assert problem.path == tuple(path.split(".")) and message in problem.message
    assert hint is None or hint in str(problem.hint)
