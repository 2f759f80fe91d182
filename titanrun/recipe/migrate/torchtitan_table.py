"""Fields of torchtitan 0.2.2's configuration in its order, with default and migration.

docs/migration_torchtitan.md, the suggestions for unknown keys and `titanrun migrate --from
torchtitan` all read this table. Whether this version has a target is not written here: it is looked
up in the schema when a recipe is migrated.
"""

from titanrun.recipe.migrate import torchtitan_flux, torchtitan_streams
from titanrun.recipe.migrate import torchtitan_values as to
from titanrun.recipe.migrate.key_mapping import (
    SourceKey,
    ignore_key,
    keep_key,
    move_key,
    reject_key,
    reject_unless_default,
    when_above_one,
    when_above_zero,
    when_any,
    when_enabled,
)
from titanrun.recipe.migrate.torchtitan_quantize_keys import QUANTIZE_KEYS

PROFILING, SNAPSHOTS = (
    when_enabled("profiling.enable_profiling"),
    when_enabled("profiling.enable_memory_snapshot"),
)
TENSORBOARD, CHECKPOINTS, COMPILE = (
    when_enabled("metrics.enable_tensorboard"),
    when_enabled("checkpoint.enable"),
    when_enabled("compile.enable"),
)
# replica groups save in any case; what is loaded still depends on torchtitan's switch
SAVES = when_enabled("checkpoint.enable", implied_by="fault_tolerance.enable")
VALIDATION, GROUPS = when_enabled("validation.enable"), when_enabled("fault_tolerance.enable")
TENSOR, PIPELINE = (
    when_above_one("parallelism.tensor_parallel_degree"),
    when_above_one("parallelism.pipeline_parallel_degree"),
)
CONTEXT, EXPERT = (
    when_above_one("parallelism.context_parallel_degree"),
    when_above_one("parallelism.expert_parallel_degree"),
)
AC = "activation_checkpoint"
RECOMPUTING, SELECTIVE = (
    when_any(f"{AC}.mode", "selective", "full"),
    when_any(f"{AC}.mode", "selective"),
)
BUDGET, PER_OPERATION = (
    when_any(f"{AC}.mode", "memory_budget"),
    when_any(f"{AC}.selective_ac_option", "op"),
)
ESTIMATION = "only torchtitan's memory estimation script reads it; a training run does not"
NO_PLOT = "the cost of each budget is not plotted"
CODE = "recipes import nothing: an installed plug-in, listed in plugins, adds components"
RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it resumes, another run in it is an error"
)
DATASET_PATH = torchtitan_streams.convert_data_place
TRACE_FOLDER = "without a subfolder for each start: a run directory contains one run"
BATCHES = (
    "always the same batches, and the mean over their tokens; torchtitan continued in the stream "
    "and averaged batches"
)
AGREEING_GROUPS = (
    "one titanrun train starts the groups and their lighthouse on this machine; without "
    "semi_sync_method they agree before each step, whose sequences are dealt to those that take "
    "part, so that none is lost, and tokens, not groups, weigh alike"
)
PIPELINED = (
    "gradients are divided by the number of tokens, as without a pipeline; torchtitan 0.2.2 omits "
    "this, and clips larger ones"
)

