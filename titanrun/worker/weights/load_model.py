"""Loading of a checkpoint or a Hugging Face folder as a model in evaluation mode."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import is_adapter, split_adapters
from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader
from titanrun.components.checkpoints.spec.hf_quantization import find_hf_quantization
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.converters.config import LoraConfig
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.json_text import parse_json
from titanrun.config.lazy_module import LazyModule
from titanrun.distributed.device import select_device
from titanrun.distributed.dtensor import copy_full_into_
from titanrun.distributed.meta_device import allocate_model, init_on_meta_device
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.worker.build.apply_replacements import apply_replacements
from titanrun.worker.weights.huggingface_export import GENERATION_FILE
from titanrun.worker.weights.initial_weights import load_checkpoint_recipe, read_dequantized_weights
from titanrun.worker.weights.saved_weights import (
    load_starting_weights,
    load_verified_weights,
    merge_adapter_weights,
)

if TYPE_CHECKING:
    from titanrun.worker.build import build_model, build_parallelism
else:
    # only needed with several processes
    build_model = LazyModule("titanrun.worker.build.build_model")
    build_parallelism = LazyModule("titanrun.worker.build.build_parallelism")

WeightSource = Mapping[str, Any]
"""Location of weights, with the key `checkpoint` or `huggingface`. With a true `is_base` they are
those that the run of the checkpoint started from."""


def load_model(
    recipe: Recipe,
    weight_source: WeightSource,
    *,
    seq_len: int,
    meshes: ParallelMeshes | None = None,
    device: torch.device | None = None,
) -> torch.nn.Module:
    """Load the model for sequences of up to `seq_len` tokens, in evaluation mode.

    The dtype is fp32 on a CPU and bf16 on an accelerator. Without `device` it is that of the
    recipe, or of `meshes`. With `meshes`, each tensor-parallel rank has a part of every matrix.
    Activations and logits are whole on each rank, because prompts have any lengths.
    """
    if device is None:
        device = select_device(recipe.device) if meshes is None else meshes.device
    with init_on_meta_device():
        model: torch.nn.Module = recipe.model.load_builder()(recipe.model, seq_len=seq_len)
        apply_replacements(recipe, model)
    model.to(torch.float32 if device.type == "cpu" else torch.bfloat16)
    if meshes is None:
        allocate_model(model, device)
        model.init_weights()  # type: ignore[operator]
        model.load_state_dict(load_weights(recipe, weight_source))
        return model.eval()
    build_parallelism.maybe_apply_tensor_parallel(recipe, model, meshes, is_weights_only=True)
    build_model.materialize_and_init(model, device=device, seed=recipe.debug.seed)
    own, given = model.state_dict(), load_weights(recipe, weight_source)
    assert own.keys() == given.keys(), f"weights differ by {sorted(own.keys() ^ given.keys())[:3]}"
    with torch.no_grad():
        for name, whole in given.items():
            copy_full_into_(own[name], whole)
    return model.eval()


def load_adapted_model(
    recipe: Recipe, weight_source: WeightSource, *, seq_len: int
) -> torch.nn.Module | None:
    """Load a model with its adapters apart, as `load_model` loads it with them merged.

    With its adapters disabled it is the model that its run started from.

    Returns:
        None for a run that trained other weights than low-rank adapters of unquantized ones.

    Raises:
        ProblemsFound: If the run started from weights that were drawn.
    """
    lora = find_lora_converter(recipe)
    if type(lora) is not LoraConfig:
        return None
    checkpoint = CheckpointReader(parse_storage_path(weight_source["checkpoint"]))
    saved, adapters = split_adapters(load_verified_weights(checkpoint))
    base = load_starting_weights(checkpoint)
    if not adapters or any(not torch.equal(base[name], found) for name, found in saved.items()):
        return None
    device = select_device(recipe.device)
    with init_on_meta_device():
        model: torch.nn.Module = recipe.model.load_builder()(recipe.model, seq_len=seq_len)
        apply_replacements(recipe, model)
        lora.load_builder()(lora, model=model, shards=1)
    model.to(torch.float32 if device.type == "cpu" else torch.bfloat16)
    allocate_model(model, device)
    model.init_weights()  # type: ignore[operator]
    model.load_state_dict({**base, **adapters})
    return model.eval()


def load_weights(recipe: Recipe, weight_source: WeightSource) -> dict[str, Tensor]:
    """Load the weights by the model's names, with adapters merged.

    Raises:
        ProblemsFound: If the weights that a run started from are asked for, and were drawn.
    """
    if "checkpoint" in weight_source:
        checkpoint = CheckpointReader(parse_storage_path(weight_source["checkpoint"]))
        if weight_source.get("is_base"):
            return load_starting_weights(checkpoint)
        found = load_verified_weights(checkpoint)
        return (
            merge_adapter_weights(found, load_checkpoint_recipe(checkpoint), checkpoint)
            if any(map(is_adapter, found))
            else found
        )
    folder = parse_storage_path(weight_source["huggingface"])
    plain = read_dequantized_weights(folder, is_quantized=find_hf_quantization(folder) is not None)
    own: dict[str, Tensor] = load_family_module(type(recipe.model), "huggingface").from_huggingface(
        recipe.model, plain
    )
    return own


def load_end_token_ids(tokenizer: Tokenizer, weight_source: WeightSource) -> frozenset[int]:
    """Return the end tokens of the tokenizer and of the folder's generation_config.json."""
    found = set() if tokenizer.eos_id is None else {tokenizer.eos_id}
    file = Path(weight_source.get("huggingface", "")) / GENERATION_FILE
    if "huggingface" in weight_source and file.is_file():
        named = parse_json(file.read_text(encoding="utf-8")).get("eos_token_id")
        found |= set(named if isinstance(named, list) else [] if named is None else [named])
    return frozenset(found)
