"""Initial weights of a model, and export of a trained model to a Hugging Face folder."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import (
    is_adapter,
    split_adapters,
)
from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader, LoadTolerance
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.dequantize import dequantize_weights
from titanrun.components.checkpoints.huggingface import (
    read_hf_folder,
)
from titanrun.components.checkpoints.optimizer_state import OPTIMIZER_PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.spec.hf_quantization import check_hf_quantization
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    is_storage_path,
    parse_storage_path,
)
from titanrun.components.checkpoints.spec.verification import find_damaged_files
from titanrun.components.checkpoints.tensor_metadata import TensorMetadata
from titanrun.components.converters.lora import reset_magnitudes
from titanrun.config.problems import problem_error
from titanrun.distributed.dtensor import copy_full_into_
from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.quantized_weights import QuantizedWeight
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import fetch_resolved_recipe
from titanrun.training.engine import MODEL_PREFIX, Engine
from titanrun.training.snapshot_tensors import format_name_list

log = logging.getLogger(__name__)

INITIAL_LOAD_PATH = ("checkpoint", "initial_load_path")
HEAD = f"{MODEL_PREFIX}output.weight"


def load_initial_weights(
    config: CheckpointConfig,
    *,
    model_config: ModelConfig,
    engine: Engine,
    ranks: RankGroup,
    seed: int,
) -> None:
    """Load the model's weights from `initial_load_path` or its Hugging Face folder.

    Do nothing if the recipe asks for neither.

    Args:
        config: the checkpoint section.
        model_config: the model section.
        engine: the engine of the model.
        ranks: ranks that load together, in a group without the collective timeout of training.
        seed: the seed of the model's weights.
    """
    if config.initial_load_in_hf:
        folder = get_huggingface_folder(config, model_config)
        quantized = config.initial_load_in_hf_quantized
        # each rank reads all files. The ranks wait for the slowest here, because the timeout of a
        # training step would be too short
        ranks.all_gather_results(
            lambda: load_huggingface(
                folder, model_config=model_config, engine=engine, is_quantized=quantized
            )
        )
    elif config.initial_load_path is not None:
        checkpoint = get_initial_checkpoint(config, ranks)
        if all(
            is_adapter(name)
            for name in checkpoint.load_tensor_metadata()
            if name.startswith(MODEL_PREFIX)
        ):
            load_adapter_base_weights(checkpoint, engine=engine, ranks=ranks, seed=seed)
        load_checkpoint_weights(checkpoint, engine, config, ranks)


def load_adapter_base_weights(
    checkpoint: CheckpointReader, *, engine: Engine, ranks: RankGroup, seed: int
) -> None:
    """Load the frozen weights that a checkpoint of adapters leaves out.

    They come from where the checkpoint's run loaded them.
    """
    parent = load_checkpoint_recipe(checkpoint)
    is_random = (
        not parent.checkpoint.initial_load_in_hf and parent.checkpoint.initial_load_path is None
    )
    if is_random and parent.debug.seed != seed:
        message = (
            f"{checkpoint.folder} has adapters only, for weights that its run drew from "
            f"debug.seed {parent.debug.seed}"
        )
        raise problem_error(
            "checkpoint",
            message,
            path=INITIAL_LOAD_PATH,
            hint=f"set debug.seed: {parent.debug.seed}",
        )
    load_initial_weights(
        parent.checkpoint, model_config=parent.model, engine=engine, ranks=ranks, seed=seed
    )


def load_checkpoint_recipe(checkpoint: CheckpointReader) -> Recipe:
    """Return the recipe of the run that saved the checkpoint."""
    return load_resolved(Path(fetch_resolved_recipe(checkpoint.folder)))


def get_huggingface_folder(config: CheckpointConfig, model_config: ModelConfig) -> AnyPath:
    """Return the Hugging Face folder of the initial weights.

    Raises:
        ProblemsFound: the recipe sets no folder.
    """
    named = config.initial_load_path or model_config.hf_assets_path
    if named is None:
        message = "checkpoint.initial_load_in_hf is set, but no folder is"
        raise problem_error(
            "checkpoint",
            message,
            path=("checkpoint", "initial_load_in_hf"),
            hint="set checkpoint.initial_load_path or model.hf_assets_path",
        )
    return parse_storage_path(named)


def load_huggingface(
    folder: AnyPath, *, model_config: ModelConfig, engine: Engine, is_quantized: bool = False
) -> None:
    """Copy the weights of a Hugging Face folder into the model, cast to the model's dtype.

    Quantized weights are dequantized first.
    """
    own = load_family_module(type(model_config), "huggingface").from_huggingface(
        model_config, read_dequantized_weights(folder, is_quantized=is_quantized)
    )
    base, adapters = split_adapters(engine.named_state_tensors(with_optimizer=False))
    if model_config.output_dim() == 1:
        # a scalar head may be missing in the folder
        base = {name: base[name] for name in base if name.removeprefix(MODEL_PREFIX) in own}
    weights = {MODEL_PREFIX + name: tensor for name, tensor in own.items()}
    copy_weights_into(base, weights)
    reset_magnitudes(engine.model)
    log_loaded_weights(engine, folder)
    rounding = describe_rounding(base, weights)
    if rounding is not None and adapters and engine.role is None:
        log.info(
            "frozen weights are %s, also in merged exports "
            "(training.mixed_precision_param: float32 keeps them as they are)",
            rounding,
        )


def log_loaded_weights(engine: Engine, folder: AnyPath) -> None:
    """Log where the weights of a model come from, with its role if it is not the trained one."""
    model = "" if engine.role is None else f"{engine.role}: "
    log.info("%sloaded initial weights from %s", model, folder)


def describe_rounding(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> str | None:
    """Describe how weights get fewer bits in the model than in their file, None if none does.

    Quantized weights do not count: their converter says what it does.
    """
    for name, target in targets.items():
        source = sources.get(name)
        if (
            source is not None
            and not isinstance(target, QuantizedWeight)
            and target.dtype.itemsize < source.dtype.itemsize
        ):
            before, after = (str(one.dtype).removeprefix("torch.") for one in (source, target))
            return f"rounded from {before} to {after}"
    return None


def read_dequantized_weights(folder: AnyPath, *, is_quantized: bool) -> dict[str, Tensor]:
    """Read the weights of a Hugging Face folder, dequantized if necessary.

    Raises:
        ProblemsFound: the folder's quantization differs from the recipe's.
    """
    weights = read_hf_folder(folder)
    quantization = check_hf_quantization(folder, is_quantized=is_quantized)
    return weights if quantization is None else dequantize_weights(weights, quantization)


def get_initial_checkpoint(config: CheckpointConfig, ranks: RankGroup) -> CheckpointReader:
    """Return the checkpoint at initial_load_path after verifying it.

    Collective: all ranks must call this, and each verifies a part.

    Raises:
        ProblemsFound: there is no checkpoint, or it is damaged.
    """
    assert config.initial_load_path is not None
    named = parse_storage_path(config.initial_load_path)
    checkpoint = ranks.broadcast_from_main(lambda: get_checkpoint(named, config.folder))
    manifest = ranks.broadcast_from_main(checkpoint.load_manifest)
    parts = ranks.all_gather_results(
        lambda: find_damaged_files(
            checkpoint.folder,
            manifest,
            config.verify,
            shard_index=ranks.rank,
            num_shards=ranks.size,
        )
    )
    reasons = [reason for part in parts for reason in part]
    if reasons:
        raise problem_error(
            "checkpoint",
            f"{checkpoint.folder} cannot be used: {'; '.join(reasons)}",
            path=INITIAL_LOAD_PATH,
        )
    return checkpoint


def get_checkpoint(path: AnyPath, folder: str) -> CheckpointReader:
    """Return the checkpoint at `path`.

    `path` is a folder step-N, or a run directory or checkpoint folder, of which the latest
    checkpoint is used.

    Raises:
        ProblemsFound: there is no checkpoint.
    """
    checkpoint = CheckpointReader(path)
    if checkpoint.is_complete():
        return checkpoint
    inside = {folder, CheckpointConfig().folder} - {
        name for name in (folder,) if is_storage_path(name)
    }
    for candidate in (path, *(path / name for name in sorted(inside))):
        store = CheckpointStore(folder=candidate)
        latest = store.find_latest_step()
        if latest is not None:
            return store.get_checkpoint(latest)
    message = f"{path} is neither a checkpoint nor a run directory with one"
    raise problem_error(
        "checkpoint",
        message,
        path=INITIAL_LOAD_PATH,
        hint="use a folder step-N; beside the path of Hugging Face files, set "
        "checkpoint.initial_load_in_hf: true",
    )


def load_checkpoint_weights(
    checkpoint: CheckpointReader, engine: Engine, config: CheckpointConfig, ranks: RankGroup
) -> None:
    """Load the weights of a checkpoint into the model, cast to the model's dtype.

    The optimizer state is not loaded.
    """
    targets, saved = (
        engine.named_state_tensors(with_optimizer=False),
        checkpoint.load_tensor_metadata(),
    )
    fresh = find_fresh_head(targets, saved)
    targets = {name: tensor for name, tensor in targets.items() if name not in fresh}
    tolerance = LoadTolerance(
        allows_extra=config.allow_extra,
        allows_cast=True,
        ignore_prefix=OPTIMIZER_PREFIX,
        names_on_other_ranks=engine.gather_names_on_other_stages() | fresh,
    )
    base, adapters = split_adapters(targets)
    if not any(map(is_adapter, saved)):
        # weights without adapters: adapters keep their initial values
        targets = base
    elif all(is_adapter(name) for name in saved if name.startswith(MODEL_PREFIX)):
        targets = adapters
    # quantized weights are read into plain memory, then quantized
    plain = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype)
        if isinstance(tensor, QuantizedWeight)
        else tensor
        for name, tensor in targets.items()
    }
    checkpoint.load_tensors(plain, tolerance=tolerance, ranks=ranks)
    copy_weights_into(
        {name: tensor for name, tensor in targets.items() if isinstance(tensor, QuantizedWeight)},
        plain,
    )
    if targets is base:
        reset_magnitudes(engine.model)
    log_loaded_weights(engine, checkpoint.folder)


def find_fresh_head(
    targets: Mapping[str, Tensor], saved: Mapping[str, TensorMetadata]
) -> frozenset[str]:
    """Return the name of a scalar head if the checkpoint has the head of a language model."""
    head = targets.get(HEAD)
    if head is None or HEAD not in saved or len(head) != 1 or saved[HEAD].shape[0] == 1:
        return frozenset()
    return frozenset({HEAD})


@torch.no_grad()
def copy_weights_into(parameters: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    """Copy each weight into the model's tensor of that name."""
    for name, tensor in parameters.items():
        if weights[name] is not tensor:
            copy_full_into_(tensor, weights[name])


