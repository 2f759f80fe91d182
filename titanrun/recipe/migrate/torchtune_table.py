"""Keys of torchtune 0.6.1's configurations for full and LoRA fine-tuning and DPO.

Each has its migration. The keys were collected from its recipes and from the signatures of the
components that its configurations name.
"""

from titanrun.recipe.migrate import torchtune_data as data
from titanrun.recipe.migrate import torchtune_model as model
from titanrun.recipe.migrate import torchtune_values as run
from titanrun.recipe.migrate.key_mapping import (
    SourceKey,
    ignore_key,
    leave_key,
    move_key,
    reject_key,
)
from titanrun.recipe.migrate.torchtune_logging_keys import INSIDE, LOGGING_KEYS

RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it resumes, another run in it is an error"
)
TOKENIZER_FROM_FOLDER = (
    "tokenizer and chat template are those in the model's folder, model.hf_assets_path"
)
PROMPTS = "chat templates replace it: name one in tokenizer.chat_template"
SYSTEM = (
    "write the text into a column of all records, and name it in training.dataset.system_column"
)
CODE = "a recipe cannot contain code: filter the files"
WEIGHTS = "config.json in the folder defines it"
KNOWN = "the name of the model determines it"
CHOSEN = "the available accelerator is used, else the CPU"
DISTILLED = "set loss: {name: distillation, teacher: FOLDER}; weights of the two parts differ"
QUANTIZED = "quantization in training is the converter qat, with its own settings"
OFFLOAD = "activations stay on the device; enable_activation_checkpointing reduces them"
PLAN = "each model family has its own plan"
REFERENCE = "DPO's reference is the model at the start of the run"
ADAPTERS = "adapters of another run cannot be loaded: merge them into the weights first"
HELD_OUT = "name held-out data in validation.dataset"
RESUMED = "a resumed run finds its own state"


def map_size_key(path: str, target: str) -> SourceKey:
    """Return a key for a size of a model that is built from its sizes."""
    return move_key(path, None, target, convert=model.convert_model_size)


