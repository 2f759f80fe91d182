"""Weights read from checkpoints and Hugging Face folders, by the model's names."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.adapter_weights import (
    is_adapter,
    merge_adapters,
    split_adapters,
)
from titanrun.components.checkpoints.checkpoint_reader import (
    CheckpointReader,
    LoadTolerance,
    import_dcp_io,
)
from titanrun.components.checkpoints.spec.hf_quantization import find_hf_quantization
from titanrun.components.checkpoints.spec.storage_path import AnyPath, parse_storage_path
from titanrun.components.checkpoints.spec.verification import find_damaged_files
from titanrun.components.checkpoints.tensor_metadata import (
    TensorMetadata,
    find_tensor_mismatches,
    get_tensor_metadata,
)
from titanrun.components.converters.config import QloraConfig
from titanrun.components.converters.lora import list_quantized_modules
from titanrun.config.problems import problem_error
from titanrun.distributed.dtypes import get_dtype
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.distributed.quantized_weights import fake_quantize
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.training.engine import MODEL_PREFIX
from titanrun.worker.weights.drawn_weights import draw_base_weights
from titanrun.worker.weights.initial_weights import (
    get_checkpoint,
    get_huggingface_folder,
    load_checkpoint_recipe,
    read_dequantized_weights,
)
from titanrun.worker.weights.peft_adapters import read_adapters


def merge_adapter_weights(
    weights: dict[str, Tensor], recipe: Recipe, checkpoint: CheckpointReader
) -> dict[str, Tensor]:
    """Merge the adapters into the weights.

    Weights that the checkpoint leaves out are read from where its run loaded them, or drawn again.
    """
    lora = find_lora_converter(recipe)
    if lora is None or not any(map(is_adapter, weights)):
        raise problem_error(
            "usage", f"{checkpoint.folder} has no adapters to merge", hint="remove --merge"
        )
    base, adapters = split_adapters(weights)
    if not base:
        base = load_base_weights(recipe) or draw_base_weights(recipe, checkpoint)
    if isinstance(lora, QloraConfig):
        base = round_to_quantized_base(base, recipe, lora)
    return merge_adapters({**base, **adapters}, scale=lora.scale)


def load_starting_weights(checkpoint: CheckpointReader) -> dict[str, Tensor]:
    """Return the weights that the run of a checkpoint started from: its model without adapters.

    Raises:
        ProblemsFound: If it loaded none, but drew them.
    """
    recipe = load_checkpoint_recipe(checkpoint)
    base = load_base_weights(recipe)
    if not base:
        raise problem_error(
            "usage",
            f"the run of {checkpoint.folder} started from random weights",
            hint="--base compares with the model that a run has loaded; omit it",
        )
    lora = find_lora_converter(recipe)
    return round_to_quantized_base(base, recipe, lora) if isinstance(lora, QloraConfig) else base


def round_to_quantized_base(
    base: dict[str, Tensor], recipe: Recipe, config: QloraConfig
) -> dict[str, Tensor]:
    """Return the frozen weights with the quantized values that the adapters were trained with."""
    quantized = {
        f"{name}.weight" for name in list_quantized_modules(config, build_meta_model(recipe))
    }
    return {
        name: fake_quantize(tensor, config.base, config.block_size) if name in quantized else tensor
        for name, tensor in base.items()
    }


def build_meta_model(recipe: Recipe) -> nn.Module:
    """Build the recipe's model on the meta device, without converters."""
    with init_on_meta_device():
        model: nn.Module = recipe.model.load_builder()(
            recipe.model, seq_len=recipe.training.seq_len
        )
    return model


