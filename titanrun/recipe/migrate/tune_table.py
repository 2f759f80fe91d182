"""The keys of torchtune 0.6.1's configurations for full and LoRA fine-tuning and DPO, and what becomes of each.

Which keys there are was read from its recipes and from the signatures of the components that its configurations name.
"""

from titanrun.recipe.migrate import tune_data as data
from titanrun.recipe.migrate import tune_model as model
from titanrun.recipe.migrate import tune_run as run
from titanrun.recipe.migrate.keys import Key, moved, on, refused, unread

RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it goes on, another run in it is an error"
)
OF_FOLDER = "tokenizer and chat template are those in the model's folder, model.hf_assets_path"
PROMPTS = "a chat template does this: name a file with one under training.dataset.template"
CODE = "a recipe holds no code: filter the files"
WEIGHTS = "config.json in the folder says it"
KNOWN = "the model is known by its name"
INSIDE = "everything is written inside the run directory"
CHOSEN = "the accelerator that is there is used, else the CPU"
TRACE = "traces hold what the profiler records by default"
DISTILLED = "titanrun has no distillation"
QUANTISED = "quantisation in training is a converter, qat, with settings of its own"
OFFLOAD = "activations stay on the device; enable_activation_checkpointing keeps fewer"
PLAN = "each family has its own plan"
REFERENCE = "DPO compares with the model as it was when the run began"
ADAPTERS = "adapters of another run cannot be loaded: merge them into the weights first"
PROFILING = on("profiler.enabled")


def sized(path: str, target: str) -> Key:
    """A size of a model that is built from its sizes."""
    return moved(path, None, target, convert=model.size)


