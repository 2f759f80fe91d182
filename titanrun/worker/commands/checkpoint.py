"""`python -m titanrun.worker.commands.checkpoint`: tensor work of `titanrun checkpoint`.

The request is a JSON object on stdin.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import (
    is_adapter,
    split_adapters,
)
from titanrun.components.checkpoints.checkpoint_reader import (
    RESOLVED_FILE,
    CheckpointReader,
    Snapshot,
)
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.huggingface import write_hf_folder, write_safetensors_folder
from titanrun.components.checkpoints.spec.hashed_file import HashedFile
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.converters.config import QloraConfig
from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.exit_codes import EXIT_DIFFERS
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.dtypes import get_dtype
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe, find_lora_converter, is_reward_model
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rules.checkpoint import find_export_replacement_problems
from titanrun.recipe.rundir.checkpoint_lookup import to_absolute_path
from titanrun.training.engine import MODEL_PREFIX
from titanrun.worker.training_template import find_training_end_ids
from titanrun.worker.weights import torchtitan_weights
from titanrun.worker.weights.gguf_checkpoint import export_gguf
from titanrun.worker.weights.huggingface_export import (
    GENERATION_FILE,
    build_config_json,
    collect_huggingface_files,
    get_weights_file_stem,
)
from titanrun.worker.weights.initial_weights import load_checkpoint_recipe
from titanrun.worker.weights.peft_adapters import get_hf_module_names, write_adapters
from titanrun.worker.weights.quantize_export import (
    ExportQuantization,
    build_export_quantization,
    flatten_quantized_tensors,
)
from titanrun.worker.weights.saved_tokenizer import use_saved_tokenizer
from titanrun.worker.weights.saved_weights import (
    build_meta_model,
    load_checkpoint_tensors,
    load_huggingface_weights,
    load_peft_weights,
    load_titanrun_weights,
    load_torchtitan_weights,
    load_verified_weights,
    merge_adapter_weights,
)
from titanrun.worker.worker_failures import classify_failure

CheckpointRequest = Mapping[str, Any]


def main() -> int:
    """Do the request and return the exit code."""
    job = json.load(sys.stdin)
    work: dict[str, Callable[[CheckpointRequest], int]] = {
        "export": export_checkpoint_weights,
        "import": import_weights,
        "diff": diff_checkpoint_tensors,
    }
    try:
        return work[job["do"]](job)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code
    except BrokenPipeError:
        return 0  # the reader closed the pipe, as `| head` does
    except (OSError, MemoryError) as error:
        failure = classify_failure(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code


def export_checkpoint_weights(job: CheckpointRequest) -> int:
    """Write the weights of a checkpoint in another format."""
    checkpoint, out = CheckpointReader(parse_storage_path(job["checkpoint"])), Path(job["out"])
    weights = load_verified_weights(checkpoint)
    recipe = use_saved_tokenizer(load_checkpoint_recipe(checkpoint), checkpoint.folder)
    if job["merge"] or (job["format"] == "gguf" and any(map(is_adapter, weights))):
        weights = merge_adapter_weights(weights, recipe, checkpoint)
    is_adapter_alone = job["format"] == "hf" and any(map(is_adapter, weights))
    if job["format"] == "gguf":
        export_gguf(out, weights, recipe, dtype=job["dtype"], with_modelfile=job["ollama"])
        return 0
    if job["dtype"] is not None:
        dtype = get_dtype(job["dtype"])
        weights = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
    scheme = job.get("quantize")
    how = (
        None
        if scheme is None
        else build_export_quantization(
            recipe, build_meta_model(recipe), scheme, job.get("group_size"), weights
        )
    )
    resolved = {RESOLVED_FILE: checkpoint.load_resolved_yaml().encode()}
    if is_adapter_alone:
        export_adapters(out, weights, recipe)
    elif job["format"] == "torch":
        write_torch(out, weights if how is None else how.quantize_weights(weights))
    elif job["format"] == "safetensors" and how is not None:
        parts, metadata = flatten_quantized_tensors(how.quantize_weights(weights))
        write_safetensors_folder(
            out, parts, resolved, shard_bytes=job["shard_bytes"], metadata=metadata
        )
    elif job["format"] == "safetensors":
        write_safetensors_folder(out, weights, resolved, shard_bytes=job["shard_bytes"])
    else:
        export_checkpoint_to_huggingface(
            out, weights, recipe, shard_bytes=job["shard_bytes"], quantization=how
        )
    print(out)
    return 0


def export_checkpoint_to_huggingface(
    out: Path,
    weights: dict[str, Tensor],
    recipe: Recipe,
    *,
    shard_bytes: int,
    quantization: ExportQuantization | None = None,
) -> None:
    """Write a folder that transformers can load."""
    if problems := find_export_replacement_problems(recipe):
        raise ProblemsFound(problems)
    family = load_family_module(type(recipe.model), "huggingface")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()}
    assert recipe.tokenizer != "auto"
    is_scored = is_reward_model(recipe)
    config = build_config_json(
        recipe.model,
        dtypes.pop() if len(dtypes) == 1 else "float32",
        recipe.tokenizer,
        find_training_end_ids(recipe) if is_scored else (),
    )
    theirs: Mapping[str, Tensor] = family.to_huggingface(recipe.model, weights)
    metadata: Mapping[str, str] = {}
    if quantization is not None:
        names = get_hf_module_names(recipe.model)
        theirs, metadata = flatten_quantized_tensors(
            quantization.quantize_weights(
                theirs,
                {
                    f"{name}.weight": f"{names.to_hf_name(name)}.weight"
                    for name in quantization.modules
                },
            )
        )
        config = {**config, "quantization_config": quantization.to_transformers_config()}
    files, texts = collect_recipe_files(recipe)
    write_hf_folder(
        out,
        theirs,
        config,
        files,
        texts,
        stem=get_weights_file_stem(family),
        shard_bytes=shard_bytes,
        metadata=metadata,
    )


def collect_recipe_files(recipe: Recipe) -> tuple[list[Path], dict[str, bytes]]:
    """Return the files next to exported weights, with the template that the run trains with.

    Without a readable tokenizer there are none, with a message.
    """
    assert recipe.tokenizer != "auto"
    try:
        return collect_huggingface_files(
            recipe.tokenizer,
            recipe.model,
            find_training_end_ids(recipe),
        )
    except ProblemsFound as error:
        sys.stderr.write(f"exporting without the tokenizer: {error}\n")
        return [], {}


def export_adapters(out: Path, weights: dict[str, Tensor], recipe: Recipe) -> None:
    """Write a folder that peft can load on top of the run's base model.

    It holds the tokenizer's files and the chat template that the adapters were trained with, but
    no generation_config.json, which belongs to the base model.
    """
    lora = find_lora_converter(recipe)
    assert lora is not None, "only a run with adapters saves adapters"
    files, texts = collect_recipe_files(recipe)
    contents = {**{file.name: file.read_bytes() for file in files}, **texts}
    contents.pop(GENERATION_FILE, None)
    if isinstance(lora, QloraConfig):
        sys.stderr.write(
            f"the adapters were trained on {lora.base} weights, and peft adds them to others: "
            "--merge writes the model as trained\n"
        )
    write_adapters(out, split_adapters(weights)[1], lora, recipe.model, contents)


def write_torch(out: Path, weights: dict[str, Tensor]) -> None:
    """Write one file that torch can load with `weights_only`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.part")
    file = HashedFile(part)
    try:
        torch.save(weights, file)  # type: ignore[arg-type]
        file.close()
        part.rename(out)
    finally:
        file.discard()
        part.unlink(missing_ok=True)


