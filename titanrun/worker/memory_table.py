"""What a run needs in memory by arithmetic, told where it did not fit."""

import torch

from titanrun.distributed.degrees import Degrees, degrees_of
from titanrun.distributed.device import CPU, memory_bytes
from titanrun.models.shared.counting import parameter_count
from titanrun.recipe.recipe import Recipe

# bytes of a number
SIZES = {"float32": 4, "bfloat16": 2}
# the logits in fp32, and their gradient
LOGITS = 2
GIB = 2**30


def memory_table(recipe: Recipe, *, ranks: int) -> str:
    """Bytes of each part on one rank, and what there is, one line each."""
    parts = sizes(recipe, degrees_of(recipe.parallelism, ranks) or Degrees())
    rows = {
        **parts,
        "together, activations come on top": sum(parts.values()),
        "there is": available(recipe),
    }
    width = max(map(len, rows))
    return "\n".join(f"  = {name:<{width}}  {size / GIB:9.3f} GiB" for name, size in rows.items())


def sizes(recipe: Recipe, degrees: Degrees) -> dict[str, int]:
    """What is there whatever the batch is, and the logits of one forward pass."""
    each = SIZES[recipe.training.dtype]
    weights = (
        parameter_count(recipe.model) * each // (degrees.fsdp * degrees.tensor * degrees.pipeline)
    )
    training = recipe.training
    logits = (
        LOGITS
        * SIZES["float32"]
        * training.local_batch_size
        * training.seq_len
        * recipe.model.output_width()
    )
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer state": round(
            recipe.optimizer.state_bytes(each, in_layer=True) / each * weights
        ),
        "logits of one pass, and their gradient": logits // (degrees.tensor * degrees.context),
    }


def available(recipe: Recipe) -> int:
    """Bytes of the device that trains; on a CPU main memory, or what the process may have of it."""
    on_accelerator = recipe.device != "cpu" and torch.accelerator.is_available()
    return memory_bytes(torch.accelerator.current_accelerator() if on_accelerator else CPU)
