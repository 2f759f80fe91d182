"""Names of other tools for titanrun's fields."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from titanrun.config.key_suggestions import NAME
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import DataPath, Problem
from titanrun.config.suggest import edit_distance, normalize_spelling
from titanrun.config.tree import Node, format_path, to_plain_data
from titanrun.config.type_introspection import find_value
from titanrun.config.validate_tree import KNOWN_KEYS
from titanrun.recipe.editing.component_meanings import (
    format_layout_meaning,
    format_listed_adapters,
    format_name_meaning,
    format_section_meaning,
    format_value_word,
    list_native_modules,
)
from titanrun.recipe.editing.data_keys import (
    describe_named_dataset,
    find_missing_name,
    format_data_key,
)
from titanrun.recipe.editing.key_meanings import format_key_meaning, format_value_meaning
from titanrun.recipe.editing.section_words import format_section_word
from titanrun.recipe.editing.word_fixes import build_hinted_fix

if TYPE_CHECKING:
    from titanrun.recipe.migrate import program_hints as program_hints
    from titanrun.recipe.migrate import torchtitan_hints as torchtitan_hints
else:
    # imported only if a recipe has unknown names
    program_hints = LazyModule("titanrun.recipe.migrate.program_hints")
    torchtitan_hints = LazyModule("titanrun.recipe.migrate.torchtitan_hints")

MAX_HINTS = 3
TRAINING = "training"
HINTED = ("missing-key", "out-of-range", "unknown-key", "unknown-name", "wrong-type")
"""Codes of problems that a name or a value of another program may cause."""

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
        *("lora_alpha", "lora_dropout", "lora_r", "lora_rank", "r", "use_dora", "use_rslora"),
        *("dora", "logging_steps", "output_dir", "rslora", "save_total_limit"),
        *("cutoff_len", "max_epochs", "max_seq_length", "num_epochs", "num_train_epochs"),
        *("sequence_len", "sequence_length", "topk_group", "train_steps", "use_qk_norm", "wd"),
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
    "buffer_size": ("window",),
    "checkpoint_dir": ("folder",),
    "checkpoint_every": ("interval",),
    "checkpoints": ("checkpoint",),
    "clip_grad": ("max_norm",),
    "clip_grad_norm": ("max_norm",),
    "config": ("subset",),
    "config_name": ("subset",),
    "content_field": ("column",),
    "context_length": ("seq_len", "max_seq_len"),
    "cutoff_len": ("seq_len",),
    "data": ("dataset",),
    "data_config": ("subset",),
    "data_files": ("path",),
    "data_parallel_size": ("data_parallel_shard_degree",),
    "data_path": ("path",),
    "datasets": ("sources",),
    "decay": ("decay_ratio", "weight_decay"),
    "dir": ("dump_folder", "folder"),
    "dora": ("magnitude",),
    "dp": ("data_parallel_shard_degree",),
    "embed_dim": ("dim",),
    "epsilon": ("eps",),
    "eval": ("validation",),
    "eval_interval": ("freq",),
    "eval_every": ("freq",),
    "eval_steps": ("freq",),
    "evaluation": ("validation",),
    "every": ("interval", "freq"),
    "ffn_dim": ("hidden_dim",),
    "field": ("column",),
    "file": ("path",),
    "file_path": ("path",),
    "filename": ("path",),
    "files": ("path",),
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
    "lora_rank": ("rank",),
    "lora_target_modules": ("target_modules",),
    "lr_schedule": ("lr_scheduler",),
    "max_docs": ("max_documents",),
    "max_epochs": ("epochs",),
    "max_grad_norm": ("max_norm",),
    "max_length": ("seq_len",),
    "max_position_embeddings": ("max_seq_len",),
    "max_samples": ("max_documents",),
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
    "num_docs": ("max_documents",),
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
    "path": ("folder",),
    "per_device_train_batch_size": ("local_batch_size",),
    "pp": ("pipeline_parallel_degree",),
    "precision": ("mixed_precision_param", "dtype"),
    "r": ("rank",),
    "random_seed": ("seed",),
    "report_to": ("trackers",),
    "routed_scaling_factor": ("route_scale",),
    "rslora": ("rank_stabilized",),
    "run_name": ("name",),
    "repo_id": ("repo",),
    "save_dir": ("folder", "dump_folder"),
    "save_every": ("interval",),
    "save_steps": ("interval",),
    "save_total_limit": ("keep_latest_k",),
    "scheduler": ("lr_scheduler",),
    "scoring_func": ("score_func",),
    "sequence_len": ("seq_len",),
    "sequence_length": ("seq_len",),
    "shuffle_buffer": ("window",),
    "shuffle_buffer_size": ("window",),
    "text_column": ("column",),
    "text_field": ("column",),
    "text_key": ("column",),
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
    "use_dora": ("magnitude",),
    "use_qk_norm": ("qk_norm",),
    "use_rslora": ("rank_stabilized",),
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
    """Return the problems; those about names and values of others get a hint with titanrun's."""
    if not any(problem.code in HINTED for problem in problems):
        return list(problems)
    data = list_native_modules(to_plain_data(tree))
    add_meant_sections(data, problems)
    return [add_hint(problem, data, tree) for problem in problems]


