"""A model with the weights of a checkpoint or a Hugging Face folder, in evaluation mode."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapters import is_adapter
from titanrun.components.checkpoints.addresses import place
from titanrun.components.checkpoints.checkpoint import Checkpoint
from titanrun.components.checkpoints.quantization import quantization_of
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.distributed.device import find_device
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.meta_device import allocate, on_meta_device
from titanrun.distributed.shards import fill
from titanrun.models.shared.family import family_module
from titanrun.recipe.recipe import Recipe
from titanrun.worker.checkpoint import good_weights, merged_weights, recipe_of
from titanrun.worker.replacements import replace_parts
from titanrun.worker.weights import GENERATION_FILE, read_plain

Job = Mapping[str, Any]
"""`checkpoint` or `huggingface`: where the weights are."""


def model_with_weights(
    recipe: Recipe, job: Job, *, row_length: int, meshes: Meshes | None = None
) -> torch.nn.Module:
    """The model, for rows of so many tokens, in fp32 on a CPU and in bf16 on an accelerator. The tensor-parallel ranks of `meshes` each
    have a part of every matrix, and the whole of the stream and of the logits: prompts have any lengths."""
    device = find_device(recipe.device) if meshes is None else meshes.device
    with on_meta_device():
        model: torch.nn.Module = recipe.model.builder()(recipe.model, seq_len=row_length)
        replace_parts(recipe, model)
    model.to(torch.float32 if device.type == "cpu" else torch.bfloat16)
    if meshes is None:
        allocate(model, device)
        model.init_weights()  # type: ignore[operator]
        model.load_state_dict(weights(recipe, job))
        return model.eval()
    # by name: what builds models of all ranks is far more than one process needs
    build = import_module("titanrun.worker.build_model")
    build.split_over_tensor_ranks(recipe, model, meshes, matrices_only=True)
    build.materialise(model, device=device, seed=recipe.debug.seed)
    own, given = model.state_dict(), weights(recipe, job)
    assert own.keys() == given.keys(), f"weights differ by {sorted(own.keys() ^ given.keys())[:3]}"
    with torch.no_grad():
        for name, whole in given.items():
            fill(own[name], whole)
    return model.eval()


def weights(recipe: Recipe, job: Job) -> dict[str, Tensor]:
    """The weights by the model's names, adapters in them."""
    if "checkpoint" in job:
        checkpoint = Checkpoint(place(job["checkpoint"]))
        found = good_weights(checkpoint)
        return (
            merged_weights(found, recipe_of(checkpoint), checkpoint)
            if any(map(is_adapter, found))
            else found
        )
    folder = place(job["huggingface"])
    plain = read_plain(folder, is_quantized=quantization_of(folder) is not None)
    own: dict[str, Tensor] = family_module(type(recipe.model), "huggingface").from_huggingface(
        recipe.model, plain
    )
    return own


def end_ids(tokenizer: Tokenizer, job: Job) -> frozenset[int]:
    """The tokens that end a text: the tokenizer's, and those of a Hugging Face folder's generation_config.json."""
    found = set() if tokenizer.eos_id is None else {tokenizer.eos_id}
    file = Path(job.get("huggingface", "")) / GENERATION_FILE
    if "huggingface" in job and file.is_file():
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        found |= set(named if isinstance(named, list) else [] if named is None else [named])
    return frozenset(found)
