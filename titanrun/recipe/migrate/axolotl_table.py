"""The keys of axolotl 0.19's configurations, and what becomes of each.

Which keys there are, and their defaults, was read from its schemas; `datasets` stands for the first of the list.
"""

from titanrun.recipe.migrate import axolotl_data as data
from titanrun.recipe.migrate import axolotl_model as model
from titanrun.recipe.migrate import axolotl_rest as rest
from titanrun.recipe.migrate import axolotl_values as to
from titanrun.recipe.migrate.keys import Key, moved, refused, unread

RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it goes on, another run in it is an error"
)
OF_FOLDER = "the chat template is that of the model's folder"
HELD_OUT = "a part of the training data is not held out: name held-out data in validation.dataset"
SHARDS = "data are sharded over ranks by themselves"


def wanted(path: str, why: str) -> Key:
    """A key that is refused where it asks for something."""
    return refused(path, None, why, convert=to.refused_if_on)


MODEL = (
    moved("base_model", None, "model.name", convert=model.model),
    moved("output_dir", "./model-out", "dump_folder", how=RUN_DIRECTORY),
    moved("adapter", None, "converters", convert=model.adapter),
    unread("load_in_8bit", False, "the converter qlora says it", convert=model.packed_base),
    unread("load_in_4bit", False, "the converter qlora says it", convert=model.packed_base),
    moved("lora_r", None, "converters[lora].rank", convert=model.of_adapter("rank")),
    moved("lora_alpha", None, "converters[lora].alpha", convert=model.of_adapter("alpha")),
    moved(
        "lora_dropout", 0.0, "converters[lora].dropout", convert=model.of_adapter("dropout", 0.0)
    ),
    moved("lora_target_modules", None, "converters[lora].target_modules", convert=model.targets),
    moved("lora_target_linear", None, "converters[lora].target_modules", convert=model.targets),
)
DATA = (
    moved("datasets.type", None, "training.dataset.name", convert=data.dataset),
    moved("datasets.path", None, "training.dataset.path", convert=data.path),
    moved("datasets.data_files", None, "training.dataset.path", convert=data.files),
    moved("datasets.field", None, "training.dataset.column", convert=data.column("text")),
    moved("datasets.field_messages", None, "training.dataset.column", convert=data.messages),
    moved(
        "datasets.field_chosen",
        None,
        "training.dataset.chosen_column",
        convert=data.column("chosen"),
    ),
    moved(
        "datasets.field_rejected",
        None,
        "training.dataset.rejected_column",
        convert=data.column("rejected"),
    ),
    moved(
        "datasets.message_property_mappings", None, "training.dataset.layout", convert=data.mapping
    ),
    refused("datasets.message_field_role", None, "", convert=data.role_field),
    refused("datasets.message_field_content", None, "", convert=data.role_field),
    refused("datasets.roles_to_train", None, "", convert=data.roles),
    refused("datasets.train_on_eos", None, "", convert=data.ends),
    refused("datasets.train_on_eot", None, "", convert=data.ends),
    unread("datasets.chat_template", None, OF_FOLDER, convert=data.template),
    moved(
        "datasets.chat_template_jinja",
        None,
        "training.dataset.template",
        convert=data.template_file,
    ),
    unread("chat_template", None, OF_FOLDER, convert=data.template),
    moved("chat_template_jinja", None, "training.dataset.template", convert=data.template_file),
    unread("datasets.split", None, "the files hold one split"),
    unread("datasets.name", None, "the files hold one subset"),
    unread("datasets.ds_type", None, "the names of the files say it"),
    unread("datasets.revision", None, "the files stay as they are: their digests are kept"),
    unread("datasets.trust_remote_code", False, "no code of a data set runs"),
    unread("datasets.shards", None, SHARDS),
    unread("datasets.shards_idx", None, SHARDS),
    unread("datasets.preprocess_shards", None, SHARDS),
    unread("datasets.conversation", None, "the chat template says it"),
    wanted("datasets.input_transform", "a recipe holds no code: change the files"),
    wanted("datasets.input_format", "the chat template says it"),
    wanted("datasets.field_human", "the layouts have fixed names: rename them in the files"),
    wanted("datasets.field_model", "the layouts have fixed names: rename them in the files"),
    wanted("datasets.field_tools", "tools stand in the messages"),
    wanted(
        "datasets.field_thinking",
        "what a template calls thinking has its own name: rename it in the files",
    ),
    wanted(
        "datasets.template_thinking_key",
        "what a template calls thinking has its own name: rename it in the files",
    ),
    wanted(
        "datasets.split_thinking",
        "what a template calls thinking has its own name: rename it in the files",
    ),
    wanted(
        "datasets.message_field_training",
        "which turns count is said for all of them: training.dataset.train_on",
    ),
    wanted(
        "datasets.message_field_training_detail",
        "which turns count is said for all of them: training.dataset.train_on",
    ),
    wanted("datasets.logprobs_field", "titanrun has no distillation"),
    wanted("datasets.temperature", "titanrun has no distillation"),
    wanted(
        "datasets.roles",
        "roles are system, developer, user, assistant and tool: rename them in the files",
    ),
    wanted("datasets.drop_system_message", "take system messages out of the files"),
    wanted("datasets.skip", "take the records out of the files"),
    unread("datasets.text_column", None, "datasets.field says it"),
    moved("shuffle_merged_datasets", True, "training.dataset.shuffle"),
    moved("sequence_len", 512, "training.seq_len"),
    moved("sample_packing", None, "training.dataset.packing", convert=data.packing),
    moved("excess_length_strategy", None, "training.dataset.too_long", convert=data.too_long),
    moved("train_on_inputs", False, "training.dataset.train_on", convert=data.inputs),
    moved("dataset_prepared_path", None, "training.data_cache"),
    moved(
        "dataloader_num_workers", None, "training.dataloader.num_workers", convert=to.steps_or_none
    ),
    moved(
        "dataloader_pin_memory", None, "training.dataloader.pin_memory", convert=to.steps_or_none
    ),
    moved(
        "dataloader_prefetch_factor",
        None,
        "training.dataloader.prefetch_factor",
        convert=to.prefetched,
    ),
    wanted("val_set_size", HELD_OUT),
    wanted("test_datasets", HELD_OUT),
)
OPTIMIZER = (
    moved("optimizer", "adamw_torch_fused", "optimizer.name", convert=to.optimizer),
    moved("learning_rate", None, "optimizer.lr"),
    moved("weight_decay", 0.0, "optimizer.weight_decay"),
    moved("adam_beta1", None, "optimizer.beta1", convert=to.of_adam("beta1", 0.9)),
    moved("adam_beta2", None, "optimizer.beta2", convert=to.of_adam("beta2", 0.999)),
    moved("adam_epsilon", None, "optimizer.eps", convert=to.of_adam("eps", 1e-8)),
    moved("lr_scheduler", "cosine", "lr_scheduler.name", convert=to.schedule),
    moved("warmup_steps", None, "lr_scheduler.warmup_steps", convert=to.warmup),
    moved("warmup_ratio", None, "lr_scheduler.warmup_steps", convert=to.warmup_share),
    moved("cosine_min_lr_ratio", None, "lr_scheduler.min_lr_factor", convert=to.least_rate),
    moved("max_grad_norm", None, "training.max_norm", convert=to.norm),
    moved("micro_batch_size", 1, "training.local_batch_size"),
    moved("gradient_accumulation_steps", 1, "training.global_batch_size", convert=to.accumulation),
    moved("num_epochs", 1.0, "training.epochs", convert=to.epochs),
    moved("max_steps", None, "training.steps", convert=to.steps_or_none),
    moved("rl", None, "loss.name", convert=to.loss),
    moved("rl_beta", None, "loss.beta", convert=to.of_dpo("beta")),
    moved("dpo_beta", None, "loss.beta", convert=to.of_dpo("beta")),
    moved(
        "dpo_label_smoothing", None, "loss.label_smoothing", convert=to.of_dpo("label_smoothing")
    ),
    refused("dpo_loss_type", None, "", convert=to.dpo_kind),
)
MACHINE = (
    moved("bf16", "auto", "training.dtype", convert=to.types),
    moved("bfloat16", None, "training.dtype", convert=to.types_if_on),
    moved("float32", None, "training.dtype", convert=to.types_if_on),
    refused("fp16", None, "", convert=to.half),
    refused("float16", None, "", convert=to.half),
    moved("gradient_checkpointing", False, "activation_checkpoint.name", convert=to.recompute),
    moved("fsdp_config", None, "parallelism.fsdp_reshard_after_forward", convert=to.sharding),
    moved(
        "dp_shard_size", None, "parallelism.data_parallel_shard_degree", convert=to.steps_or_none
    ),
    moved(
        "dp_replicate_size",
        None,
        "parallelism.data_parallel_replicate_degree",
        convert=to.steps_or_none,
    ),
    moved(
        "tensor_parallel_size", None, "parallelism.tensor_parallel_degree", convert=to.steps_or_none
    ),
    moved(
        "context_parallel_size",
        None,
        "parallelism.context_parallel_degree",
        convert=to.steps_or_none,
    ),
    moved(
        "sequence_parallel_degree",
        None,
        "parallelism.context_parallel_degree",
        convert=to.steps_or_none,
    ),
    moved("torch_compile", None, "compile.enable", convert=to.compiled),
    moved("torch_compile_backend", None, "compile.backend", convert=to.backend),
    moved("seed", None, "debug.seed", convert=to.seed),
)
KEEPING = (
    moved("save_steps", None, "checkpoint.interval", convert=to.steps_or_none),
    moved("save_total_limit", None, "checkpoint.keep_latest_k", convert=to.kept),
    moved(
        "save_first_step", None, "checkpoint.enable_first_step_checkpoint", convert=to.steps_or_none
    ),
    moved("logging_steps", None, "metrics.log_freq", convert=to.steps_or_none),
    moved(
        "wandb_project",
        None,
        "metrics.trackers[wandb].project",
        convert=to.tracker("wandb", "project"),
    ),
    moved("wandb_entity", None, "metrics.trackers[wandb].entity", convert=to.wandb_field("entity")),
    moved("wandb_mode", None, "metrics.trackers[wandb].mode", convert=to.wandb_mode),
    moved(
        "mlflow_experiment_name",
        None,
        "metrics.trackers[mlflow].experiment",
        convert=to.tracker("mlflow", "experiment"),
    ),
    moved(
        "mlflow_tracking_uri",
        None,
        "metrics.trackers[mlflow].tracking_uri",
        convert=to.tracker("mlflow", "tracking_uri"),
    ),
    moved(
        "trackio_project_name",
        None,
        "metrics.trackers[trackio].project",
        convert=to.tracker("trackio", "project"),
    ),
    moved("use_tensorboard", None, "metrics.trackers[tensorboard].name", convert=to.tensorboard),
)
REST = (
    *(unread(path, None, why) for why, paths in rest.UNREAD.items() for path in paths.split()),
    *(wanted(path, why) for why, paths in rest.REFUSED.items() for path in paths.split()),
)

AXOLOTL_KEYS: tuple[Key, ...] = (*MODEL, *DATA, *OPTIMIZER, *MACHINE, *KEEPING, *REST)
# of these axolotl's default holds where the file has nothing, and may be another than titanrun's
COUNTED = (
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
