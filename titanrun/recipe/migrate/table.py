"""The leaves of torchtitan 0.2.2's configuration in its order, each with its default and what becomes of it.

docs/migration.md, the suggestions for unknown keys and `titanrun migrate --from torchtitan` all read this table. Whether a target is
there in this version is not written here: it is looked up among the configs when a recipe is migrated.
"""

from titanrun.recipe.migrate import conversions as to
from titanrun.recipe.migrate import pictures
from titanrun.recipe.migrate.keys import (
    TORCHFT,
    Key,
    above_one,
    above_zero,
    listed,
    moved,
    on,
    one_of,
    refused,
    same,
    torchft,
    unread,
)

PROFILING, SNAPSHOTS = on("profiling.enable_profiling"), on("profiling.enable_memory_snapshot")
TENSORBOARD, CHECKPOINTS, COMPILE = (
    on("metrics.enable_tensorboard"),
    on("checkpoint.enable"),
    on("compile.enable"),
)
VALIDATION = on("validation.enable")
TENSOR, PIPELINE = (
    above_one("parallelism.tensor_parallel_degree"),
    above_one("parallelism.pipeline_parallel_degree"),
)
CONTEXT, EXPERT = (
    above_one("parallelism.context_parallel_degree"),
    above_one("parallelism.expert_parallel_degree"),
)
AC = "activation_checkpoint"
RECOMPUTING, SELECTIVE = (
    one_of(f"{AC}.mode", "selective", "full"),
    one_of(f"{AC}.mode", "selective"),
)
BUDGET, PER_OPERATION = (
    one_of(f"{AC}.mode", "memory_budget"),
    one_of(f"{AC}.selective_ac_option", "op"),
)
FLOAT8 = listed("model.converters", "quantize.linear.float8", "float8")
FLOAT8_GROUPED = listed("model.converters", "quantize.grouped_mm.float8")
MX, MX_GROUPED = (
    listed("model.converters", "quantize.linear.mx", "mx"),
    listed("model.converters", "quantize.grouped_mm.mx"),
)
ESTIMATION = "only torchtitan's memory estimation script reads it; a training run does not"
NO_PICTURES = "what each budget would cost is not drawn"
CODE = "recipes import nothing: an installed plug-in, listed under plugins, adds components"
RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it goes on, another run in it is an error"
)
TRACE_FOLDER = "without a folder for each start below it: a run directory holds one run"
BATCHES = "always the same batches, and the mean over their tokens; torchtitan went on in the stream and averaged batches"
PIPELINED = "gradients are divided by the number of tokens, as without a pipeline; torchtitan 0.2.2 forgets to, and clips larger ones"