OUTPUT = (move_key("output_dir", None, "dump_folder", how=RUN_DIRECTORY),)
TOKENIZER = (
    ignore_key("tokenizer._component_", None, TOKENIZER_FROM_FOLDER),
    ignore_key("tokenizer.path", None, TOKENIZER_FROM_FOLDER),
    ignore_key("tokenizer.merges_file", None, TOKENIZER_FROM_FOLDER),
    ignore_key("tokenizer.vocab_path", None, TOKENIZER_FROM_FOLDER),
    ignore_key("tokenizer.merges_path", None, TOKENIZER_FROM_FOLDER),
    ignore_key("tokenizer.special_tokens_path", None, TOKENIZER_FROM_FOLDER),
    reject_key("tokenizer.prompt_template", None, PROMPTS, convert=run.reject_torchtune_if_enabled),
    move_key("tokenizer.max_seq_len", None, "training.seq_len", convert=data.convert_max_seq_len),
)
DATA = (
    reject_key("dataset", None, "several datasets: write them under a dataset: mixture"),
    move_key(
        "dataset._component_", None, "training.dataset", convert=data.convert_torchtune_dataset
    ),
    move_key("dataset.source", None, "training.dataset.path", convert=data.convert_dataset_source),
    move_key(
        "dataset.data_files",
        None,
        "training.dataset.path",
        convert=data.convert_torchtune_data_files,
    ),
    move_key("dataset.packed", False, "training.dataset.packing", convert=data.convert_packing),
    move_key(
        "dataset.train_on_input", None, "training.dataset.train_on", convert=data.convert_train_on
    ),
    move_key(
        "dataset.conversation_column",
        None,
        "training.dataset.column",
        convert=data.convert_torchtune_column,
    ),
    move_key(
        "dataset.conversation_style",
        None,
        "training.dataset.layout",
        convert=data.convert_conversation_style,
    ),
    move_key(
        "dataset.column_map",
        None,
        "training.dataset.prompt_column",
        convert=data.convert_column_map,
    ),
    move_key(
        "dataset.column", None, "training.dataset.column", convert=data.convert_torchtune_column
    ),
    move_key("dataset.add_eos", True, "training.dataset.add_eos", needs=(data.TEXT,)),
    ignore_key("dataset.split_across_pack", True, "dataset.packed determines it"),
    reject_key("dataset.new_system_prompt", None, SYSTEM, convert=run.reject_torchtune_if_enabled),
    reject_key("dataset.filter_fn", None, CODE, convert=run.reject_torchtune_if_enabled),
    move_key(
        "dataset.split",
        "train",
        "validation.holdout",
        how="what train[:95%] leaves over is held out",
        convert=data.convert_split,
    ),
    move_key("dataset.subset", None, "training.dataset.subset", convert=data.convert_subset),
    move_key("dataset.name", None, "training.dataset.subset", convert=data.convert_subset),
    ignore_key("dataset.data_dir", None, "path names the files"),
    ignore_key("dataset.max_seq_len", None, "tokenizer.max_seq_len determines it"),
    move_key("seed", None, "debug.seed", convert=run.convert_torchtune_seed),
    move_key("shuffle", True, "training.dataset.shuffle", convert=run.convert_shuffle),
    reject_key("collate_fn", None, CODE, convert=run.convert_collate_fn),
)
MODEL = (
    move_key("model._component_", None, "model.name", convert=model.convert_torchtune_model),
    move_key(
        "model.lora_attn_modules",
        None,
        "converters[lora].target_modules",
        convert=model.convert_torchtune_target_modules,
    ),
    move_key(
        "model.apply_lora_to_mlp",
        False,
        "converters[lora].target_modules",
        convert=model.convert_torchtune_target_modules,
    ),
    move_key(
        "model.apply_lora_to_output",
        False,
        "converters[lora].target_modules",
        convert=model.convert_torchtune_target_modules,
    ),
    move_key(
        "model.lora_rank",
        None,
        "converters[lora].rank",
        convert=model.make_torchtune_adapter_conversion("rank", 8),
    ),
    move_key(
        "model.lora_alpha",
        None,
        "converters[lora].alpha",
        convert=model.make_torchtune_adapter_conversion("alpha", 16.0),
    ),
    move_key(
        "model.lora_dropout",
        None,
        "converters[lora].dropout",
        convert=model.make_torchtune_adapter_conversion("dropout", 0.0),
    ),
    move_key(
        "model.quantize_base", False, "converters[qlora]", convert=model.convert_quantize_base
    ),
    move_key(
        "model.use_dora",
        None,
        "converters[lora].magnitude",
        convert=model.make_torchtune_adapter_conversion("magnitude", None),
    ),
    map_size_key("model.vocab_size", "model.vocab_size"),
    map_size_key("model.num_layers", "model.n_layers"),
    map_size_key("model.num_heads", "model.n_heads"),
    map_size_key("model.num_kv_heads", "model.n_kv_heads"),
    map_size_key("model.embed_dim", "model.dim"),
    map_size_key("model.max_seq_len", "model.max_seq_len"),
    move_key(
        "model.intermediate_dim",
        None,
        "model.feed_forward.hidden_dim",
        convert=model.convert_hidden_dim,
    ),
    map_size_key("model.norm_eps", "model.norm_eps"),
    map_size_key("model.rope_base", "model.rope.theta"),
    move_key(
        "model.scale_factor", None, "model.rope.scaling.factor", convert=model.convert_rope_scale
    ),
    ignore_key("model.tie_word_embeddings", None, WEIGHTS),
    reject_key(
        "model.attn_dropout",
        0.0,
        "attention has no dropout",
        convert=run.reject_torchtune_if_enabled,
    ),
)
CHECKPOINTS = (
    move_key(
        "checkpointer._component_",
        None,
        "checkpoint.initial_load_in_hf",
        convert=run.convert_checkpointer,
    ),
    move_key("checkpointer.checkpoint_dir", None, "model.hf_assets_path"),
    ignore_key("checkpointer.checkpoint_files", None, "all weights of the folder are read"),
    ignore_key("checkpointer.recipe_checkpoint", None, RESUMED),
    reject_key(
        "checkpointer.adapter_checkpoint", None, ADAPTERS, convert=run.reject_torchtune_if_enabled
    ),
    ignore_key("checkpointer.output_dir", None, INSIDE),
    ignore_key("checkpointer.model_type", None, KNOWN),
    ignore_key("checkpointer.safe_serialization", True, "weights are written as safetensors"),
    ignore_key("checkpointer.resume_from_checkpoint", False, RESUMED),
    ignore_key("checkpointer.should_load_recipe_state", False, RESUMED),
    reject_key("resume_from_checkpoint", False, "", convert=run.convert_resume),
    move_key(
        "save_adapter_weights_only",
        False,
        "checkpoint.adapters_only",
        convert=run.convert_adapters_only,
    ),
    move_key(
        "enable_async_checkpointing",
        False,
        "checkpoint.async_mode",
        convert=run.convert_async_checkpointing,
    ),
    ignore_key("ref_checkpointer", None, REFERENCE),
)
OPTIMIZER = (
    move_key(
        "optimizer._component_", None, "optimizer.name", convert=run.convert_torchtune_optimizer
    ),
    move_key("optimizer.lr", None, "optimizer.lr"),
    move_key(
        "optimizer.weight_decay", None, "optimizer.weight_decay", convert=run.convert_weight_decay
    ),
    move_key("optimizer.betas", None, "optimizer.beta2", convert=run.convert_betas),
    move_key("optimizer.eps", 1e-8, "optimizer.eps", needs=(run.ADAPTIVE,)),
    move_key("optimizer.fused", None, "optimizer.implementation", convert=run.convert_fused),
    ignore_key("optimizer.foreach", None, "optimizer.implementation chooses the kernels"),
    move_key("optimizer.momentum", 0.0, "optimizer.momentum", needs=(run.SGD,)),
    move_key("optimizer.dampening", 0.0, "optimizer.dampening", needs=(run.SGD,)),
    move_key("optimizer.nesterov", False, "optimizer.nesterov", needs=(run.SGD,)),
    reject_key(
        "optimizer.amsgrad",
        False,
        "no optimizer of titanrun supports amsgrad",
        convert=run.reject_torchtune_if_enabled,
    ),
    reject_key(
        "optimizer.maximize",
        False,
        "a loss is always minimized",
        convert=run.reject_torchtune_if_enabled,
    ),
    ignore_key("optimizer.capturable", False, "titanrun captures no CUDA graphs"),
    ignore_key("optimizer.differentiable", False, "steps are not differentiated"),
    move_key("optimizer_in_bwd", False, "optimizer.early_step_in_backward"),
    move_key(
        "clip_grad_norm", None, "training.max_norm", convert=run.convert_torchtune_max_grad_norm
    ),
    move_key(
        "lr_scheduler._component_",
        None,
        "lr_scheduler.name",
        convert=run.convert_torchtune_schedule,
    ),
    move_key("lr_scheduler.num_warmup_steps", None, "lr_scheduler.warmup_steps"),
    reject_key("lr_scheduler.num_cycles", 0.5, "", convert=run.convert_num_cycles),
    ignore_key("lr_scheduler.last_epoch", -1, RESUMED),
    move_key("loss._component_", None, "loss.name", convert=run.convert_torchtune_loss),
    move_key("loss.num_output_chunks", None, "loss.num_chunks", convert=run.convert_num_chunks),
    ignore_key("loss.ignore_index", -100, "a loss mask selects the tokens"),
    move_key("loss.beta", None, "loss.beta", convert=run.convert_dpo_setting),
    move_key("loss.label_smoothing", None, "loss.label_smoothing", convert=run.convert_dpo_setting),
)
LENGTH = (
    move_key("batch_size", None, "training.local_batch_size"),
    move_key("epochs", None, "training.epochs", convert=run.convert_torchtune_epochs),
    move_key(
        "max_steps_per_epoch", None, "training.steps", convert=run.convert_max_steps_per_epoch
    ),
    move_key(
        "gradient_accumulation_steps",
        1,
        "training.global_batch_size",
        convert=run.convert_torchtune_gradient_accumulation,
    ),
)
MACHINE = (
    ignore_key("device", None, CHOSEN),
    move_key("dtype", None, "training.dtype", convert=run.convert_torchtune_dtype),
    move_key("compile", False, "compile.enable"),
    move_key(
        "enable_activation_checkpointing",
        False,
        "activation_checkpoint.name",
        convert=run.convert_torchtune_activation_checkpointing,
    ),
    reject_key(
        "enable_activation_offloading", False, OFFLOAD, convert=run.reject_torchtune_if_enabled
    ),
    move_key(
        "ac_mode",
        None,
        "activation_checkpoint.name",
        convert=run.convert_torchtune_activation_checkpointing,
    ),
    move_key(
        "ac_option",
        None,
        "activation_checkpoint.selective_ac_option",
        convert=run.convert_ac_option,
    ),
    ignore_key("custom_sharded_layers", None, "each model family chooses what it shards"),
    move_key("fsdp_cpu_offload", False, "training.enable_cpu_offload"),
    move_key("fsdp.cpu_offload", False, "training.enable_cpu_offload"),
    move_key(
        "fsdp_reshard_after_forward",
        True,
        "parallelism.fsdp_reshard_after_forward",
        convert=run.convert_reshard_after_forward,
    ),
    move_key("tensor_parallel_dim", 1, "parallelism.tensor_parallel_degree"),
    ignore_key("tensor_parallel_plan", None, PLAN),
    ignore_key("low_cpu_ram", False, "weights are read in shards"),
    move_key(
        "cudnn_deterministic_mode", None, "debug.deterministic", convert=run.convert_determinism
    ),
)
OTHERS = (
    reject_key("teacher_model", None, DISTILLED),
    reject_key("teacher_checkpointer", None, DISTILLED),
    reject_key("kd_loss", None, DISTILLED),
    reject_key("kd_ratio", None, DISTILLED),
    reject_key("quantizer", None, QUANTIZED),
    reject_key("fake_quant_after_n_steps", None, QUANTIZED),
    ignore_key("memory_efficient_fsdp_wrap", False, "each model family chooses what it shards"),
)

