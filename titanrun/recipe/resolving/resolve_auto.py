"""Resolution of every `auto` from the rest of the recipe.

It is pure: the same recipe is the same run everywhere.
"""

from pathlib import Path, PurePath
from typing import Any

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.converters.config import QloraConfig
from titanrun.components.data.chat_config import TinyChatDatasetConfig
from titanrun.components.data.config import DatasetConfig, TinyDatasetConfig, TinyImagesConfig
from titanrun.components.data.replies_config import TinyPairsConfig
from titanrun.components.data.stream_config import StreamFields
from titanrun.components.lr_schedulers.config import LRSchedulerConfig, WarmupScheduleConfig
from titanrun.config.base import dump_config, iter_nested_configs
from titanrun.config.problems import Problem, ProblemsFound, RelatedLocation
from titanrun.config.types import AUTO
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.recipe.dump_folder import path_exists
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.logprob_limits import (
    resolve_logprob_limits,
    resolve_rl_converters,
)
from titanrun.recipe.resolving.model_folder import explain_model_folder
from titanrun.recipe.resolving.resolve_loss import resolve_loss
from titanrun.recipe.resolving.run_length import compute_warmup_steps, resolve_run_length
from titanrun.recipe.rundir.run_files import RESOLVED, RUNS
from titanrun.recipe.rundir.saved_shapes import find_newest_checkpoint
from titanrun.rl.config import RlConfig
from titanrun.rl.prompts.config import SyntheticPromptsConfig

BUNDLED_DATASETS = (TinyDatasetConfig, TinyChatDatasetConfig, TinyImagesConfig, TinyPairsConfig)
# hidden, since it is in the folder of runs but is not a run
SHARED_CACHE = f"{RUNS}/.data"
MAX_WARMUP_STEPS = 200
MAX_AUTO_LANES = 64
STREAM_WORKERS = 2
WARMUP_DIVISOR = 10
# entries of a vocabulary from which on metrics of all logits are not computed unasked
LARGE_VOCABULARY = 65_536
PRETRAIN = "pretrain"


def resolve_auto_fields(recipe: Recipe, *, file: str, ranks: int | None = None) -> dict[str, Any]:
    """Return the recipe as plain data with every `auto` resolved.

    The three that depend on the machine stay `auto`. `ranks` is None if unknown.

    Raises:
        ProblemsFound: If a size cannot be resolved.
    """
    data = dump_config(recipe)
    data["name"] = recipe.name or PurePath(file).stem
    data["dump_folder"] = None
    data["model"] = resolve_sizes(recipe)
    resolve_attention_documents(recipe, data["model"])
    data["tokenizer"] = resolve_tokenizer(recipe, data["tokenizer"])
    data["checkpoint"] |= resolve_initial_load(recipe)
    data["training"] |= resolve_batch_sizes(recipe, ranks)
    if recipe.training.lanes == AUTO:
        data["training"]["lanes"] = find_num_lanes(
            recipe, global_batch_size=data["training"]["global_batch_size"]
        )
    resolve_streams(recipe, data)
    resolve_loaders(recipe, data)
    resolve_loss(recipe, data)
    resolve_head_products(recipe, data)
    data["training"] |= resolve_run_length(
        recipe, global_batch_size=data["training"]["global_batch_size"]
    )
    if recipe.training.data_cache == AUTO:
        data["training"]["data_cache"] = SHARED_CACHE if recipe.dump_folder is None else None
    data["lr_scheduler"] |= resolve_schedule(recipe, steps=data["training"]["steps"])
    data["validation"] |= resolve_validation(recipe)
    data["evaluation"]["tasks"] = resolve_evaluation_tasks(
        data["evaluation"]["tasks"], data["validation"]
    )
    if recipe.checkpoint.adapters_only == AUTO:
        adapters = find_lora_converter(recipe)
        data["checkpoint"]["adapters_only"] = isinstance(adapters, QloraConfig)
    resolve_rl_converters(recipe, data["converters"])
    if recipe.rl is not None:
        resolve_rl(recipe.rl, recipe.training.dataset, data["rl"])
        resolve_entropy_metric(data["model"].get("vocab_size"), data["rl"]["algorithm"])
        data["rl"]["sync"] |= resolve_logprob_limits(recipe, recipe.rl, data["converters"])
    return data


def resolve_rl(config: RlConfig, dataset: DatasetConfig, rl: dict[str, Any]) -> None:
    """Set validation prompts and the handling of equal rewards in the section's plain data."""
    if config.validation.dataset == AUTO:
        rl["validation"]["dataset"] = find_held_out_prompts(dataset)
    if config.rollout.drop_zero_variance == AUTO:
        rl["rollout"]["drop_zero_variance"] = not config.algorithm.learns_from_equal_rewards
    if config.schedule.on_too_old == AUTO:
        rl["schedule"]["on_too_old"] = "error" if config.schedule.max_age is None else "drop"