JOB = (
    unread("job.config_file", None, "the recipe is an argument of every command"),
    moved("job.dump_folder", "./outputs", "dump_folder", how=RUN_DIRECTORY),
    moved("job.description", "default job", "description"),
    moved("job.print_config", False, "debug.print_config"),
    unread(
        "job.save_config_file",
        None,
        "the run directory always has the whole recipe, in resolved.yaml",
    ),
    refused("job.custom_config_module", "", CODE, convert=to.custom_module),
)
PROFILER = (
    same("profiling.enable_profiling", False),
    same("profiling.save_traces_folder", "profile_traces", needs=(PROFILING,)),
    same("profiling.profile_freq", 10, needs=(PROFILING,)),
    same("profiling.profiler_active", 1, needs=(PROFILING,)),
    same("profiling.profiler_warmup", 3, needs=(PROFILING,)),
    same("profiling.enable_memory_snapshot", False),
    same("profiling.save_memory_snapshot_folder", "memory_snapshot", needs=(SNAPSHOTS,)),
)
METRICS = (
    same("metrics.log_freq", 10),
    moved(
        "metrics.enable_tensorboard", False, "metrics.trackers[tensorboard]", convert=to.tensorboard
    ),
    same("metrics.disable_color_printing", False),
    moved(
        "metrics.save_tb_folder",
        "tb",
        "metrics.trackers[tensorboard].folder",
        how=TRACE_FOLDER,
        needs=(TENSORBOARD,),
    ),
    same("metrics.save_for_all_ranks", False),
    moved("metrics.enable_wandb", False, "metrics.trackers[wandb]", convert=to.wandb),
)
MODEL = (
    same("model.name", "llama3", convert=to.family),
    same("model.flavor", "debugmodel", convert=to.flavor),
    same("model.hf_assets_path", "./tests/assets/tokenizer", convert=to.assets),
    moved("model.tokenizer_path", None, "model.hf_assets_path", convert=to.tokenizer_path),
    moved("model.converters", [], "converters", convert=to.converters),
    same("model.print_after_conversion", False),
)
OPTIMIZER = (
    same("optimizer.name", "AdamW", convert=to.optimizer_name),
    same("optimizer.lr", 8e-4),
    same("optimizer.beta1", 0.9),
    same("optimizer.beta2", 0.95),
    same("optimizer.eps", 1e-8),
    same("optimizer.weight_decay", 0.1),
    same("optimizer.implementation", "fused", convert=to.kernel),
    same("optimizer.early_step_in_backward", False),
)
SCHEDULE = (
    same("lr_scheduler.warmup_steps", 200, convert=to.warmup),
    same("lr_scheduler.total_steps", None),
    same("lr_scheduler.decay_ratio", None),
    same("lr_scheduler.decay_type", "linear", needs=(to.DECAYING,)),
    same("lr_scheduler.min_lr_factor", 0.0, needs=(to.DECAYING,)),
)
TRAINING = (
    moved("training.dataset", "c4_test", "training.dataset.name", convert=pictures.dataset),
    moved("training.dataset_path", None, "training.dataset.path"),
    same("training.local_batch_size", 8),
    same("training.global_batch_size", -1, convert=to.negative_is_auto),
    same("training.seq_len", 2048, convert=pictures.row_length),
    same("training.max_norm", 1.0),
    same("training.steps", 10000),
    same("training.enable_cpu_offload", False),
    same("training.dtype", "float32"),
    same("training.mixed_precision_param", "bfloat16"),
    same("training.mixed_precision_reduce", "float32"),
    same("training.gc_freq", 50),
    same("training.gc_debug", False),
    same("training.dataloader.num_workers", 0),
    same(
        "training.dataloader.persistent_workers",
        False,
        needs=(above_zero("training.dataloader.num_workers"),),
    ),
    same("training.dataloader.pin_memory", False),
    same(
        "training.dataloader.prefetch_factor",
        None,
        needs=(above_zero("training.dataloader.num_workers"),),
    ),
)
PARALLELISM = (
    same("parallelism.data_parallel_replicate_degree", 1),
    same("parallelism.data_parallel_shard_degree", -1, convert=to.negative_is_auto),
    same("parallelism.fsdp_reshard_after_forward", "default"),
    same("parallelism.tensor_parallel_degree", 1),
    same("parallelism.disable_loss_parallel", False, needs=(TENSOR,)),
    same("parallelism.enable_async_tensor_parallel", False, needs=(TENSOR,)),
    same("parallelism.pipeline_parallel_degree", 1, how=PIPELINED, convert=to.degree),
    same("parallelism.module_fqns_per_model_part", None, needs=(PIPELINE,)),
    same("parallelism.pipeline_parallel_first_stage_less_layers", 1, needs=(PIPELINE,)),
    same("parallelism.pipeline_parallel_last_stage_less_layers", 1, needs=(PIPELINE,)),
    same("parallelism.pipeline_parallel_layers_per_stage", None, needs=(PIPELINE,)),
    same("parallelism.pipeline_parallel_schedule", "1F1B", needs=(PIPELINE,)),
    same(
        "parallelism.pipeline_parallel_schedule_csv",
        "",
        convert=to.empty_is_null,
        needs=(PIPELINE,),
    ),
    same("parallelism.pipeline_parallel_microbatch_size", 1, needs=(PIPELINE,)),
    same("parallelism.pipeline_parallel_expert_parallel_overlap", True, needs=(PIPELINE, EXPERT)),
    same("parallelism.context_parallel_degree", 1),
    same("parallelism.context_parallel_load_balancer", "headtail", needs=(CONTEXT,)),
    same(
        "parallelism.context_parallel_rotate_method",
        "allgather",
        how="in training too; torchtitan 0.2.2 reads it in validation only",
        needs=(CONTEXT,),
    ),
    same("parallelism.expert_parallel_degree", 1),
    same("parallelism.expert_tensor_parallel_degree", 1, needs=(EXPERT,)),
    same("parallelism.expert_parallel_comm_backend", "standard", needs=(EXPERT,)),
)
CHECKPOINT = (
    same("checkpoint.enable", False),
    torchft("checkpoint.enable_ft_dataloader_checkpoints", True),
    same("checkpoint.folder", "checkpoint", needs=(CHECKPOINTS,)),
    same("checkpoint.interval", 500, needs=(CHECKPOINTS,)),
    same("checkpoint.initial_load_path", None, needs=(CHECKPOINTS,)),
    same("checkpoint.initial_load_model_only", True, needs=(CHECKPOINTS,)),
    same("checkpoint.initial_load_in_hf", False, needs=(CHECKPOINTS,)),
    same(
        "checkpoint.initial_load_in_hf_quantized",
        False,
        needs=(CHECKPOINTS, on("checkpoint.initial_load_in_hf")),
    ),
    same("checkpoint.last_save_model_only", True, needs=(CHECKPOINTS,)),
    same(
        "checkpoint.last_save_in_hf",
        False,
        how="a folder hf beside the checkpoints, and the last checkpoint is written too",
        convert=to.switch,
        needs=(CHECKPOINTS,),
    ),
    same(
        "checkpoint.export_dtype",
        "float32",
        how="the type of the exported folder only; checkpoints keep the type of training",
        convert=to.export_dtype,
        needs=(CHECKPOINTS, on("checkpoint.last_save_model_only")),
    ),
    same("checkpoint.async_mode", "disabled", convert=to.lower_case, needs=(CHECKPOINTS,)),
    same(
        "checkpoint.keep_latest_k",
        10,
        how="counted with the last save, beside which torchtitan keeps one more; 1 is allowed",
        needs=(CHECKPOINTS,),
    ),
    same("checkpoint.load_step", -1, convert=to.minus_one_is_null, needs=(CHECKPOINTS,)),
    same("checkpoint.exclude_from_loading", [], needs=(CHECKPOINTS,)),
    same("checkpoint.enable_first_step_checkpoint", False, needs=(CHECKPOINTS,)),
    same("checkpoint.create_seed_checkpoint", False, needs=(CHECKPOINTS,)),
    same("checkpoint.load_only", False, needs=(CHECKPOINTS,)),
)
ACTIVATION_CHECKPOINT = (
    moved(f"{AC}.mode", "selective", f"{AC}.name"),
    same(f"{AC}.selective_ac_option", "2", convert=to.zero_is_one, needs=(SELECTIVE,)),
    same(
        f"{AC}.per_op_sac_force_recompute_mm_shapes_by_fqns",
        ["moe.router.gate"],
        needs=(SELECTIVE, PER_OPERATION),
    ),
    same(f"{AC}.early_stop", False, needs=(RECOMPUTING,)),
    same(f"{AC}.memory_budget", 0.5, needs=(BUDGET,)),
    unread(f"{AC}.visualize_memory_budget_pareto", False, NO_PICTURES, needs=(BUDGET,)),
    same(f"{AC}.preserve_rng_state", True, needs=(RECOMPUTING,)),
    same(f"{AC}.determinism_check", "default", needs=(RECOMPUTING,)),
    same(f"{AC}.debug", False, needs=(RECOMPUTING,)),
)
COMPILER = (
    same("compile.enable", False),
    same("compile.components", ["model", "loss"], needs=(COMPILE,)),
    same("compile.backend", "inductor", needs=(COMPILE,)),
)
QUANTIZE = (
    moved(
        "quantize.linear.float8.enable_fsdp_float8_all_gather",
        False,
        "converters[float8_linear].enable_fsdp_float8_all_gather",
        needs=(FLOAT8,),
    ),
    moved(
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
        False,
        "converters[float8_linear].precompute_float8_dynamic_scale_for_fsdp",
        needs=(FLOAT8, on("quantize.linear.float8.enable_fsdp_float8_all_gather")),
    ),
    moved(
        "quantize.linear.float8.recipe_name",
        None,
        "converters[float8_linear].recipe_name",
        needs=(FLOAT8,),
    ),
    moved(
        "quantize.linear.float8.filter_fqns",
        [],
        "converters[float8_linear].filter_fqns",
        convert=to.filtered_modules,
        needs=(FLOAT8,),
    ),
    moved(
        "quantize.linear.float8.emulate",
        False,
        "converters[float8_linear].emulate",
        needs=(FLOAT8,),
    ),
    moved(
        "quantize.grouped_mm.float8.fqns",
        [],
        "converters[float8_grouped_mm].fqns",
        convert=to.word_list,
        needs=(FLOAT8_GROUPED,),
    ),
    moved(
        "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
        "triton",
        "converters[mxfp8_linear].mxfp8_dim1_cast_kernel_choice",
        needs=(MX,),
    ),
    moved(
        "quantize.linear.mx.recipe_name",
        "mxfp8_cublas",
        "converters[mxfp8_linear].recipe_name",
        needs=(MX,),
    ),
    moved(
        "quantize.linear.mx.filter_fqns",
        ["output"],
        "converters[mxfp8_linear].filter_fqns",
        convert=to.module_names,
        needs=(MX,),
    ),
    moved(
        "quantize.grouped_mm.mx.recipe_name",
        "mxfp8",
        "converters[mxfp8_grouped_mm].recipe_name",
        needs=(MX_GROUPED,),
    ),
    moved(
        "quantize.grouped_mm.mx.fqns",
        [],
        "converters[mxfp8_grouped_mm].fqns",
        convert=to.word_list,
        needs=(MX_GROUPED,),
    ),
)
COMM = (
    same("comm.init_timeout_seconds", 300),
    same("comm.train_timeout_seconds", 100),
    same("comm.trace_buf_size", 20000),
    same("comm.save_traces_folder", "comm_traces", needs=(above_zero("comm.trace_buf_size"),)),
    same("comm.save_traces_file_prefix", "rank_", needs=(above_zero("comm.trace_buf_size"),)),
    same("comm.mode", "default"),
)
MEMORY_ESTIMATION = (
    unread("memory_estimation.enable", False, ESTIMATION),
    unread("memory_estimation.disable_fake_mode", False, ESTIMATION),
)
FAULT_TOLERANCE = (
    refused("fault_tolerance.enable", False, TORCHFT),
    torchft("fault_tolerance.process_group", "gloo"),
    torchft("fault_tolerance.process_group_timeout_ms", 10000),
    torchft("fault_tolerance.replica_id", 0),
    torchft("fault_tolerance.group_size", 0),
    torchft("fault_tolerance.min_replica_size", 1),
    torchft("fault_tolerance.semi_sync_method", None),
)
EXPERIMENTAL = (
    refused("experimental.custom_import", "", CODE, convert=to.empty_is_refused),
    refused("experimental.custom_args_module", "", CODE, convert=to.custom_module),
)
VALIDATE = (
    same("validation.enable", False, how=BATCHES, convert=to.switch),
    moved(
        "validation.dataset",
        "c4_validation",
        "validation.dataset.name",
        convert=pictures.dataset,
        needs=(VALIDATION,),
    ),
    moved("validation.dataset_path", None, "validation.dataset.path", needs=(VALIDATION,)),
    same("validation.local_batch_size", 8, needs=(VALIDATION,)),
    same("validation.seq_len", 2048, convert=pictures.row_length, needs=(VALIDATION,)),
    same("validation.freq", 10, how="the last step is validated too", needs=(VALIDATION,)),
    same("validation.steps", -1, convert=to.minus_one_is_null, needs=(VALIDATION,)),
    same("validation.dataloader.num_workers", 0, needs=(VALIDATION,)),
    same(
        "validation.dataloader.persistent_workers",
        False,
        needs=(VALIDATION, above_zero("validation.dataloader.num_workers")),
    ),
    same("validation.dataloader.pin_memory", False, needs=(VALIDATION,)),
    same(
        "validation.dataloader.prefetch_factor",
        None,
        needs=(VALIDATION, above_zero("validation.dataloader.num_workers")),
    ),
)
DEBUG = (
    same("debug.seed", None, convert=to.seed),
    same("debug.deterministic", False),
    same("debug.deterministic_warn_only", False, needs=(on("debug.deterministic"),)),
    same("debug.moe_force_load_balance", False),
)

CORE: tuple[Key, ...] = (
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
    *QUANTIZE,
    *COMM,
    *MEMORY_ESTIMATION,
    *FAULT_TOLERANCE,
    *EXPERIMENTAL,
    *VALIDATE,
    *DEBUG,
)
