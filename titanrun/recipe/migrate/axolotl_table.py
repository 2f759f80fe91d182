"""Keys of axolotl 0.19's configurations and their migration.

Keys and defaults were read from its schemas; `datasets` stands for the first item of the list.
"""

from titanrun.recipe.migrate import axolotl_data as data
from titanrun.recipe.migrate import axolotl_model as model
from titanrun.recipe.migrate import axolotl_unsupported as rest
from titanrun.recipe.migrate import axolotl_values as to
from titanrun.recipe.migrate.axolotl_losses import LOSS_KEYS
from titanrun.recipe.migrate.evaluation_keys import AXOLOTL_EVALUATION_KEYS
from titanrun.recipe.migrate.key_mapping import (
    OTHER_RECORDS,
    SourceKey,
    ignore_key,
    move_key,
    reject_key,
)

RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it resumes, another run in it is an error"
)
RESHARD = "parallelism.fsdp_reshard_after_forward"
THINKING = "the key of thinking must be the one of the chat template: rename it in the files"
TRAINED_TURNS = "all conversations train on the same turns: training.dataset.train_on"
FIXED_NAMES = "the layouts have fixed names: rename them in the files"
ALL_SHARDS = "all shards are read, whatever their number"


def reject_key_if_set(path: str, why: str) -> SourceKey:
    """Return a key that is refused if it is set."""
    return reject_key(path, None, why, convert=to.reject_axolotl_if_enabled)


