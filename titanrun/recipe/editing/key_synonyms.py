"""Names of other tools for titanrun's fields."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import DataPath, Problem
from titanrun.config.tree import Node, format_path, to_plain_data
from titanrun.config.type_introspection import find_value
from titanrun.recipe.editing.key_meanings import format_key_meaning

if TYPE_CHECKING:
    from titanrun.recipe.migrate import torchtitan_hints as torchtitan_hints
else:
    # imported only if a recipe has unknown names
    torchtitan_hints = LazyModule("titanrun.recipe.migrate.torchtitan_hints")

MAX_HINTS = 3

# same meaning and unit as the field they stand for, so `validate --fix` may replace them
SAME_MEANING = frozenset(
    (
        *(
            "attention_chunk_size",
            "batch_size",  # of a device: torchtitan before 0.1, torchtune
            "block_size",
            "clip_grad",
            "clip_grad_norm",
            "config_name",
            "data_config",
            "embed_dim",
            "epsilon",
            "evaluation",
            "first_k_dense_replace",
        ),
        *("hf_id", "hidden_size", "learning_rate", "repo_id"),
        *(
            "log_frequency",
            "log_interval",
            "lr_schedule",
            "max_grad_norm",
            "max_steps",
            "micro_batch_size",
            "moe_intermediate_size",
            "n_embd",
            "n_group",
        ),
        *(
            "n_head",
            "n_layer",
            "n_routed_experts",
            "n_shared_experts",
            "norm_topk_prob",
            "num_attention_heads",
            "num_experts_per_tok",
        ),
        *(
            "num_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "num_kv_heads",
            "num_layers",
            "num_steps",
            "optim",
            "optimiser",
        ),
        *(
            "per_device_train_batch_size",
            "random_seed",
            "routed_scaling_factor",
            "run_name",
            "save_steps",
            "scoring_func",
        ),
        *("sequence_length", "topk_group", "train_steps", "use_qk_norm", "wd"),
    )
)

SYNONYMS: dict[str, tuple[str, ...]] = {
    "accumulate_grad_batches": ("global_batch_size",),
    "activation_checkpointing": ("activation_checkpoint",),
    "arch": ("name", "flavor"),
    "attention_chunk_size": ("fixed_attn_block_size",),
    "batch_size": ("local_batch_size",),
    "betas": ("beta1", "beta2"),
    "bf16": ("mixed_precision_param",),
    "block_size": ("seq_len",),
    "checkpoint_every": ("interval",),
    "checkpoints": ("checkpoint",),
    "clip_grad": ("max_norm",),
    "clip_grad_norm": ("max_norm",),
    "config": ("subset",),
    "config_name": ("subset",),
    "context_length": ("seq_len", "max_seq_len"),
    "data": ("dataset",),
    "data_config": ("subset",),
    "data_parallel_size": ("data_parallel_shard_degree",),
    "decay": ("decay_ratio", "weight_decay"),
    "dir": ("dump_folder", "folder"),
    "dp": ("data_parallel_shard_degree",),
    "embed_dim": ("dim",),
    "epsilon": ("eps",),
    "eval": ("validation",),
    "eval_every": ("freq",),
    "eval_steps": ("freq",),
    "evaluation": ("validation",),
    "ffn_dim": ("hidden_dim",),
    "first_k_dense_replace": ("n_dense_layers",),
    "fp16": ("mixed_precision_param",),
    "freq": ("interval", "log_freq"),
    "grad_clip": ("max_norm",),
    "gradient_accumulation": ("global_batch_size",),
    "gradient_accumulation_steps": ("global_batch_size",),
    "gradient_clipping": ("max_norm",),
    "hf_id": ("repo",),
    "hidden_size": ("dim",),
    "intermediate_size": ("hidden_dim",),
    "intermediate_size_mlp": ("hidden_dim",),
    "keep": ("keep_latest_k",),
    "layers": ("n_layers",),
    "learning_rate": ("lr",),
    "log_every": ("log_freq",),
    "log_frequency": ("log_freq",),
    "log_interval": ("log_freq",),
    "logging": ("metrics",),
    "logging_steps": ("log_freq",),
    "lora_alpha": ("alpha",),
    "lora_dropout": ("dropout",),
    "lora_r": ("rank",),
    "lora_target_modules": ("target_modules",),
    "lr_schedule": ("lr_scheduler",),
    "max_epochs": ("epochs",),
    "max_grad_norm": ("max_norm",),
    "max_length": ("seq_len",),
    "max_position_embeddings": ("max_seq_len",),
    "max_seq_length": ("seq_len",),
    "max_steps": ("steps",),
    "max_tokens": ("tokens",),
    "micro_batch_size": ("local_batch_size",),
    "min_lr": ("min_lr_factor",),
    "moe_intermediate_size": ("hidden_dim",),
    "n_embd": ("dim",),
    "n_group": ("num_expert_groups",),
    "n_head": ("n_heads",),
    "n_layer": ("n_layers",),
    "n_routed_experts": ("num_experts",),
    "n_shared_experts": ("num_shared_experts",),
    "no_rope_layer_interval": ("every_n_layers_nope",),
    "norm_topk_prob": ("route_norm",),
    "num_attention_heads": ("n_heads",),
    "num_epochs": ("epochs",),
    "num_experts_per_tok": ("top_k",),
    "num_heads": ("n_heads",),
    "num_hidden_layers": ("n_layers",),
    "num_key_value_heads": ("n_kv_heads",),
    "num_kv_heads": ("n_kv_heads",),
    "num_layers": ("n_layers",),
    "num_local_experts": ("num_experts",),
    "num_steps": ("steps",),
    "num_tokens": ("tokens",),
    "num_train_epochs": ("epochs",),
    "optim": ("optimizer",),
    "optimiser": ("optimizer",),
    "output_dir": ("dump_folder",),
    "per_device_train_batch_size": ("local_batch_size",),
    "pp": ("pipeline_parallel_degree",),
    "precision": ("mixed_precision_param", "dtype"),
    "random_seed": ("seed",),
    "report_to": ("trackers",),
    "routed_scaling_factor": ("route_scale",),
    "run_name": ("name",),
    "repo_id": ("repo",),
    "save_every": ("interval",),
    "save_steps": ("interval",),
    "save_total_limit": ("keep_latest_k",),
    "scheduler": ("lr_scheduler",),
    "scoring_func": ("score_func",),
    "sequence_length": ("seq_len",),
    "tied": ("tie_word_embeddings",),
    "topk_group": ("num_limited_groups",),
    "total_steps": ("steps",),
    "total_tokens": ("tokens",),
    "tp": ("tensor_parallel_degree",),
    "train": ("training",),
    "train_steps": ("steps",),
    "train_tokens": ("tokens",),
    "trainer": ("training", "kind"),
    "type": ("name",),
    "use_qk_norm": ("qk_norm",),
    "val": ("validation",),
    "val_set_size": ("holdout",),
    "val_size": ("holdout",),
    "warmup": ("warmup_steps",),
    "warmup_fraction": ("warmup_ratio",),
    "wd": ("weight_decay",),
}

# allowed on the command line only
FLAGS = {
    "trust_remote_code": "a recipe cannot allow third-party code to run: read the code that comes "
    "with the weights, then start with --trust"
}


def add_hints(problems: tuple[Problem, ...], tree: Node) -> list[Problem]:
    """Return the problems; those about torchtitan names get a hint with titanrun's names."""
    if not any(problem.code in ("unknown-key", "unknown-name") for problem in problems):
        return list(problems)
    data = to_plain_data(tree)
    return [add_hint(problem, data) for problem in problems]


def add_hint(problem: Problem, data: Any) -> Problem:
    """Return a problem with a hint, if there is one."""
    if problem.code == "unknown-key" and problem.path[-1] in FLAGS:
        return replace(problem, hint=FLAGS[str(problem.path[-1])], suggestion=None, fix=None)
    if problem.code == "unknown-name":
        hint = torchtitan_hints.format_component_hint(
            problem.got["name"] if isinstance(problem.got, dict) else problem.got
        )
    elif problem.code == "unknown-key":
        value = find_value(data, problem.path)
        hints = [
            found
            for path in iter_leaf_paths(value, problem.path)
            if (found := torchtitan_hints.format_key_hint(format_path(path)))
        ]
        hint = (
            format_key_meaning(problem.path, data)
            or torchtitan_hints.format_section_hint(format_path(problem.path))
            or "; ".join(hints[:MAX_HINTS])
        )
    else:
        return problem
    return replace(problem, hint=hint, suggestion=None, fix=None) if hint else problem


def iter_leaf_paths(value: Any, path: DataPath) -> Iterator[DataPath]:
    """Yield the paths of the values below a mapping."""
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from iter_leaf_paths(inside, (*path, key))
    else:
        yield path
