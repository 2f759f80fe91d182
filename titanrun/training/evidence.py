"""What is known about a step whose loss or gradients are not finite: which rows, which module, which parameters."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.data.batch import Batch
from titanrun.distributed.shards import own_part
from titanrun.training.engine import Engine
from titanrun.training.finite import StepNumbers


@dataclass(frozen=True, slots=True)
class Evidence:
    """A bad step as this rank sees it.

    Args:
        numbers: its loss and gradient norm.
        bad_rows: which of the rank's rows have outputs that are not finite when they are computed again.
        first_bad_module: the first one whose output is not finite then; None where none is, so that the backward pass is to blame.
        gradient_norms: of what this rank holds of each gradient, by parameter, in the model's order.
    """

    numbers: StepNumbers
    bad_rows: list[int]
    first_bad_module: str | None
    gradient_norms: dict[str, float]


def gather_evidence(engine: Engine, batches: Sequence[Batch], numbers: StepNumbers) -> Evidence:
    """Looks at the gradients, which must still be there, and computes the step's outputs again. All ranks must call it together."""
    with first_bad_output(engine.model) as found:
        bad = [is_bad for batch in batches for is_bad in bad_rows(engine, batch)]
    norms = gradient_norms(engine.model)
    return Evidence(
        numbers,
        [row for row, is_bad in enumerate(bad) if is_bad],
        found[0] if found else None,
        norms,
    )


def bad_rows(engine: Engine, batch: Batch) -> list[bool]:
    """Which rows of a batch have outputs that are not finite."""
    zeros_BT = engine.forward(batch, outputs=("zero_if_finite",))["zero_if_finite"]
    return (~zeros_BT.isfinite().all(-1)).tolist()


@torch.no_grad()
def gradient_norms(model: nn.Module) -> dict[str, float]:
    """The L2 norm of this rank's part of each gradient."""
    named = {
        name: own_part(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {
        name: float(torch.linalg.vector_norm(part, dtype=torch.float32))
        for name, part in named.items()
    }


@contextmanager
def first_bad_output(model: nn.Module) -> Iterator[list[str]]:
    """Within the block the list gets the names of modules whose output is not finite, in the order in which they end."""
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if (
            isinstance(output, Tensor)
            and output.is_floating_point()
            and not found
            and not own_part(output).isfinite().all()
        ):
            found.append(name)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(
                lambda _module, _inputs, output, name=name: look(name, output)
            )
            stack.callback(hook.remove)
        yield found