ADAPTER_FIELDS = {
    "lora_r": "rank",
    "lora_alpha": "alpha",
    "peft_use_rslora": "rank_stabilized",
    "peft_use_dora": "magnitude",
}
MODEL = (
    move_key("base_model", None, "model.name", convert=model.convert_axolotl_model),
    move_key(
        "revision_of_model", None, "model.hf_assets_path", convert=model.convert_model_revision
    ),
    reject_key("plugins", None, "", convert=model.convert_plugins),
    move_key("output_dir", "./model-out", "dump_folder", how=RUN_DIRECTORY),
    move_key("adapter", None, "converters", convert=model.convert_axolotl_adapter),
    ignore_key(
        "load_in_8bit", False, "the converter qlora sets it", convert=model.convert_quantized_base
    ),
    ignore_key(
        "load_in_4bit", False, "the converter qlora sets it", convert=model.convert_quantized_base
    ),
    *(
        move_key(
            key,
            None,
            f"converters[lora].{field}",
            convert=model.make_axolotl_adapter_conversion(field),
        )
        for key, field in ADAPTER_FIELDS.items()
    ),
    move_key(
        "lora_dropout",
        0.0,
        "converters[lora].dropout",
        convert=model.make_axolotl_adapter_conversion("dropout", 0.0),
    ),
    move_key(
        "lora_target_modules",
        None,
        "converters[lora].target_modules",
        convert=model.convert_axolotl_target_modules,
    ),
    move_key(
        "lora_target_linear",
        None,
        "converters[lora].target_modules",
        convert=model.convert_axolotl_target_modules,
    ),
)
DATA = (
    move_key("datasets.type", None, "training.dataset.name", convert=data.convert_axolotl_dataset),
    move_key("datasets.path", None, "training.dataset.path", convert=data.convert_dataset_path),
    move_key(
        "datasets.data_files",
        None,
        "training.dataset.path",
        convert=data.convert_axolotl_data_files,
    ),
    move_key(
        "datasets.field",
        None,
        "training.dataset.column",
        convert=data.make_column_conversion("text"),
    ),
    move_key(
        "datasets.field_messages",
        None,
        "training.dataset.column",
        convert=data.convert_messages_column,
    ),
    move_key(
        "datasets.field_chosen",
        None,
        "training.dataset.chosen_column",
        convert=data.make_column_conversion("chosen"),
    ),
    move_key(
        "datasets.field_rejected",
        None,
        "training.dataset.rejected_column",
        convert=data.make_column_conversion("rejected"),
    ),
    move_key(
        "datasets.message_property_mappings",
        None,
        "training.dataset.layout",
        convert=data.convert_message_mapping,
    ),
    reject_key("datasets.message_field_role", None, "", convert=data.convert_role_field),
    reject_key("datasets.message_field_content", None, "", convert=data.convert_role_field),
    reject_key("datasets.roles_to_train", None, "", convert=data.convert_trained_roles),
    reject_key("datasets.train_on_eos", None, "", convert=data.convert_train_on_eos),
    reject_key("datasets.train_on_eot", None, "", convert=data.convert_train_on_eos),
    move_key(
        "datasets.chat_template",
        None,
        "tokenizer.chat_template",
        convert=data.convert_chat_template,
    ),
    move_key(
        "datasets.chat_template_jinja",
        None,
        "tokenizer.chat_template",
        convert=data.convert_chat_template_file,
    ),
    move_key("chat_template", None, "tokenizer.chat_template", convert=data.convert_chat_template),
    move_key(
        "chat_template_jinja",
        None,
        "tokenizer.chat_template",
        convert=data.convert_chat_template_file,
    ),
    reject_key("special_tokens", None, "", convert=data.convert_special_tokens),
    move_key("eot_tokens", None, "tokenizer.stop_tokens", convert=data.convert_eot_tokens),
    *(
        move_key(f"datasets.{key}", None, f"training.dataset.{meant}", convert=data.convert_hub_key)
        for key, meant in data.HUB_KEYS.items()
    ),
    ignore_key("datasets.ds_type", None, "the names of the files determine it"),
    ignore_key("datasets.trust_remote_code", False, "code of a dataset is never run"),
    reject_key("datasets.shards", None, data.ONE_SHARD, convert=data.convert_shards),
    reject_key("datasets.shards_idx", None, data.ONE_SHARD, convert=data.convert_shards),
    ignore_key("datasets.preprocess_shards", None, ALL_SHARDS),
    ignore_key("datasets.conversation", None, "the chat template defines it"),
    reject_key_if_set("datasets.input_transform", "a recipe cannot contain code: change the files"),
    reject_key_if_set("datasets.input_format", "the chat template defines it"),
    reject_key_if_set("datasets.field_human", FIXED_NAMES),
    reject_key_if_set("datasets.field_model", FIXED_NAMES),
    reject_key_if_set("datasets.field_tools", "tools are part of the messages"),
    reject_key_if_set(
        "datasets.field_thinking",
        THINKING,
    ),
    reject_key_if_set(
        "datasets.template_thinking_key",
        THINKING,
    ),
    reject_key_if_set(
        "datasets.split_thinking",
        THINKING,
    ),
    reject_key_if_set(
        "datasets.message_field_training",
        TRAINED_TURNS,
    ),
    reject_key_if_set(
        "datasets.message_field_training_detail",
        TRAINED_TURNS,
    ),
    reject_key_if_set(
        "datasets.logprobs_field",
        "titanrun data teach writes predictions: set loss: {name: distillation, teacher: FOLDER}",
    ),
    reject_key_if_set(
        "datasets.temperature",
        "titanrun data teach writes predictions: set loss: {name: distillation, teacher: FOLDER}",
    ),
    reject_key("datasets.roles", None, "", convert=data.convert_roles),
    reject_key_if_set("datasets.drop_system_message", "remove system messages from the files"),
    reject_key_if_set("datasets.skip", "remove the records from the files"),
    ignore_key("datasets.text_column", None, "datasets.field sets it"),
    move_key("shuffle_merged_datasets", True, "training.dataset.shuffle"),
    move_key("sequence_len", 512, "training.seq_len"),
    move_key(
        "sample_packing", None, "training.dataset.packing", convert=data.convert_sample_packing
    ),
    move_key(
        "excess_length_strategy",
        None,
        "training.dataset.too_long",
        convert=data.convert_excess_length,
    ),
    move_key(
        "train_on_inputs", False, "training.dataset.train_on", convert=data.convert_train_on_inputs
    ),
    move_key("dataset_prepared_path", None, "training.data_cache"),
    move_key(
        "dataloader_num_workers",
        None,
        "training.dataloader.num_workers",
        convert=to.convert_step_interval,
    ),
    move_key(
        "dataloader_pin_memory",
        None,
        "training.dataloader.pin_memory",
        convert=to.convert_step_interval,
    ),
    move_key(
        "dataloader_prefetch_factor",
        None,
        "training.dataloader.prefetch_factor",
        convert=to.convert_prefetch_factor,
    ),
    move_key(
        "val_set_size",
        None,
        "validation.holdout",
        how=OTHER_RECORDS,
        convert=data.convert_val_set_size,
    ),
)
OPTIMIZER = (
    move_key(
        "optimizer", "adamw_torch_fused", "optimizer.name", convert=to.convert_axolotl_optimizer
    ),
    move_key("learning_rate", None, "optimizer.lr"),
    move_key("weight_decay", 0.0, "optimizer.weight_decay"),
    move_key("loraplus_lr_ratio", None, "optimizer.lora_plus_ratio"),
    move_key("adam_beta1", None, "optimizer.beta1", convert=to.make_adam_conversion("beta1", 0.9)),
    move_key(
        "adam_beta2", None, "optimizer.beta2", convert=to.make_adam_conversion("beta2", 0.999)
    ),
    move_key("adam_epsilon", None, "optimizer.eps", convert=to.make_adam_conversion("eps", 1e-8)),
    move_key("lr_scheduler", "cosine", "lr_scheduler.name", convert=to.convert_axolotl_schedule),
    move_key("warmup_steps", None, "lr_scheduler.warmup_steps", convert=to.convert_axolotl_warmup),
    move_key("warmup_ratio", None, "lr_scheduler.warmup_ratio", convert=to.convert_warmup_ratio),
    move_key("cosine_min_lr_ratio", None, "lr_scheduler.min_lr_factor", convert=to.convert_min_lr),
    move_key("max_grad_norm", None, "training.max_norm", convert=to.convert_axolotl_max_grad_norm),
    move_key("micro_batch_size", 1, "training.local_batch_size"),
    move_key(
        "gradient_accumulation_steps",
        1,
        "training.global_batch_size",
        convert=to.convert_axolotl_gradient_accumulation,
    ),
    move_key("num_epochs", 1.0, "training.epochs", convert=to.convert_axolotl_epochs),
    move_key("max_steps", None, "training.steps", convert=to.convert_step_interval),
)
MACHINE = (
    move_key("bf16", "auto", "training.dtype", convert=to.convert_dtypes),
    move_key("bfloat16", None, "training.dtype", convert=to.convert_dtypes_if_enabled),
    move_key("float32", None, "training.dtype", convert=to.convert_dtypes_if_enabled),
    reject_key("fp16", None, "", convert=to.convert_fp16),
    reject_key("float16", None, "", convert=to.convert_fp16),
    move_key(
        "gradient_checkpointing",
        False,
        "activation_checkpoint.name",
        convert=to.convert_axolotl_activation_checkpointing,
    ),
    move_key("fsdp_config", None, RESHARD, convert=to.convert_fsdp_config),
    move_key("deepspeed", None, RESHARD, convert=to.convert_deepspeed),
    move_key(
        "dp_shard_size",
        None,
        "parallelism.data_parallel_shard_degree",
        convert=to.convert_step_interval,
    ),
    move_key(
        "dp_replicate_size",
        None,
        "parallelism.data_parallel_replicate_degree",
        convert=to.convert_step_interval,
    ),
    move_key(
        "tensor_parallel_size",
        None,
        "parallelism.tensor_parallel_degree",
        convert=to.convert_step_interval,
    ),
    move_key(
        "context_parallel_size",
        None,
        "parallelism.context_parallel_degree",
        convert=to.convert_step_interval,
    ),
    move_key(
        "sequence_parallel_degree",
        None,
        "parallelism.context_parallel_degree",
        convert=to.convert_step_interval,
    ),
    move_key("torch_compile", None, "compile.enable", convert=to.convert_torch_compile),
    move_key("torch_compile_backend", None, "compile.backend", convert=to.convert_compile_backend),
    move_key("seed", None, "debug.seed", convert=to.convert_axolotl_seed),
)
CHECKPOINT = (
    move_key(
        "save_total_limit", None, "checkpoint.keep_latest_k", convert=to.convert_save_total_limit
    ),
    move_key("logging_steps", None, "metrics.log_freq", convert=to.convert_step_interval),
    move_key(
        "wandb_project",
        None,
        "metrics.trackers[wandb].project",
        convert=to.make_tracker_conversion("wandb", "project"),
    ),
    move_key(
        "wandb_entity",
        None,
        "metrics.trackers[wandb].entity",
        convert=to.make_wandb_conversion("entity"),
    ),
    move_key("wandb_name", None, "name"),
    move_key("wandb_mode", None, "metrics.trackers[wandb].mode", convert=to.convert_wandb_mode),
    move_key(
        "mlflow_experiment_name",
        None,
        "metrics.trackers[mlflow].experiment",
        convert=to.make_tracker_conversion("mlflow", "experiment"),
    ),
    move_key(
        "mlflow_tracking_uri",
        None,
        "metrics.trackers[mlflow].tracking_uri",
        convert=to.make_tracker_conversion("mlflow", "tracking_uri"),
    ),
    move_key(
        "trackio_project_name",
        None,
        "metrics.trackers[trackio].project",
        convert=to.make_tracker_conversion("trackio", "project"),
    ),
    move_key(
        "use_tensorboard",
        None,
        "metrics.trackers[tensorboard].name",
        convert=to.convert_axolotl_tensorboard,
    ),
)
REST = (
    *(ignore_key(path, None, why) for why, paths in rest.UNREAD.items() for path in paths.split()),
    *(
        reject_key_if_set(path, why)
        for why, paths in rest.REFUSED.items()
        for path in paths.split()
    ),
)

AXOLOTL_KEYS: tuple[SourceKey, ...] = (
    *MODEL,
    *DATA,
    *OPTIMIZER,
    *LOSS_KEYS,
    *MACHINE,
    *CHECKPOINT,
    *AXOLOTL_EVALUATION_KEYS,
    *REST,
)
# keys whose axolotl default applies if the file omits them; it may differ from titanrun's
KEYS_WITH_DEFAULTS = (
    "sequence_len",
    "sample_packing",
    "train_on_inputs",
    "excess_length_strategy",
    "optimizer",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "lr_scheduler",
    "warmup_steps",
    "micro_batch_size",
    "num_epochs",
    "bf16",
    "gradient_checkpointing",
    "seed",
    "save_total_limit",
)