OUTPUT = (moved("output_dir", None, "dump_folder", how=RUN_DIRECTORY),)
TOKENIZER = (
    unread("tokenizer._component_", None, OF_FOLDER),
    unread("tokenizer.path", None, OF_FOLDER),
    unread("tokenizer.merges_file", None, OF_FOLDER),
    unread("tokenizer.vocab_path", None, OF_FOLDER),
    unread("tokenizer.merges_path", None, OF_FOLDER),
    unread("tokenizer.special_tokens_path", None, OF_FOLDER),
    refused("tokenizer.prompt_template", None, PROMPTS, convert=run.refused_if_on),
    moved("tokenizer.max_seq_len", None, "training.seq_len", convert=data.length),
)
DATA = (
    refused("dataset", None, "several data sets: write them under a dataset: mixture"),
    moved("dataset._component_", None, "training.dataset", convert=data.dataset),
    moved("dataset.source", None, "training.dataset.path", convert=data.source),
    moved("dataset.data_files", None, "training.dataset.path", convert=data.data_files),
    moved("dataset.packed", False, "training.dataset.packing", convert=data.packed),
    moved("dataset.train_on_input", None, "training.dataset.train_on", convert=data.trained),
    moved("dataset.conversation_column", None, "training.dataset.column", convert=data.column),
    moved("dataset.conversation_style", None, "training.dataset.layout", convert=data.style),
    moved("dataset.column_map", None, "training.dataset.prompt_column", convert=data.columns),
    moved("dataset.column", None, "training.dataset.column", convert=data.column),
    moved("dataset.add_eos", True, "training.dataset.add_eos", needs=(data.TEXT,)),
    unread("dataset.split_across_pack", True, "dataset.packed says it"),
    refused("dataset.new_system_prompt", None, PROMPTS, convert=run.refused_if_on),
    refused("dataset.filter_fn", None, CODE, convert=run.refused_if_on),
    refused("dataset.split", "train", CODE, convert=data.split),
    unread("dataset.subset", None, "the files hold one subset"),
    unread("dataset.name", None, "the files hold one subset"),
    unread("dataset.data_dir", None, "the files lie where path says"),
    unread("dataset.max_seq_len", None, "tokenizer.max_seq_len says it"),
    moved("seed", None, "debug.seed", convert=run.seed),
    moved("shuffle", True, "training.dataset.shuffle", convert=run.shuffled),
    refused("collate_fn", None, CODE, convert=run.collate),
)
MODEL = (
    moved("model._component_", None, "model.name", convert=model.model),
    moved(
        "model.lora_attn_modules", None, "converters[lora].target_modules", convert=model.targets
    ),
    moved(
        "model.apply_lora_to_mlp", False, "converters[lora].target_modules", convert=model.targets
    ),
    moved(
        "model.apply_lora_to_output",
        False,
        "converters[lora].target_modules",
        convert=model.targets,
    ),
    moved("model.lora_rank", None, "converters[lora].rank", convert=model.of_adapter("rank", 8)),
    moved(
        "model.lora_alpha", None, "converters[lora].alpha", convert=model.of_adapter("alpha", 16.0)
    ),
    moved(
        "model.lora_dropout",
        None,
        "converters[lora].dropout",
        convert=model.of_adapter("dropout", 0.0),
    ),
    moved("model.quantize_base", False, "converters[qlora]", convert=model.quantised),
    refused(
        "model.use_dora",
        False,
        "adapters have no magnitudes of their own",
        convert=run.refused_if_on,
    ),
    sized("model.vocab_size", "model.vocab_size"),
    sized("model.num_layers", "model.n_layers"),
    sized("model.num_heads", "model.n_heads"),
    sized("model.num_kv_heads", "model.n_kv_heads"),
    sized("model.embed_dim", "model.dim"),
    sized("model.max_seq_len", "model.max_seq_len"),
    moved("model.intermediate_dim", None, "model.feed_forward.hidden_dim", convert=model.width),
    sized("model.norm_eps", "model.norm_eps"),
    sized("model.rope_base", "model.rope.theta"),
    moved("model.scale_factor", None, "model.rope.scaling.factor", convert=model.scale),
    unread("model.tie_word_embeddings", None, WEIGHTS),
    refused("model.attn_dropout", 0.0, "attention drops nothing", convert=run.refused_if_on),
)
CHECKPOINTS = (
    moved(
        "checkpointer._component_", None, "checkpoint.initial_load_in_hf", convert=run.checkpointer
    ),
    moved("checkpointer.checkpoint_dir", None, "model.hf_assets_path"),
    unread("checkpointer.checkpoint_files", None, "all weights of the folder are read"),
    unread("checkpointer.recipe_checkpoint", None, "a run that goes on finds its own state"),
    refused("checkpointer.adapter_checkpoint", None, ADAPTERS, convert=run.refused_if_on),
    unread("checkpointer.output_dir", None, INSIDE),
    unread("checkpointer.model_type", None, KNOWN),
    unread("checkpointer.safe_serialization", True, "weights are written as safetensors"),
    unread("checkpointer.resume_from_checkpoint", False, "a run that goes on finds its own state"),
    unread(
        "checkpointer.should_load_recipe_state", False, "a run that goes on finds its own state"
    ),
    refused("resume_from_checkpoint", False, "", convert=run.resume),
    moved(
        "save_adapter_weights_only", False, "checkpoint.adapters_only", convert=run.adapters_only
    ),
    moved("enable_async_checkpointing", False, "checkpoint.async_mode", convert=run.asynchronous),
    unread("ref_checkpointer", None, REFERENCE),
)
OPTIMIZER = (
    moved("optimizer._component_", None, "optimizer.name", convert=run.optimizer),
    moved("optimizer.lr", None, "optimizer.lr"),
    moved("optimizer.weight_decay", None, "optimizer.weight_decay", convert=run.weight_decay),
    moved("optimizer.betas", None, "optimizer.beta2", convert=run.betas),
    moved("optimizer.eps", 1e-8, "optimizer.eps", needs=(run.ADAPTIVE,)),
    moved("optimizer.fused", None, "optimizer.implementation", convert=run.fused),
    unread("optimizer.foreach", None, "optimizer.implementation chooses the kernels"),
    moved("optimizer.momentum", 0.0, "optimizer.momentum", needs=(run.SGD,)),
    moved("optimizer.dampening", 0.0, "optimizer.dampening", needs=(run.SGD,)),
    moved("optimizer.nesterov", False, "optimizer.nesterov", needs=(run.SGD,)),
    refused(
        "optimizer.amsgrad",
        False,
        "no optimizer of titanrun keeps the largest moment",
        convert=run.refused_if_on,
    ),
    refused("optimizer.maximize", False, "a loss is made smaller", convert=run.refused_if_on),
    unread("optimizer.capturable", False, "titanrun captures no CUDA graphs"),
    unread("optimizer.differentiable", False, "steps are not differentiated"),
    moved("optimizer_in_bwd", False, "optimizer.early_step_in_backward"),
    moved("clip_grad_norm", None, "training.max_norm", convert=run.norm),
    moved("lr_scheduler._component_", None, "lr_scheduler.name", convert=run.schedule),
    moved("lr_scheduler.num_warmup_steps", None, "lr_scheduler.warmup_steps"),
    refused("lr_scheduler.num_cycles", 0.5, "", convert=run.cycles),
    unread("lr_scheduler.last_epoch", -1, "a run that goes on finds its own state"),
    moved("loss._component_", None, "loss.name", convert=run.loss),
    moved("loss.num_output_chunks", None, "loss.num_chunks", convert=run.chunks),
    unread("loss.ignore_index", -100, "what does not count is known by its place"),
    moved("loss.beta", None, "loss.beta", convert=run.of_dpo),
    moved("loss.label_smoothing", None, "loss.label_smoothing", convert=run.of_dpo),
)
LENGTH = (
    moved("batch_size", None, "training.local_batch_size"),
    moved("epochs", None, "training.epochs", convert=run.epochs),
    moved("max_steps_per_epoch", None, "training.steps", convert=run.most_steps),
    moved("gradient_accumulation_steps", 1, "training.global_batch_size", convert=run.accumulation),
)
MACHINE = (
    unread("device", None, CHOSEN),
    moved("dtype", None, "training.dtype", convert=run.dtype),
    moved("compile", False, "compile.enable"),
    moved(
        "enable_activation_checkpointing",
        False,
        "activation_checkpoint.name",
        convert=run.recompute,
    ),
    refused("enable_activation_offloading", False, OFFLOAD, convert=run.refused_if_on),
    moved("ac_mode", None, "activation_checkpoint.name", convert=run.recompute),
    moved(
        "ac_option", None, "activation_checkpoint.selective_ac_option", convert=run.recompute_option
    ),
    unread("custom_sharded_layers", None, "each family shards what is worth it"),
    moved("fsdp_cpu_offload", False, "training.enable_cpu_offload"),
    moved("fsdp.cpu_offload", False, "training.enable_cpu_offload"),
    moved(
        "fsdp_reshard_after_forward",
        True,
        "parallelism.fsdp_reshard_after_forward",
        convert=run.sharding,
    ),
    moved("tensor_parallel_dim", 1, "parallelism.tensor_parallel_degree"),
    unread("tensor_parallel_plan", None, PLAN),
    unread("low_cpu_ram", False, "weights are read in shards"),
    moved("cudnn_deterministic_mode", None, "debug.deterministic", convert=run.determinism),
)
LOGGING = (
    moved("metric_logger._component_", None, "metrics.trackers", convert=run.logger),
    unread("metric_logger.log_dir", None, INSIDE),
    unread("metric_logger.filename", None, INSIDE),
    unread("metric_logger.organize_logs", True, INSIDE),
    moved(
        "metric_logger.project",
        "torchtune",
        "metrics.trackers[wandb].project",
        convert=run.of_logger("wandb", "project"),
    ),
    moved(
        "metric_logger.entity",
        None,
        "metrics.trackers[wandb].entity",
        convert=run.of_logger("wandb", "entity"),
    ),
    moved(
        "metric_logger.group",
        None,
        "metrics.trackers[wandb].group",
        convert=run.of_logger("wandb", "group"),
    ),
    moved(
        "metric_logger.experiment_name",
        None,
        "metrics.trackers[mlflow].experiment",
        convert=run.of_logger("mlflow", "experiment"),
    ),
    moved(
        "metric_logger.tracking_uri",
        None,
        "metrics.trackers[mlflow].tracking_uri",
        convert=run.of_logger("mlflow", "tracking_uri"),
    ),
    unread("metric_logger.run_id", None, "a run here begins its own"),
    unread("metric_logger.run_name", None, "the run's own name is taken"),
    moved("log_every_n_steps", 1, "metrics.log_freq"),
    unread("log_peak_memory_stats", False, "the memory is always logged"),
    unread("log_level", None, "everything is logged"),
    moved("profiler.enabled", False, "profiling.enable_profiling"),
    unread("profiler._component_", None, "there is one profiler"),
    unread("profiler.output_dir", None, INSIDE),
    unread("profiler.cpu", True, TRACE),
    unread("profiler.cuda", True, TRACE),
    unread("profiler.xpu", True, TRACE),
    unread(
        "profiler.profile_memory", False, "profiling.enable_memory_snapshot records the allocator"
    ),
    unread("profiler.with_stack", False, TRACE),
    unread("profiler.record_shapes", False, TRACE),
    unread("profiler.with_flops", False, TRACE),
    moved(
        "profiler.wait_steps",
        5,
        "profiling.profile_freq",
        convert=run.profile_cycle,
        needs=(PROFILING,),
    ),
    moved("profiler.warmup_steps", 3, "profiling.profiler_warmup", needs=(PROFILING,)),
    moved("profiler.active_steps", 2, "profiling.profiler_active", needs=(PROFILING,)),
    unread("profiler.num_cycles", 1, "every cycle of the run is recorded"),
)
OTHERS = (
    refused("teacher_model", None, DISTILLED),
    refused("teacher_checkpointer", None, DISTILLED),
    refused("kd_loss", None, DISTILLED),
    refused("kd_ratio", None, DISTILLED),
    refused("quantizer", None, QUANTISED),
    refused("fake_quant_after_n_steps", None, QUANTISED),
    unread("memory_efficient_fsdp_wrap", False, "each family shards what is worth it"),
)

TUNE: tuple[Key, ...] = (
    *OUTPUT,
    *MODEL,
    *TOKENIZER,
    *DATA,
    *OPTIMIZER,
    *LENGTH,
    *CHECKPOINTS,
    *MACHINE,
    *LOGGING,
    *OTHERS,
)
# of these torchtune's default holds where the file has nothing, and may be another than titanrun's
COUNTED = (
    "tokenizer.max_seq_len",
    "dataset.packed",
    "dataset.train_on_input",
    "seed",
    "model.lora_rank",
    "model.lora_alpha",
    "model.intermediate_dim",
    "optimizer.weight_decay",
    "optimizer.betas",
    "optimizer.eps",
    "clip_grad_norm",
    "lr_scheduler._component_",
    "enable_activation_checkpointing",
    "log_every_n_steps",
)
WHOLE = (
    "dataset.column_map",
    "checkpointer.checkpoint_files",
    "ref_checkpointer",
    "tensor_parallel_plan",
    "teacher_model",
    "teacher_checkpointer",
    "kd_loss",
    "quantizer",
    "collate_fn",
)
HEADS = ("lr_scheduler", "metric_logger", "profiler", "tokenizer")