def resolve_entropy_metric(vocab_size: Any, algorithm: dict[str, Any]) -> None:
    """Set whether the entropy is logged in the algorithm's plain data."""
    if algorithm["entropy_metric"] == AUTO:
        is_known = isinstance(vocab_size, int)
        algorithm["entropy_metric"] = is_known and vocab_size < LARGE_VOCABULARY


def resolve_sizes(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the model with all sizes.

    Raises:
        ProblemsFound: If a size cannot be resolved.
    """
    try:
        return resolve_model_sizes(recipe.model, seq_len=recipe.training.seq_len)
    except ProblemsFound as found:
        named = recipe.model.hf_assets_path
        raise ProblemsFound(explain_model_folder(found.problems, named)) from None


def resolve_attention_documents(recipe: Recipe, model: dict[str, Any]) -> None:
    """Set what starts a document in the model's plain data.

    It is positions if those of the dataset restart, else end-of-text tokens.
    """
    attention = model.get("attention")
    if isinstance(attention, dict) and attention.get("documents") == AUTO:
        source = "positions" if recipe.training.dataset.restarts_positions else "eos"
        attention["documents"] = source if attention["mask"] == "block_causal" else None


def resolve_tokenizer(recipe: Recipe, written: Any) -> Any:
    """Return the tokenizer; if it is not written and the data is text, the model's own.

    The tiny corpus uses the tiny tokenizer. A folder that is not written is the model's.

    Raises:
        ProblemsFound: If the model has no folder.
    """
    if written != AUTO:
        return resolve_tokenizer_path(recipe, written)
    if not recipe.training.dataset.needs_tokenizer:
        return None
    if recipe.model.hf_assets_path is not None:
        return {"name": "huggingface", "path": recipe.model.hf_assets_path}
    return {"name": "tiny"} if isinstance(recipe.training.dataset, BUNDLED_DATASETS) else None


def resolve_tokenizer_path(recipe: Recipe, written: Any) -> Any:
    """Return a written tokenizer with its folder."""
    if not isinstance(written, dict) or written.get("path") != AUTO:
        return written
    if recipe.model.hf_assets_path is None:
        problem = Problem(
            "conflict",
            "the tokenizer has no folder: neither tokenizer.path nor model.hf_assets_path is set",
            ("tokenizer",),
            hint="set one of them, or tokenizer.name: tiny for a trial",
            # follows from a model that was not fetched
            related=(RelatedLocation(None, "is not set", ("model", "hf_assets_path")),),
        )
        raise ProblemsFound([problem])
    return {**written, "path": recipe.model.hf_assets_path}


def resolve_initial_load(recipe: Recipe) -> dict[str, Any]:
    """Return where the initial weights come from, if that is not written.

    A model that is not pretrained starts from the weights in its folder, if there are any. A run or
    checkpoint of titanrun is in its own layout, whatever the recipe says of a Hugging Face folder.
    """
    section, assets = recipe.checkpoint, recipe.model.hf_assets_path
    if section.initial_load_path != AUTO:
        in_hf = ("initial_load_in_hf", "initial_load_in_hf_quantized")
        return dict.fromkeys(in_hf, False) if starts_from_run(section) else {}
    starts_there = (
        recipe.kind != PRETRAIN
        and assets is not None
        and section.initial_load_model_only
        and "initial_load_in_hf" not in section.model_fields_set
        and has_weights(assets)
    )
    if not starts_there:
        return {"initial_load_path": None}
    return {"initial_load_path": assets, "initial_load_in_hf": True}


def starts_from_run(section: CheckpointConfig) -> bool:
    """Return whether a run or checkpoint of titanrun on this machine is at initial_load_path."""
    named = section.initial_load_path
    if named is None or is_storage_path(named) or is_huggingface_folder(Path(named)):
        return False
    inside = {section.folder, CheckpointConfig().folder}
    folders = sorted(name for name in inside if not is_storage_path(name))
    is_run = path_exists(Path(named, RESOLVED))
    return is_run or find_newest_checkpoint(Path(named), folders) is not None


def has_weights(folder: str) -> bool:
    """Return whether a folder of this machine has weights of Hugging Face's format."""
    return not is_storage_path(folder) and any(Path(folder).glob("*.safetensors"))


def resolve_batch_sizes(recipe: Recipe, ranks: int | None) -> dict[str, Any]:
    """Return the global batch size if it is not written: one forward pass per rank and step.

    An unspecified number of ranks counts as one shard.
    """
    if recipe.training.global_batch_size != AUTO:
        return {}
    degrees = resolve_parallel_dims(recipe.parallelism, ranks)
    readers = degrees.dp_size if degrees else recipe.parallelism.data_parallel_replicate_degree
    groups = recipe.fault_tolerance.group_size if recipe.fault_tolerance.enable else 1
    return {"global_batch_size": recipe.training.local_batch_size * readers * groups}


def find_num_lanes(recipe: Recipe, *, global_batch_size: int) -> int | None:
    """Return the lanes of streamed data, the same for any number of ranks, None without streams."""
    if not recipe.training.dataset.is_streamed:
        return None
    return max(count for count in range(1, MAX_AUTO_LANES + 1) if global_batch_size % count == 0)


def resolve_loaders(recipe: Recipe, data: dict[str, Any]) -> None:
    """Set how training and validation data is read in the recipe's plain data.

    Batches of a device that may be an accelerator wait in page-locked memory.
    """
    copies_tokens = recipe.device != "cpu" and recipe.model.modality == "tokens"
    streams = recipe.training.dataset.is_streamed
    for section, count in (("training", STREAM_WORKERS if streams else 0), ("validation", 0)):
        loader = data[section]["dataloader"]
        if loader["num_workers"] == AUTO:
            loader["num_workers"] = count
        if loader["pin_memory"] == AUTO:
            loader["pin_memory"] = copies_tokens and recipe.rl is None


def resolve_head_products(recipe: Recipe, data: dict[str, Any]) -> None:
    """Set the products of an output head in fp32 in the recipe's plain data."""
    for converter in data["converters"]:
        if converter.get("products") == AUTO:
            converter["products"] = "ieee" if recipe.device == "cpu" else "tf32"


def resolve_streams(recipe: Recipe, data: dict[str, Any]) -> None:
    """Set in the recipe's plain data which datasets are streamed, and their windows.

    The window of others is null.
    """
    for path, config in iter_nested_configs(recipe):
        if isinstance(config, StreamFields):
            section: Any = data
            for name in path:
                section = section[name]
            section["streaming"] = config.is_streamed
            if config.window == AUTO:
                section["window"] = config.resolve_window()


def resolve_schedule(recipe: Recipe, *, steps: int | None) -> dict[str, Any]:
    """Return the warmup and horizon that are not written; both are null while the steps are.

    The warmup is its written share of the run, else a tenth, at most 200 steps. The horizon is the
    run.
    """
    if steps is None and recipe.training.epochs is None:  # a mistake that a rule reports
        return {}
    followed = (
        compute_schedule_steps(steps, recipe.lr_scheduler)
        if steps is not None
        else {"warmup_steps": None, "total_steps": None}
    )
    return {
        name: value
        for name, value in followed.items()
        if getattr(recipe.lr_scheduler, name, None) == AUTO
    }


def compute_schedule_steps(steps: int, schedule: LRSchedulerConfig) -> dict[str, int]:
    """Return the schedule fields derived from the length of the run."""
    share = schedule.warmup_ratio if isinstance(schedule, WarmupScheduleConfig) else None
    warmup = min(MAX_WARMUP_STEPS, steps // WARMUP_DIVISOR)
    return {
        "warmup_steps": warmup if share is None else compute_warmup_steps(share, steps),
        "total_steps": steps,
    }


def fill_steps(run: Recipe, steps: int) -> Recipe:
    """Return the run with null steps, and the fields derived from them, filled in.

    Called by the worker, which knows how many sequences an epoch has.
    """
    schedule = dict(run.lr_scheduler)
    schedule |= {
        name: value
        for name, value in compute_schedule_steps(steps, run.lr_scheduler).items()
        if name in schedule and schedule[name] is None
    }
    # not through plain data, which fails validation if the worker has filled in a secret
    training = type(run.training).model_validate({**dict(run.training), "steps": steps})
    return type(run).model_validate(
        {
            **dict(run),
            "training": training,
            "lr_scheduler": type(run.lr_scheduler).model_validate(schedule),
        }
    )


def find_held_out_prompts(dataset: DatasetConfig) -> dict[str, Any] | None:
    """Return the held-out split of a synthetic prompt dataset; None for any other."""
    is_made_up = isinstance(dataset, SyntheticPromptsConfig)
    return (
        dump_config(dataset) | {"split": "held_out", "shuffle": False, "repeat": False}
        if is_made_up
        else None
    )


def resolve_validation(recipe: Recipe) -> dict[str, Any]:
    """Return the validation fields that are not written.

    Sequence length and batch size are as in training. The dataset is the held-out split if training
    uses a dataset that ships with titanrun and holds nothing out itself.
    """
    validation, training = recipe.validation, recipe.training
    decided: dict[str, Any] = {}
    if validation.enable == AUTO:
        decided["enable"] = validation.holdout is not None
    if validation.local_batch_size == AUTO:
        decided["local_batch_size"] = training.local_batch_size
    if validation.seq_len == AUTO:
        decided["seq_len"] = training.seq_len
    if validation.dataset == AUTO:
        decided["dataset"] = None
        if isinstance(training.dataset, BUNDLED_DATASETS) and validation.holdout is None:
            held_out = {"split": "held_out", "shuffle": False, "repeat": False}
            decided["dataset"] = dump_config(training.dataset) | held_out
    return decided


def resolve_evaluation_tasks(
    tasks: list[dict[str, Any]], validation: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the tasks with the fields they inherit from validation."""
    return [
        task | {key: validation[key] for key in ("dataset", "seq_len") if task.get(key) == AUTO}
        for task in tasks
    ]