# of later versions than 0.6.1
VALIDATION = (
    reject_key("dataset_val", None, HELD_OUT, convert=run.reject_torchtune_if_enabled),
    leave_key("run_val_every_n_steps", None, "validation.freq, in steps"),
    leave_key("batch_size_val", None, "validation.local_batch_size"),
    leave_key("save_every_n_steps", None, "checkpoint.interval, in steps or time"),
)
TORCHTUNE_KEYS: tuple[SourceKey, ...] = (
    *OUTPUT,
    *MODEL,
    *TOKENIZER,
    *DATA,
    *OPTIMIZER,
    *LENGTH,
    *CHECKPOINTS,
    *MACHINE,
    *LOGGING_KEYS,
    *VALIDATION,
    *OTHERS,
)
# keys whose torchtune default applies if the file omits them; it may differ from titanrun's
KEYS_WITH_DEFAULTS = (
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
WHOLE_VALUE_KEYS = (
    "dataset.column_map",
    "checkpointer.checkpoint_files",
    "ref_checkpointer",
    "tensor_parallel_plan",
    "teacher_model",
    "teacher_checkpointer",
    "kd_loss",
    "quantizer",
    "collate_fn",
    "dataset_val",
)
NULLABLE_SECTIONS = ("lr_scheduler", "metric_logger", "profiler", "tokenizer")
