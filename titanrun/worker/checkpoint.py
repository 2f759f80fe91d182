"""`python -m titanrun.worker.checkpoint`: what `titanrun checkpoint` does with tensors; the job is a JSON object on stdin."""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.adapters import is_adapter, merged, split_adapters
from titanrun.components.checkpoints.addresses import Place, place
from titanrun.components.checkpoints.checkpoint import (
    RESOLVED_FILE,
    Checkpoint,
    Snapshot,
    Tolerance,
    tensor_files,
)
from titanrun.components.checkpoints.digested_file import DigestedFile
from titanrun.components.checkpoints.huggingface import write_folder, write_weights
from titanrun.components.checkpoints.layout import Layout, differences, layouts
from titanrun.components.checkpoints.manifest import damage
from titanrun.components.checkpoints.quantization import quantization_of
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.components.converters.config import QloraConfig
from titanrun.components.converters.lora import packable
from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.render import render_text
from titanrun.distributed.dtypes import dtype_named
from titanrun.distributed.meta_device import on_meta_device
from titanrun.distributed.packed import rounded
from titanrun.models.shared.family import family_module
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.replaced import foreign_parts
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.saved import absolute
from titanrun.training.engine import MODEL_PREFIX
from titanrun.worker import of_torchtitan
from titanrun.worker.failures import failure_of
from titanrun.worker.peft import family_of, read_adapters, write_adapters
from titanrun.worker.quantize import Quantization, flattened, quantization_for
from titanrun.worker.weights import (
    find_checkpoint,
    huggingface_files,
    huggingface_folder,
    read_plain,
    recipe_of,
    stem_of,
)

EXIT_DIFFERS = 1
Job = Mapping[str, Any]


def main() -> int:
    """Does the job. Returns the exit code."""
    job = json.load(sys.stdin)
    work: dict[str, Callable[[Job], int]] = {"export": export, "import": take_in, "diff": diff}
    try:
        return work[job["do"]](job)
    except ProblemsFound as error:
        sys.stderr.write(render_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError) as error:
        failure = failure_of(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code


def export(job: Job) -> int:
    """The weights of a checkpoint in another format."""
    checkpoint, out = Checkpoint(place(job["checkpoint"])), Path(job["out"])
    weights = good_weights(checkpoint)
    recipe = recipe_of(checkpoint)
    if job["merge"]:
        weights = merged_weights(weights, recipe, checkpoint)
    is_adapter_alone = job["format"] == "hf" and any(map(is_adapter, weights))
    if job["dtype"] is not None:
        dtype = dtype_named(job["dtype"])
        weights = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
    scheme = job.get("quantize")
    how = (
        None
        if scheme is None
        else quantization_for(recipe, bare_model(recipe), scheme, job.get("group_size"), weights)
    )
    resolved = {RESOLVED_FILE: checkpoint.load_resolved().encode()}
    if is_adapter_alone:
        export_adapters(out, weights, recipe)
    elif job["format"] == "torch":
        write_torch(out, weights if how is None else how.of(weights))
    elif job["format"] == "safetensors" and how is not None:
        parts, metadata = flattened(how.of(weights))
        write_weights(out, parts, resolved, shard_bytes=job["shard_bytes"], metadata=metadata)
    elif job["format"] == "safetensors":
        write_weights(out, weights, resolved, shard_bytes=job["shard_bytes"])
    else:
        export_huggingface(out, weights, recipe, shard_bytes=job["shard_bytes"], how=how)
    print(out)
    return 0


def export_huggingface(
    out: Path,
    weights: dict[str, Tensor],
    recipe: Recipe,
    *,
    shard_bytes: int,
    how: Quantization | None = None,
) -> None:
    """A folder that transformers opens."""
    if problems := foreign_parts(recipe):
        raise ProblemsFound(problems)
    family = family_module(type(recipe.model), "huggingface")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()}
    config = family.huggingface_config(
        recipe.model, dtypes.pop() if len(dtypes) == 1 else "float32"
    )
    theirs: Mapping[str, Tensor] = family.to_huggingface(recipe.model, weights)
    metadata: Mapping[str, str] = {}
    if how is not None:
        names = family_of(recipe.model)
        theirs, metadata = flattened(
            how.of(
                theirs, {f"{name}.weight": f"{names.theirs(name)}.weight" for name in how.modules}
            )
        )
        config = {**config, "quantization_config": how.for_transformers()}
    assert recipe.tokenizer != "auto"
    try:
        files, texts = huggingface_files(recipe.tokenizer, recipe.model)
    except ProblemsFound as error:
        sys.stderr.write(f"without the tokenizer: {error}\n")
        files, texts = [], {}
    write_folder(
        out,
        theirs,
        config,
        files,
        texts,
        stem=stem_of(family),
        shard_bytes=shard_bytes,
        metadata=metadata,
    )


