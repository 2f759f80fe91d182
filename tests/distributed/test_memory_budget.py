"""Activation checkpointing within a memory budget: the compiler keeps less, and computes the
same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._functorch.config as compiler
from torch import Tensor, nn

from tests.distributed.test_activation_checkpoint import counting
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.worker.build.build_parallelism import compile_model

# PyTorch's compiler warns of itself
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
ROOT = Path(__file__).parents[2]
TOKENS = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def unchanged_compiler() -> Iterator[None]:
    """A budget is one of the whole process."""
    before = compiler.activation_memory_budget
    yield
    compiler.activation_memory_budget = before


def kept_and_gradients(folder: Path, budget: float) -> tuple[int, list[Tensor]]:
    """The bytes kept between the passes of a compiled model, and its gradients."""
    overrides = [
        "model.n_layers=1",
        "model.dim=64",
        "model.vocab_size=512",
        "compile={enable: true, backend: aot_eager}",
    ]
    overrides.append(f"activation_checkpoint={{name: memory_budget, memory_budget: {budget}}}")
    path = folder / "resolved.yaml"
    path.write_text(
        resolve_recipe(str(ROOT / "recipes/llama3_debug.yaml"), overrides, environment={}).text
    )
    run = load_resolved(path)
    model: nn.Module = run.model.load_builder()(run.model, seq_len=64)
    model.init_weights(generator=torch.Generator().manual_seed(1))  # type: ignore[operator]
    run.activation_checkpoint.load_builder()(run.activation_checkpoint, model=model)
    torch._dynamo.reset()
    compile_model(run, model)
    # what it saves while it compiles does not count
    model(TOKENS).sum().backward()
    model.zero_grad()
    sizes: list[int] = []
    with counting(sizes):
        loss = model(TOKENS).square().mean()
    loss.backward()
    return sum(sizes), [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.slow
def test_the_smaller_the_budget_the_less_is_kept_and_no_bit_differs(tmp_path: Path) -> None:
    (whole, expected), (half, gradients), (least, others) = (
        kept_and_gradients(tmp_path, budget) for budget in (1.0, 0.5, 0.0)
    )
    assert least < half < 0.8 * whole
    assert len(expected) == len(gradients) == len(others) > 10
    for one, other, third in zip(expected, gradients, others, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