def load_base_weights(recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights that a run loaded at its start in its storage dtype.

    Return no weights if they were drawn from a seed.
    """
    section, dtype = recipe.checkpoint, get_dtype(recipe.training.dtype)
    if section.initial_load_in_hf:
        weights = load_huggingface_weights(get_huggingface_folder(section, recipe.model), recipe)
        return {name: tensor.to(dtype) for name, tensor in weights.items()}
    if section.initial_load_path is None:
        return {}
    checkpoint = get_checkpoint(parse_storage_path(section.initial_load_path), section.folder)
    base, _ = split_adapters(load_verified_weights(checkpoint))
    if not base:
        # a checkpoint of adapters only: continue with the run before it
        return load_base_weights(load_checkpoint_recipe(checkpoint))
    return {name: tensor.to(dtype) for name, tensor in base.items()}


def load_huggingface_weights(source: AnyPath, recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights of a Hugging Face folder, dequantized if necessary."""
    weights = read_dequantized_weights(
        source, is_quantized=find_hf_quantization(source) is not None
    )
    own: dict[str, Tensor] = load_family_module(type(recipe.model), "huggingface").from_huggingface(
        recipe.model, weights
    )
    return {name: tensor.contiguous() for name, tensor in own.items()}


def load_torchtitan_weights(source: AnyPath, recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights of a torchtitan checkpoint, whose parameters have titanrun's names.

    Other content is neither read nor unpickled.
    """
    saved = import_dcp_io().read_tensor_metadata(source, allows_other_objects=True)
    return read_named_tensors(source, saved, get_expected_shapes(recipe))


def load_titanrun_weights(source: AnyPath, recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights of another run's checkpoint."""
    weights = load_verified_weights(CheckpointReader(source))
    check_same_weight_shapes(source, get_tensor_metadata(weights), get_expected_shapes(recipe))
    return weights


def load_peft_weights(source: AnyPath, recipe: Recipe) -> dict[str, Tensor]:
    """Return the recipe's initial weights with adapters that peft saved."""
    lora = find_lora_converter(recipe)
    if lora is None:
        hint = "add `- name: lora` with the rank, alpha and target_modules of the adapter"
        raise problem_error(
            "usage",
            "the recipe has no adapters to load these into",
            path=("converters",),
            hint=hint,
        )
    base = load_base_weights(recipe)
    if not base:
        raise problem_error(
            "checkpoint",
            "the recipe loads no weights that the adapters could belong to",
            path=("checkpoint", "initial_load_path"),
            hint="set checkpoint.initial_load_path to the weights that peft adapted, and "
            "checkpoint.initial_load_in_hf: true for a Hugging Face folder",
        )
    model = build_meta_model(recipe)
    converted = lora.load_builder()(lora, model=model, shards=1).converted
    return base | read_adapters(source, lora, recipe.model, converted)


def get_expected_shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of the model by name, with all names of tied weights."""
    return {
        name: tuple(tensor.shape) for name, tensor in build_meta_model(recipe).state_dict().items()
    }


def read_named_tensors(
    source: AnyPath, saved: Mapping[str, TensorMetadata], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Read the expected tensors of a checkpoint folder."""
    found = {name: saved[name] for name in expected if name in saved}
    check_same_weight_shapes(source, found, expected)
    weights = {
        name: torch.empty(layout.shape, dtype=layout.dtype) for name, layout in found.items()
    }
    import_dcp_io().read_tensors(source, weights)
    return weights


def check_same_weight_shapes(
    source: AnyPath,
    found_metadata: Mapping[str, TensorMetadata],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    """Check that names and shapes fit the model. Any dtype is accepted.

    Raises:
        ProblemsFound: they do not fit.
    """
    wanted = {
        name: TensorMetadata(
            shape, found_metadata[name].dtype if name in found_metadata else torch.float32
        )
        for name, shape in expected.items()
    }
    texts = find_tensor_mismatches(found_metadata, wanted)
    if texts:
        raise problem_error(
            "checkpoint",
            f"{source} does not fit the recipe's model: {'; '.join(texts)}",
            hint="use the recipe of that model",
        )


def load_verified_weights(checkpoint: CheckpointReader) -> dict[str, Tensor]:
    """Return the weights of a checkpoint by the model's names.

    Raises:
        ProblemsFound: a file is damaged.
    """
    reasons = find_damaged_files(checkpoint.folder, checkpoint.load_manifest(), "always")
    if reasons:
        raise problem_error(
            "checkpoint", f"{checkpoint.folder} cannot be used: {'; '.join(reasons)}"
        )
    return {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in load_checkpoint_tensors(checkpoint, MODEL_PREFIX).items()
    }


def load_checkpoint_tensors(checkpoint: CheckpointReader, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names start with `prefix`."""
    saved = {
        name: layout
        for name, layout in checkpoint.load_tensor_metadata().items()
        if name.startswith(prefix)
    }
    tensors = {
        name: torch.empty(layout.shape, dtype=layout.dtype) for name, layout in saved.items()
    }
    checkpoint.load_tensors(tensors, tolerance=LoadTolerance(allows_extra=True))
    return tensors
