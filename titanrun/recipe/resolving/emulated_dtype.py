"""Matrix products in bf16 on a CPU that has no arithmetic for it."""

from titanrun.config.problems import Problem
from titanrun.recipe.recipe import Recipe
from titanrun.training.config import TrainingConfig

BFLOAT16, FLOAT32 = "bfloat16", "float32"
EMULATED = "this CPU has no bf16 arithmetic and emulates it, many times slower"


def find_emulated_field(training: TrainingConfig) -> str | None:
    """Return the field because of which matrix products are in bf16, None if they are not.

    Weights that are not stored in fp32 compute in their own dtype.
    """
    field = "mixed_precision_param" if training.dtype == FLOAT32 else "dtype"
    return field if getattr(training, field) == BFLOAT16 else None


def find_emulated_dtype(recipe: Recipe) -> Problem | None:
    """Return the warning for a CPU without bf16 arithmetic, None if the recipe computes in fp32."""
    field = find_emulated_field(recipe.training)
    if field is None:
        return None
    hint = f"set training.{field}: {FLOAT32}"
    return Problem("slow", EMULATED, ("training", field), hint=hint, severity="warning")
