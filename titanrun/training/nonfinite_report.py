"""Report of a step with a NaN or infinite loss or gradient.

It names the sequences, the first module and the parameters that are affected.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.data.token_batch import Batch
from titanrun.distributed.dtensor import to_local
from titanrun.training.engine import Engine
from titanrun.training.nonfinite import StepValues


@dataclass(frozen=True, slots=True)
class NonFiniteReport:
    """Report of a non-finite step on this rank.

    Args:
        values: loss and gradient norm of the step.
        nonfinite_sequences: indices of this rank's sequences whose recomputed outputs are not
            finite.
        first_nonfinite_module: the first module whose recomputed output is not finite. None if all
            outputs are finite, so that the backward pass is the cause.
        grad_norms: norm of this rank's shard of each gradient, by parameter, in the model's order.
        num_later_updates: updates between the step and the recomputation.
    """

    values: StepValues
    nonfinite_sequences: list[int]
    first_nonfinite_module: str | None
    grad_norms: dict[str, float]
    num_later_updates: int = 0


def collect_nonfinite_report(
    engine: Engine, batches: Sequence[Batch], values: StepValues
) -> NonFiniteReport:
    """Collect gradient norms and recompute the step's outputs to find non-finite values.

    The gradients must not have been zeroed yet. Collective: all ranks must call this.
    """
    with track_first_nonfinite_module(engine.model) as found:
        bad = [is_bad for batch in batches for is_bad in find_nonfinite_sequences(engine, batch)]
    norms = compute_local_grad_norms(engine.model)
    return NonFiniteReport(
        values,
        [index for index, is_bad in enumerate(bad) if is_bad],
        found[0] if found else None,
        norms,
    )


def find_nonfinite_sequences(engine: Engine, batch: Batch) -> list[bool]:
    """Return for each sequence of a batch whether its outputs contain NaN or infinite values."""
    zeros_BT = engine.forward(batch, outputs=("zero_if_finite",))["zero_if_finite"]
    return (~zeros_BT.isfinite().all(-1)).tolist()


@torch.no_grad()
def compute_local_grad_norms(model: nn.Module) -> dict[str, float]:
    """Compute the L2 norm of this rank's shard of each gradient."""
    named = {
        name: to_local(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {
        name: float(torch.linalg.vector_norm(part, dtype=torch.float32))
        for name, part in named.items()
    }


@contextmanager
def track_first_nonfinite_module(model: nn.Module) -> Iterator[list[str]]:
    """Yield a list that gets the name of the first module with a non-finite output."""
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if (
            isinstance(output, Tensor)
            and output.is_floating_point()
            and not found
            and not to_local(output).isfinite().all()
        ):
            found.append(name)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(
                lambda _module, _inputs, output, name=name: look(name, output)
            )
            stack.callback(hook.remove)
        yield found