def drop_written_keys(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems without those of required keys that hints for other names write."""
    hints = [str(problem.hint) for problem in problems if problem.code == "unknown-key"]
    return [problem for problem in problems if not is_written_by_hint(problem, hints)]


def is_written_by_hint(problem: Problem, hints: Sequence[str]) -> bool:
    """Return whether a key is only missing because another name stands in its place.

    A single setting of a component does not write the component.
    """
    if problem.code != "missing-key":
        return False
    key = re.escape(format_path(problem.path))
    return any(re.match(rf"write {key}(: |\.[\w.]+: {{)", hint) for hint in hints)


def add_meant_sections(data: Any, problems: tuple[Problem, ...]) -> None:
    """Add misspelled sections by the names that they mean, by which the problems in them call them.

    `data` is changed.
    """
    for problem in problems:
        holder = find_value(data, problem.path[:-1]) if problem.code == "unknown-key" else None
        if isinstance(holder, dict) and isinstance(holder.get(problem.path[-1]), dict):
            holder.setdefault(problem.suggestion or problem.path[-1], holder[problem.path[-1]])


def add_hint(problem: Problem, data: Any, tree: Node) -> Problem:
    """Return a problem with a hint, if there is one."""
    if problem.code == "unknown-name":
        name = problem.got["name"] if isinstance(problem.got, dict) else problem.got
        hint = (
            format_name_meaning(name, problem.path, data)
            or describe_named_dataset(name, problem.path, data)
            or format_value_word(problem.path, name)
            or program_hints.describe_named_model(problem.path, name)
            or torchtitan_hints.format_component_hint(name)
        )
    elif problem.code == "unknown-key":
        hint = find_key_hint(problem, data)
    elif problem.code in ("out-of-range", "wrong-type"):
        hint = (
            format_value_meaning(problem.path, problem.got, data)
            or format_value_word(problem.path, problem.got)
            or format_listed_adapters(problem.path, data)
        )
    elif problem.code == "missing-key":
        return replace(problem, hint=find_missing_name(problem, data) or problem.hint)
    else:
        return problem
    if hint:
        # without its suggestion, a component would be told that its name is missing too
        kept = NAME if problem.suggestion == NAME else None
        fix = build_hinted_fix(problem, hint, tree)
        return replace(problem, hint=hint, suggestion=kept, fix=fix)
    return replace(problem, fix=None) if belongs_to_program(problem) else problem


def find_key_hint(problem: Problem, data: Any) -> str:
    """Return a better hint for an unknown key than its problem has, or an empty text."""
    path, value = problem.path, find_value(data, problem.path)
    holder = find_value(data, path[:-1])
    # below a misspelled section there is no value at the path that was meant
    may_be_component = (
        path[:-1] in ((), (TRAINING,)) and isinstance(holder, dict) and path[-1] in holder
    )
    if path[-1] in FLAGS:
        return FLAGS[str(path[-1])]
    if problem.suggestion is not None and torchtitan_hints.is_renamed_key(
        format_path(path), format_path((*path[:-1], problem.suggestion))
    ):
        return ""  # the suggestion says the same, and can be applied
    meant = (
        format_section_word(path, data)
        or (may_be_component and format_section_meaning(str(path[-1]), holder))
        or format_layout_meaning(path, data)
        or format_data_key(path, data)
        or format_key_meaning(path, data)
        or (isinstance(value, dict) and torchtitan_hints.format_section_hint(format_path(path)))
        or "; ".join(list_torchtitan_hints(path, value)[:MAX_HINTS])
    )
    if meant or is_replacement(problem):
        return meant
    return (
        program_hints.describe_reply_key(path, value, data)
        or program_hints.describe_program_key(path, value)
        or (program_hints.describe_program_target(path, value) if is_guess(problem) else "")
    )


def is_replacement(problem: Problem) -> bool:
    """Return whether an unknown key is certainly another spelling or name of the suggested one."""
    return problem.fix is not None and not is_typo(problem)


def is_typo(problem: Problem) -> bool:
    """Return whether an unknown key is taken for the suggested one with a wrong letter."""
    word, meant = str(problem.path[-1]), str(problem.suggestion)
    known = word.lower().replace("-", "_") in SYNONYMS
    return not known and normalize_spelling(word) != normalize_spelling(meant)


def belongs_to_program(problem: Problem) -> bool:
    """Return whether what looks like a typo, and would be corrected, is a key of a program."""
    if problem.fix is None or problem.code != "unknown-key" or not is_typo(problem):
        return False
    return program_hints.is_program_key(problem.path)


def list_torchtitan_hints(path: DataPath, value: Any) -> list[str]:
    """Return where the keys of torchtitan at or below a path belong."""
    hints = (
        torchtitan_hints.format_key_hint(format_path(leaf)) for leaf in iter_leaf_paths(value, path)
    )
    return [hint for hint in hints if hint]


def is_guess(problem: Problem) -> bool:
    """Return whether the hint for an unknown key knows only the spelling of other keys."""
    if problem.suggestion is None:
        return (problem.hint or "").startswith(KNOWN_KEYS)
    word = str(problem.path[-1]).lower().replace("-", "_")
    is_near = edit_distance(word, problem.suggestion, 1) <= 1
    return problem.suggestion not in SYNONYMS.get(word, ()) and not is_near


def iter_leaf_paths(value: Any, path: DataPath) -> Iterator[DataPath]:
    """Yield the paths of the values below a mapping."""
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from iter_leaf_paths(inside, (*path, key))
    else:
        yield path
