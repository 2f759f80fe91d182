"""Memory estimate of a run, shown after it ran out of memory."""

import torch

from titanrun.distributed.device import CPU, get_total_memory_bytes
from titanrun.distributed.spec.parallel_dims import ParallelDims, resolve_parallel_dims
from titanrun.models.shared.spec.flops import count_parameters
from titanrun.recipe.recipe import Recipe

# bytes per element
BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2}
# logits in fp32, and their gradient
LOGITS_COPIES = 2
GIB = 2**30


def format_memory_table(recipe: Recipe, *, world_size: int) -> str:
    """Format the bytes of each part on one rank and the available memory, one line each."""
    parts = estimate_fixed_memory(
        recipe, resolve_parallel_dims(recipe.parallelism, world_size) or ParallelDims()
    )
    rows = {
        **parts,
        "total without activations": sum(parts.values()),
        "available": get_available_memory(recipe),
    }
    width = max(map(len, rows))
    return "\n".join(f"  = {name:<{width}}  {size / GIB:9.3f} GiB" for name, size in rows.items())


def estimate_fixed_memory(recipe: Recipe, parallel_dims: ParallelDims) -> dict[str, int]:
    """Estimate the batch-independent memory, and the logits of one forward pass."""
    each = BYTES_PER_ELEMENT[recipe.training.dtype]
    weights = (
        count_parameters(recipe.model)
        * each
        // (parallel_dims.fsdp_size * parallel_dims.tp * parallel_dims.pp)
    )
    training = recipe.training
    logits = (
        LOGITS_COPIES
        * BYTES_PER_ELEMENT["float32"]
        * training.local_batch_size
        * training.seq_len
        * recipe.model.output_dim()
    )
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer state": round(
            recipe.optimizer.compute_state_bytes(each, is_in_layer=True) / each * weights
        ),
        "logits of one pass and their gradient": logits // (parallel_dims.tp * parallel_dims.cp),
    }


def get_available_memory(recipe: Recipe) -> int:
    """Return the memory of the training device in bytes.

    On a CPU this is main memory, or the limit of the process.
    """
    on_accelerator = recipe.device != "cpu" and torch.accelerator.is_available()
    return get_total_memory_bytes(
        torch.accelerator.current_accelerator() if on_accelerator else CPU
    )