@torch.no_grad()
def load_weight_stream(
    weights: Iterable[tuple[str, Tensor]],
    engine: Engine,
    *,
    strict: bool,
    keeps_adapters: bool = False,
) -> None:
    """Copy full weights, by the model's own names, into the model as they arrive.

    Each rank copies its shard, cast to the model's dtype. Collective: all ranks must call this.

    Args:
        weights: full weights by name.
        engine: the engine of the model.
        strict: whether unknown and missing names are errors.
        keeps_adapters: whether adapters are not among the names and keep their values.

    Raises:
        ProblemsFound: a shape differs, or with `strict` a name is unknown or missing. Weights
            before it have been copied by then.
    """
    own = {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in engine.named_state_tensors(with_optimizer=False).items()
    }
    elsewhere = {name.removeprefix(MODEL_PREFIX) for name in engine.gather_names_on_other_stages()}
    missing, unknown = {name for name in own if not (keeps_adapters and is_adapter(name))}, []
    for name, tensor in weights:
        if name not in own:
            unknown += [] if name in elsewhere else [name]
            continue
        if own[name].shape != tensor.shape:
            message = (
                f"'{name}' has shape {list(tensor.shape)}, "
                f"but the model's has {list(own[name].shape)}"
            )
            raise problem_error(
                "checkpoint", message, hint="use weights of a model of the same size"
            )
        copy_full_into_(own[name], tensor)
        missing.discard(name)
    engine.on_state_loaded()
    for names, what in ((unknown, "unknown weights"), (sorted(missing), "missing weights")):
        if names and strict:
            raise problem_error(
                "checkpoint",
                f"{what}: {format_name_list(names)}",
                hint="pass exactly the model's weights, or strict=False",
            )