JOB = (
    ignore_key("job.config_file", None, "the recipe is an argument of every command"),
    move_key("job.dump_folder", "./outputs", "dump_folder", how=RUN_DIRECTORY),
    move_key("job.description", "default job", "description"),
    move_key("job.print_config", False, "debug.print_config"),
    ignore_key(
        "job.save_config_file",
        None,
        "the run directory always contains the whole recipe, in resolved.yaml",
    ),
    reject_key("job.custom_config_module", "", CODE, convert=to.convert_custom_module),
)
PROFILER = (
    keep_key("profiling.enable_profiling", False, convert=to.convert_profiling_switch),
    keep_key("profiling.save_traces_folder", "profile_traces", needs=(PROFILING,)),
    keep_key("profiling.profile_freq", 10, needs=(PROFILING,)),
    keep_key("profiling.profiler_active", 1, needs=(PROFILING,)),
    keep_key("profiling.profiler_warmup", 3, needs=(PROFILING,)),
    keep_key("profiling.enable_memory_snapshot", False, convert=to.convert_profiling_switch),
    keep_key("profiling.save_memory_snapshot_folder", "memory_snapshot", needs=(SNAPSHOTS,)),
)
METRICS = (
    keep_key("metrics.log_freq", 10),
    move_key(
        "metrics.enable_tensorboard",
        False,
        "metrics.trackers[tensorboard]",
        convert=to.convert_torchtitan_tensorboard,
    ),
    keep_key("metrics.disable_color_printing", False),
    move_key(
        "metrics.save_tb_folder",
        "tb",
        "metrics.trackers[tensorboard].folder",
        how=TRACE_FOLDER,
        needs=(TENSORBOARD,),
    ),
    keep_key("metrics.save_for_all_ranks", False, convert=to.convert_profiling_switch),
    move_key(
        "metrics.enable_wandb",
        False,
        "metrics.trackers[wandb]",
        convert=to.convert_torchtitan_wandb,
    ),
)
MODEL = (
    keep_key("model.name", "llama3", convert=to.convert_family),
    keep_key("model.flavor", "debugmodel", convert=to.convert_flavor),
    keep_key("model.hf_assets_path", "./tests/assets/tokenizer", convert=to.convert_hf_assets_path),
    move_key(
        "model.tokenizer_path", None, "model.hf_assets_path", convert=to.convert_tokenizer_path
    ),
    move_key("model.converters", [], "converters", convert=to.convert_converters),
    keep_key("model.print_after_conversion", False),
)
OPTIMIZER = (
    keep_key("optimizer.name", "AdamW", convert=to.convert_optimizer_name),
    keep_key("optimizer.lr", 8e-4),
    keep_key("optimizer.beta1", 0.9),
    keep_key("optimizer.beta2", 0.95),
    keep_key("optimizer.eps", 1e-8),
    keep_key("optimizer.weight_decay", 0.1),
    keep_key("optimizer.implementation", "fused", convert=to.convert_optimizer_implementation),
    keep_key("optimizer.early_step_in_backward", False),
)
SCHEDULE = (
    keep_key("lr_scheduler.warmup_steps", 200, convert=to.convert_torchtitan_warmup),
    keep_key("lr_scheduler.total_steps", None),
    keep_key("lr_scheduler.decay_ratio", None),
    keep_key("lr_scheduler.decay_type", "linear", needs=(to.WHEN_DECAYING,)),
    keep_key("lr_scheduler.min_lr_factor", 0.0, needs=(to.WHEN_DECAYING,)),
)
TRAINING = (
    move_key(
        "training.dataset",
        "c4_test",
        "training.dataset.name",
        convert=torchtitan_streams.convert_streamed_dataset,
    ),
    move_key("training.dataset_path", None, "training.dataset.path", convert=DATASET_PATH),
    keep_key("training.local_batch_size", 8, convert=to.convert_local_batch_size),
    keep_key("training.global_batch_size", -1, convert=to.convert_global_batch_size),
    keep_key("training.seq_len", 2048, convert=torchtitan_flux.convert_seq_len),
    keep_key("training.max_norm", 1.0),
    keep_key("training.steps", 10000),
    keep_key("training.enable_cpu_offload", False),
    keep_key("training.dtype", "float32"),
    keep_key("training.mixed_precision_param", "bfloat16"),
    keep_key("training.mixed_precision_reduce", "float32"),
    keep_key("training.gc_freq", 50),
    keep_key("training.gc_debug", False),
    keep_key("training.dataloader.num_workers", 0, convert=torchtitan_streams.convert_num_workers),
    keep_key(
        "training.dataloader.persistent_workers",
        False,
        needs=(when_above_zero("training.dataloader.num_workers"),),
    ),
    keep_key("training.dataloader.pin_memory", False),
    keep_key(
        "training.dataloader.prefetch_factor",
        None,
        needs=(when_above_zero("training.dataloader.num_workers"),),
    ),
)
PARALLELISM = (
    keep_key("parallelism.data_parallel_replicate_degree", 1),
    keep_key("parallelism.data_parallel_shard_degree", -1, convert=to.convert_negative_to_auto),
    keep_key("parallelism.fsdp_reshard_after_forward", "default"),
    keep_key("parallelism.tensor_parallel_degree", 1),
    keep_key("parallelism.disable_loss_parallel", False, needs=(TENSOR,)),
    keep_key("parallelism.enable_async_tensor_parallel", False, needs=(TENSOR,)),
    keep_key("parallelism.pipeline_parallel_degree", 1, how=PIPELINED, convert=to.convert_degree),
    keep_key("parallelism.module_fqns_per_model_part", None, needs=(PIPELINE,)),
    keep_key("parallelism.pipeline_parallel_first_stage_less_layers", 1, needs=(PIPELINE,)),
    keep_key("parallelism.pipeline_parallel_last_stage_less_layers", 1, needs=(PIPELINE,)),
    keep_key("parallelism.pipeline_parallel_layers_per_stage", None, needs=(PIPELINE,)),
    keep_key("parallelism.pipeline_parallel_schedule", "1F1B", needs=(PIPELINE,)),
    keep_key(
        "parallelism.pipeline_parallel_schedule_csv",
        "",
        convert=to.convert_empty_to_null,
        needs=(PIPELINE,),
    ),
    keep_key("parallelism.pipeline_parallel_microbatch_size", 1, needs=(PIPELINE,)),
    keep_key(
        "parallelism.pipeline_parallel_expert_parallel_overlap", True, needs=(PIPELINE, EXPERT)
    ),
    keep_key("parallelism.context_parallel_degree", 1),
    keep_key("parallelism.context_parallel_load_balancer", "headtail", needs=(CONTEXT,)),
    keep_key(
        "parallelism.context_parallel_rotate_method",
        "allgather",
        how="in training too; torchtitan 0.2.2 uses it in validation only",
        needs=(CONTEXT,),
    ),
    keep_key("parallelism.expert_parallel_degree", 1),
    keep_key("parallelism.expert_tensor_parallel_degree", 1, needs=(EXPERT,)),
    keep_key("parallelism.expert_parallel_comm_backend", "standard", needs=(EXPERT,)),
)
CHECKPOINT = (
    keep_key("checkpoint.enable", False, convert=to.convert_checkpoint_switch),
    reject_key(
        "checkpoint.enable_ft_dataloader_checkpoints",
        True,
        "a group that returns takes over the position in the data, so that no sequence is trained "
        "twice",
        needs=(GROUPS,),
        convert=reject_unless_default,
    ),
    keep_key("checkpoint.folder", "checkpoint", needs=(SAVES,)),
    keep_key("checkpoint.interval", 500, needs=(SAVES,)),
    keep_key("checkpoint.initial_load_path", None, needs=(CHECKPOINTS,)),
    keep_key("checkpoint.initial_load_model_only", True, needs=(CHECKPOINTS,)),
    keep_key("checkpoint.initial_load_in_hf", False, needs=(CHECKPOINTS,)),
    keep_key(
        "checkpoint.initial_load_in_hf_quantized",
        False,
        needs=(CHECKPOINTS, when_enabled("checkpoint.initial_load_in_hf")),
    ),
    keep_key("checkpoint.last_save_model_only", True, needs=(SAVES,)),
    keep_key(
        "checkpoint.last_save_in_hf",
        False,
        how="a folder hf next to the checkpoints, and the last checkpoint is written too",
        convert=to.convert_switch,
        needs=(SAVES,),
    ),
    keep_key(
        "checkpoint.export_dtype",
        "float32",
        how="the dtype of the exported folder only; checkpoints keep the dtype of training",
        convert=to.convert_export_dtype,
        needs=(SAVES, when_enabled("checkpoint.last_save_model_only")),
    ),
    keep_key("checkpoint.async_mode", "disabled", convert=to.convert_async_mode, needs=(SAVES,)),
    keep_key(
        "checkpoint.keep_latest_k",
        10,
        how="includes the last save, in addition to which torchtitan keeps one more; 1 is allowed",
        needs=(SAVES,),
    ),
    keep_key(
        "checkpoint.load_step", -1, convert=to.convert_minus_one_to_null, needs=(CHECKPOINTS,)
    ),
    keep_key("checkpoint.exclude_from_loading", [], needs=(CHECKPOINTS,)),
    keep_key("checkpoint.enable_first_step_checkpoint", False, needs=(CHECKPOINTS,)),
    keep_key("checkpoint.create_seed_checkpoint", False, needs=(CHECKPOINTS,)),
    keep_key("checkpoint.load_only", False, needs=(CHECKPOINTS,)),
)
ACTIVATION_CHECKPOINT = (
    move_key(f"{AC}.mode", "selective", f"{AC}.name"),
    keep_key(f"{AC}.selective_ac_option", "2", convert=to.convert_zero_to_one, needs=(SELECTIVE,)),
    keep_key(
        f"{AC}.per_op_sac_force_recompute_mm_shapes_by_fqns",
        ["moe.router.gate"],
        needs=(SELECTIVE, PER_OPERATION),
    ),
    keep_key(f"{AC}.early_stop", False, needs=(RECOMPUTING,)),
    keep_key(f"{AC}.memory_budget", 0.5, needs=(BUDGET,)),
    ignore_key(f"{AC}.visualize_memory_budget_pareto", False, NO_PLOT, needs=(BUDGET,)),
    keep_key(f"{AC}.preserve_rng_state", True, needs=(RECOMPUTING,)),
    keep_key(f"{AC}.determinism_check", "default", needs=(RECOMPUTING,)),
    keep_key(f"{AC}.debug", False, needs=(RECOMPUTING,)),
)
COMPILER = (
    keep_key("compile.enable", False),
    keep_key("compile.components", ["model", "loss"], needs=(COMPILE,)),
    keep_key("compile.backend", "inductor", needs=(COMPILE,)),
)
COMM = (
    keep_key("comm.init_timeout_seconds", 300),
    keep_key("comm.train_timeout_seconds", 100),
    keep_key("comm.trace_buf_size", 20000),
    keep_key(
        "comm.save_traces_folder", "comm_traces", needs=(when_above_zero("comm.trace_buf_size"),)
    ),
    keep_key(
        "comm.save_traces_file_prefix", "rank_", needs=(when_above_zero("comm.trace_buf_size"),)
    ),
    keep_key("comm.mode", "default"),
)
MEMORY_ESTIMATION = (
    ignore_key("memory_estimation.enable", False, ESTIMATION),
    ignore_key("memory_estimation.disable_fake_mode", False, ESTIMATION),
)
FAULT_TOLERANCE = (
    keep_key("fault_tolerance.enable", False, how=AGREEING_GROUPS, convert=to.convert_switch),
    ignore_key(
        "fault_tolerance.process_group",
        "gloo",
        "groups communicate over gloo, with the same sums as over NCCL",
        needs=(GROUPS,),
        convert=to.convert_process_group,
    ),
    keep_key("fault_tolerance.process_group_timeout_ms", 10000, needs=(GROUPS,)),
    ignore_key(
        "fault_tolerance.replica_id",
        0,
        "one titanrun train starts all groups on this machine and numbers them; where each is on a "
        "machine of its own, set fault_tolerance.replica_id and fault_tolerance.lighthouse",
        needs=(GROUPS,),
    ),
    keep_key("fault_tolerance.group_size", 0, convert=to.convert_group_size, needs=(GROUPS,)),
    keep_key("fault_tolerance.min_replica_size", 1, needs=(GROUPS,)),
    keep_key(
        "fault_tolerance.semi_sync_method",
        None,
        how=to.SYNCED_GROUPS,
        convert=to.convert_switch,
        needs=(GROUPS,),
    ),
)
EXPERIMENTAL = (
    reject_key("experimental.custom_import", "", CODE, convert=to.reject_unless_empty),
    reject_key("experimental.custom_args_module", "", CODE, convert=to.convert_custom_module),
)
VALIDATE = (
    keep_key("validation.enable", False, how=BATCHES, convert=to.convert_validation_switch),
    move_key(
        "validation.dataset",
        "c4_validation",
        "validation.dataset.name",
        convert=torchtitan_streams.convert_streamed_dataset,
        needs=(VALIDATION,),
    ),
    move_key(
        "validation.dataset_path",
        None,
        "validation.dataset.path",
        convert=DATASET_PATH,
        needs=(VALIDATION,),
    ),
    keep_key("validation.local_batch_size", 8, needs=(VALIDATION,)),
    keep_key(
        "validation.seq_len", 2048, convert=torchtitan_flux.convert_seq_len, needs=(VALIDATION,)
    ),
    keep_key("validation.freq", 10, how="the last step is validated too", needs=(VALIDATION,)),
    keep_key("validation.steps", -1, convert=to.convert_minus_one_to_null, needs=(VALIDATION,)),
    keep_key(
        "validation.dataloader.num_workers",
        0,
        convert=torchtitan_streams.convert_num_workers,
        needs=(VALIDATION,),
    ),
    keep_key(
        "validation.dataloader.persistent_workers",
        False,
        needs=(VALIDATION, when_above_zero("validation.dataloader.num_workers")),
    ),
    keep_key("validation.dataloader.pin_memory", False, needs=(VALIDATION,)),
    keep_key(
        "validation.dataloader.prefetch_factor",
        None,
        needs=(VALIDATION, when_above_zero("validation.dataloader.num_workers")),
    ),
)
DEBUG = (
    keep_key("debug.seed", None, convert=to.convert_torchtitan_seed),
    keep_key("debug.deterministic", False),
    keep_key("debug.deterministic_warn_only", False, needs=(when_enabled("debug.deterministic"),)),
    keep_key("debug.moe_force_load_balance", False),
)

TORCHTITAN_KEYS: tuple[SourceKey, ...] = (
    *JOB,
    *PROFILER,
    *METRICS,
    *MODEL,
    *OPTIMIZER,
    *SCHEDULE,
    *TRAINING,
    *PARALLELISM,
    *CHECKPOINT,
    *ACTIVATION_CHECKPOINT,
    *COMPILER,
    *QUANTIZE_KEYS,
    *COMM,
    *MEMORY_ESTIMATION,
    *FAULT_TOLERANCE,
    *EXPERIMENTAL,
    *VALIDATE,
    *DEBUG,
)