def merged_weights(
    weights: dict[str, Tensor], recipe: Recipe, checkpoint: Checkpoint
) -> dict[str, Tensor]:
    """The weights with the adapters in them. Those that the checkpoint leaves out are read from where its run took them."""
    lora = lora_of(recipe)
    if lora is None or not any(map(is_adapter, weights)):
        raise fail(
            "usage", f"{checkpoint.folder} has no adapters to merge", help="leave --merge out"
        )
    base, adapters = split_adapters(weights)
    if not base:
        base = base_weights(recipe)
    if isinstance(lora, QloraConfig):
        base = as_trained_beside(base, recipe, lora)
    return merged({**base, **adapters}, scale=lora.scale)


def as_trained_beside(
    base: dict[str, Tensor], recipe: Recipe, config: QloraConfig
) -> dict[str, Tensor]:
    """The frozen weights with the numbers that the adapters were trained beside."""
    packed = {f"{name}.weight" for name in packable(config, bare_model(recipe))}
    return {
        name: rounded(tensor, config.base, config.block_size) if name in packed else tensor
        for name, tensor in base.items()
    }


def bare_model(recipe: Recipe) -> nn.Module:
    """The recipe's model on the meta device, before converters."""
    with on_meta_device():
        model: nn.Module = recipe.model.builder()(recipe.model, seq_len=recipe.training.seq_len)
    return model


def base_weights(recipe: Recipe) -> dict[str, Tensor]:
    """The weights that a run starts from, in its type. Raises a problem where they were drawn from a seed."""
    section, dtype = recipe.checkpoint, dtype_named(recipe.training.dtype)
    if section.initial_load_in_hf:
        weights = from_huggingface(huggingface_folder(section, recipe.model), recipe)
        return {name: tensor.to(dtype) for name, tensor in weights.items()}
    if section.initial_load_path is None:
        message = "the frozen weights are not in the checkpoint: its run drew them from debug.seed"
        raise fail(
            "checkpoint",
            message,
            help="train with checkpoint.adapters_only: false, or export the adapters without --merge",
        )
    checkpoint = find_checkpoint(place(section.initial_load_path), section.folder)
    base, _ = split_adapters(good_weights(checkpoint))
    if not base:
        # it holds adapters alone, of a run before
        return base_weights(recipe_of(checkpoint))
    return {name: tensor.to(dtype) for name, tensor in base.items()}


def export_adapters(out: Path, weights: dict[str, Tensor], recipe: Recipe) -> None:
    """A folder that peft opens beside the model that the run started from."""
    lora = lora_of(recipe)
    assert lora is not None, "only a run with adapters saves some"
    write_adapters(out, split_adapters(weights)[1], lora, recipe.model)


def write_torch(out: Path, weights: dict[str, Tensor]) -> None:
    """One file that torch opens without unpickling more than tensors."""
    part = out.with_name(f"{out.name}.part")
    file = DigestedFile(part)
    try:
        torch.save(weights, file)  # type: ignore[arg-type]
        file.close()
        part.rename(out)
    finally:
        file.discard()
        part.unlink(missing_ok=True)


def take_in(job: Job) -> int:
    """A checkpoint of step 0 with weights from elsewhere."""
    source = place(job["source"])
    resolved = of_torchtitan.recipe_of(source).text if job["resolved"] is None else job["resolved"]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / RESOLVED_FILE
        file.write_text(resolved, encoding="utf-8")
        recipe = read_resolved(file)
    read = {
        "hf": from_huggingface,
        "torchtitan": from_torchtitan,
        "titanrun": from_titanrun,
        "peft": from_peft,
    }[job["from"]]
    weights = read(source, recipe)
    state = {
        "train": {"step": 0, "tokens_seen": 0},
        "imported": {"from": job["from"], "source": absolute(source)},
    }
    tensors = {MODEL_PREFIX + key: tensor for key, tensor in weights.items()}
    snapshot = Snapshot(
        step=0,
        tensors=tensors,
        state=state,
        rng={},
        resolved=resolved,
        holds="model",
        layout={"ranks": 1},
    )
    store = CheckpointStore(folder=place(job["out"]))
    store.save(snapshot)
    print(store.checkpoint(0).folder)
    return 0


