"""Words that other tools use for what titanrun calls otherwise, or does not have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolWord:
    """What stands for a word of other tools: settings, and a sentence where they need one."""

    paths: tuple[str, ...]
    sentence: str = ""


LORA_RANK = ToolWord(("converters.rank",), "a field of the converters lora and qlora")
LORA_ALPHA = ToolWord(("converters.alpha",), "a field of the converters lora and qlora")
LORA_DROPOUT = ToolWord(("converters.dropout",), "a field of the converters lora and qlora")
LORA_TARGETS = ToolWord(
    ("converters.target_modules",),
    "a field of the converters lora and qlora; the model's own names, where q_proj is wq",
)
HOLDOUT = ToolWord(
    ("validation.holdout",), "a share such as 0.05, or a number of documents, of training.dataset"
)
SAMPLE_LIMIT = ToolWord(
    ("training.dataset.max_documents", "training.dataset.sources.max_rows", "validation.steps"),
    "max_documents is a key of dataset text, max_rows counts the sequences of a mixture's source; "
    "of conversations and pairs, name a file with the first records",
)
ZERO = ToolWord(
    (
        "parallelism.data_parallel_shard_degree",
        "parallelism.fsdp_reshard_after_forward",
        "training.enable_cpu_offload",
    ),
    "no setting of that name: FSDP2 shards weights, gradients and optimizer states, as ZeRO-3 does",
)
FSDP = ToolWord(
    (
        "parallelism.data_parallel_shard_degree",
        "parallelism.data_parallel_replicate_degree",
        "parallelism.fsdp_reshard_after_forward",
        "training.enable_cpu_offload",
    ),
    "on by default where a run has several ranks",
)
EARLY_STOPPING = ToolWord(
    ("checkpoint.keep_best", "validation.freq"),
    "no setting ends a run early: keep the checkpoints with the lowest validation loss, and end a "
    "run with `titanrun stop RUN`",
)
ACCUMULATION = ToolWord(
    ("training.global_batch_size",),
    "local_batch_size x data-parallel ranks x accumulation steps: the steps follow from it",
)
FLASH_ATTENTION = ToolWord(
    ("model.attention.backend",),
    "no setting of that name: sdpa takes PyTorch's flash kernel where device and mask allow it",
)
UPLOAD = ToolWord(
    (), "no setting: `titanrun push RUN OWNER/NAME` uploads the model of a run with a card"
)
EVAL_FREQ = ToolWord(("validation.freq", "validation.enable"), "validation has to be enabled")
LOG_FREQ = ToolWord(("metrics.log_freq",))
TRACKERS = ToolWord(("metrics.trackers",), "a list such as [wandb]")
SAVE_FREQ = ToolWord(("checkpoint.interval",), "steps, or a time such as 10m")
CLIPPING = ToolWord(("training.max_norm",))
SEQ_LEN = ToolWord(("training.seq_len",))
SEVERAL_GPUS = ToolWord(
    ("parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree"),
    "titanrun train RECIPE --nproc N starts N processes, whose weights FSDP shards",
)
CALLBACKS = ToolWord(
    ("metrics.trackers", "metrics.samples", "plugins"),
    "no setting of that name: components of your own are plug-ins",
)

TOOL_WORDS: dict[str, ToolWord] = {
    "lora_r": LORA_RANK,
    "lora_rank": LORA_RANK,
    "lora_alpha": LORA_ALPHA,
    "lora_dropout": LORA_DROPOUT,
    "lora_target": LORA_TARGETS,
    "lora_target_modules": LORA_TARGETS,
    "max_samples": SAMPLE_LIMIT,
    "max_train_samples": SAMPLE_LIMIT,
    "validation_split": HOLDOUT,
    "val_set_size": HOLDOUT,
    "val_size": HOLDOUT,
    "test_size": HOLDOUT,
    "deepspeed": ZERO,
    "zero3": ZERO,
    "fsdp": FSDP,
    "fsdp2": FSDP,
    "early_stopping": EARLY_STOPPING,
    "early_stopping_patience": EARLY_STOPPING,
    "load_best_model_at_end": EARLY_STOPPING,
    "gradient_accumulation_steps": ACCUMULATION,
    "grad_accum_steps": ACCUMULATION,
    "per_device_train_batch_size": ToolWord(("training.local_batch_size",)),
    "micro_batch_size": ToolWord(("training.local_batch_size",)),
    "num_train_epochs": ToolWord(("training.epochs",), "in place of training.steps"),
    "num_epochs": ToolWord(("training.epochs",), "in place of training.steps"),
    "max_seq_length": ToolWord(("training.seq_len",)),
    "cutoff_len": ToolWord(("training.seq_len",)),
    "flash_attention": FLASH_ATTENTION,
    "flash_attn": FLASH_ATTENTION,
    "attn_implementation": FLASH_ATTENTION,
    "save_steps": ToolWord(("checkpoint.interval",)),
    "eval_steps": EVAL_FREQ,
    "eval_strategy": EVAL_FREQ,
    "logger": TRACKERS,
    "loggers": TRACKERS,
    "logging": ToolWord(("metrics.log_freq", "metrics.trackers")),
    "logging_steps": LOG_FREQ,
    "report_to": TRACKERS,
    "push_to_hub": UPLOAD,
    "hub_model_id": UPLOAD,
    "log_every": LOG_FREQ,
    "log_every_n_steps": LOG_FREQ,
    "weights_and_biases": TRACKERS,
    **dict.fromkeys(
        ("multi_gpu", "multiple_gpus", "several_gpus", "num_gpus", "gpus"), SEVERAL_GPUS
    ),
    **dict.fromkeys(("save_every", "save_freq", "save_checkpoint_every"), SAVE_FREQ),
    **dict.fromkeys(("callback", "callbacks"), CALLBACKS),
    **dict.fromkeys(("max_length", "max_len", "max_seq_len", "context_length"), SEQ_LEN),
    **dict.fromkeys(
        ("grad_clip", "clip_grad", "clip_grad_norm", "max_grad_norm", "gradient_clipping"), CLIPPING
    ),
}


def find_tool_word(word: str) -> ToolWord | None:
    """Return what stands for a word, in any case and with any separators; None if unknown."""
    return TOOL_WORDS.get("_".join(word.lower().replace("-", " ").split()))