def import_weights(job: CheckpointRequest) -> int:
    """Write a checkpoint of step 0 with weights from elsewhere."""
    source = parse_storage_path(job["source"])
    resolved = (
        torchtitan_weights.get_torchtitan_recipe(source).text
        if job["resolved"] is None
        else job["resolved"]
    )
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / RESOLVED_FILE
        file.write_text(resolved, encoding="utf-8")
        recipe = load_resolved(file)
    read = {
        "hf": load_huggingface_weights,
        "torchtitan": load_torchtitan_weights,
        "titanrun": load_titanrun_weights,
        "peft": load_peft_weights,
    }[job["from"]]
    weights = read(source, recipe)
    state = {
        "train": {"step": 0, "tokens_seen": 0},
        "imported": {"from": job["from"], "source": to_absolute_path(source)},
    }
    tensors = {MODEL_PREFIX + key: tensor for key, tensor in weights.items()}
    snapshot = Snapshot(
        step=0,
        tensors=tensors,
        state=state,
        rng={},
        resolved_yaml=resolved,
        holds="model",
        layout={"ranks": 1},
    )
    store = CheckpointStore(folder=parse_storage_path(job["out"]))
    store.save(snapshot)
    print(store.get_checkpoint(0).folder)
    return 0


def diff_checkpoint_tensors(job: CheckpointRequest) -> int:
    """Print the differences of tensors with equal shape and dtype in two checkpoints.

    Return 1 if there are any differences, else 0.
    """
    left, right = (
        load_checkpoint_tensors(CheckpointReader(parse_storage_path(job[side])))
        for side in ("a", "b")
    )
    found = 0
    for name, tensor in left.items():
        other = right.get(name)
        if (
            other is None
            or other.shape != tensor.shape
            or other.dtype != tensor.dtype
            or is_bitwise_equal(tensor, other)
        ):
            continue
        found += 1
        print(f"~ {name}  {format_tensor_difference(tensor, other)}")
    return EXIT_DIFFERS if found else 0


def is_bitwise_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bytes, NaN included."""
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def format_tensor_difference(one: Tensor, other: Tensor) -> str:
    """Format the largest difference and the number of different values."""
    differs = one != other
    largest = (one.double() - other.double()).abs().max().item()
    return f"{int(differs.sum()):,} of {one.numel():,} values differ, by {largest:.3g} at most"


if __name__ == "__main__":
    sys.exit(main())