def from_huggingface(source: Place, recipe: Recipe) -> dict[str, Tensor]:
    """The weights of a Hugging Face folder; quantised ones are expanded."""
    weights = read_plain(source, is_quantized=quantization_of(source) is not None)
    own: dict[str, Tensor] = family_module(type(recipe.model), "huggingface").from_huggingface(
        recipe.model, weights
    )
    return {name: tensor.contiguous() for name, tensor in own.items()}


def from_torchtitan(source: Place, recipe: Recipe) -> dict[str, Tensor]:
    """The weights of torchtitan's checkpoint, whose parameters have our names. Whatever else it holds is neither read nor unpickled."""
    saved = tensor_files().read_layouts(source, others_allowed=True)
    return read_named(source, saved, expected_shapes(recipe))


def from_titanrun(source: Place, recipe: Recipe) -> dict[str, Tensor]:
    """The weights of another run's checkpoint."""
    weights = good_weights(Checkpoint(source))
    refuse_others(source, layouts(weights), expected_shapes(recipe))
    return weights


def from_peft(source: Place, recipe: Recipe) -> dict[str, Tensor]:
    """The weights that the recipe starts from, with adapters that peft saved."""
    lora = lora_of(recipe)
    if lora is None:
        help = "add `- name: lora` with the rank, alpha and target_modules of the adapter"
        raise fail(
            "usage", "the recipe has no adapters to take these", path=("converters",), help=help
        )
    model = bare_model(recipe)
    taken = lora.builder()(lora, model=model, shards=1).taken
    return base_weights(recipe) | read_adapters(source, lora, recipe.model, taken)


def expected_shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of the recipe's model, a tied one under each of its names."""
    return {name: tuple(tensor.shape) for name, tensor in bare_model(recipe).state_dict().items()}


def read_named(
    source: Place, saved: Mapping[str, Layout], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Those tensors of a folder that are expected."""
    found = {name: saved[name] for name in expected if name in saved}
    refuse_others(source, found, expected)
    weights = {
        name: torch.empty(layout.shape, dtype=layout.dtype) for name, layout in found.items()
    }
    tensor_files().read_tensors(source, weights)
    return weights


def refuse_others(
    source: Place, found: Mapping[str, Layout], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises a problem where names or shapes are not those of the model; any dtype will do."""
    wanted = {
        name: Layout(shape, found[name].dtype if name in found else torch.float32)
        for name, shape in expected.items()
    }
    texts = differences(found, wanted)
    if texts:
        raise fail(
            "checkpoint",
            f"{source} does not fit the recipe's model: {'; '.join(texts)}",
            help="use the recipe of that model",
        )


def good_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights of a checkpoint by the model's names. Raises a problem where a byte is not what was saved."""
    reasons = damage(checkpoint.folder, checkpoint.manifest(), "always")
    if reasons:
        raise fail("checkpoint", f"{checkpoint.folder} cannot be used: {'; '.join(reasons)}")
    return {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in tensors_of(checkpoint, MODEL_PREFIX).items()
    }


def tensors_of(checkpoint: Checkpoint, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a checkpoint whose name begins so."""
    saved = {
        name: layout for name, layout in checkpoint.layouts().items() if name.startswith(prefix)
    }
    tensors = {
        name: torch.empty(layout.shape, dtype=layout.dtype) for name, layout in saved.items()
    }
    checkpoint.load_tensors(tensors, tolerance=Tolerance(extra=True))
    return tensors


def diff(job: Job) -> int:
    """Tensors of two checkpoints that have the same layout and other values: how far they are apart."""
    left, right = (tensors_of(Checkpoint(place(job[side]))) for side in ("a", "b"))
    found = 0
    for name, tensor in left.items():
        other = right.get(name)
        if (
            other is None
            or other.shape != tensor.shape
            or other.dtype != tensor.dtype
            or same_bits(tensor, other)
        ):
            continue
        found += 1
        print(f"~ {name}  {apart(tensor, other)}")
    return EXIT_DIFFERS if found else 0


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bytes, NaN and all."""
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def apart(one: Tensor, other: Tensor) -> str:
    """Largest difference, and how many values differ."""
    differs = one != other
    largest = (one.double() - other.double()).abs().max().item()
    return f"{int(differs.sum())} of {one.numel()} values differ, by {largest:.3g} at most"


if __name__ == "__main__":
    sys.exit(main())
