"""A plan against the storages that live on the meta device while a run of its recipe trains.

Of steps with one pass, and with two: there, the gradients of the first pass are beside the
activations of the second. Layers are not compiled here.
"""

import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.recipe.plan.test_layout_search import count_sizes
from tests.training.meta_engine import META, build_meta_engine, draw_batch, train_step
from tests.training.meta_kernels import use_fused_norms, use_meta_kernels
from tests.training.test_step_budgets import CountedKernels
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.memory_estimate import estimate_memory
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.engine import Engine
from titanrun.training.nonfinite import NonFiniteGuard

# PyTorch's compiler warns of itself
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
HOPPER = Path(__file__).parents[3] / "recipes" / "hopper"
OF_PARAMETERS = ("weights", "working copies", "gradients", "optimizer states")
# recipe, overrides, and the bytes that a parameter takes
ROWS: dict[str, tuple[str, list[str], int]] = {
    "8b_fp32": ("llama3_8b", ["optimizer.state_dtype=weights"], 18),
    "8b_bf16_states": ("llama3_8b", [], 14),
    "8b_8bit_states": ("llama3_8b", ["optimizer={name: adamw_8bit}"], 12),
    "8b_bf16_storage": ("llama3_8b", ["training.dtype=bfloat16"], 8),
    "8b_recomputed": ("llama3_8b", ["activation_checkpoint=full"], 14),
    "qwen3_8b": ("qwen3_8b", [], 14),
    "1b": ("llama3_1b", [], 18),
    "1b_by_operation": ("llama3_1b", ["activation_checkpoint=selective"], 18),
    "1b_recomputed": ("llama3_1b", ["activation_checkpoint=full"], 18),
}


class LiveStorages(TorchDispatchMode):
    """Bytes of the meta device's storages that exist now, and most of them at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        found = operation(*arguments, **(options or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and leaf.device == META:
                self.hold(leaf)
        return found

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, key)

    def drop(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


def build_row(recipe: Recipe, live: LiveStorages) -> Engine:
    """The engine of a run with one rank, on which kernels update the weights in place."""

    def prepare(model: nn.Module) -> None:
        recipe.activation_checkpoint.load_builder()(recipe.activation_checkpoint, model=model)

    engine = build_meta_engine(recipe, prepare)
    for tensor in (*engine.model.parameters(), *engine.model.buffers()):
        live.hold(tensor)
    if isinstance(engine.optimizer, KernelAdamW):
        engine.optimizer.kernels = CountedKernels()
    return engine


def resolve_row(name: str, overrides: list[str]) -> Recipe:
    return resolve_recipe(str(HOPPER / f"{name}.yaml"), overrides, environment={}, ranks=1).run


def estimate_row(recipe: Recipe, sizes: list[ModuleSize]) -> dict[str, int]:
    """Bytes of tensors by the plan of a run on one rank."""
    layout = PlanLayout(recipe, ParallelDims(), sizes[0], sizes[1:-1], sizes[-1])
    items = estimate_memory(layout, DEVICES["h200"])
    return {item.name: item.bytes for item in items if item.name != "allocator"}


@pytest.mark.parametrize(("name", "overrides", "each"), ROWS.values(), ids=ROWS)
def test_a_plan_says_what_lives_at_the_peak_of_a_step(
    name: str, overrides: list[str], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_meta_kernels(monkeypatch)
    use_fused_norms(monkeypatch)
    recipe = resolve_row(name, overrides)
    sizes = count_sizes(recipe).sizes
    said = estimate_row(recipe, sizes)
    rows = 2 * recipe.training.local_batch_size
    of_two = resolve_row(name, [*overrides, f"training.global_batch_size={rows}"])
    guard = NonFiniteGuard(device=META)
    with LiveStorages() as live:
        engine = build_row(recipe, live)
        batch = draw_batch(recipe, rows=recipe.training.local_batch_size)
        # the first step allocates the states of the optimizer
        train_step(engine, guard, 1, [batch])
        live.peak = 0
        train_step(engine, guard, 2, [batch, batch])
        of_two_passes, live.peak = live.peak, 0
        train_step(engine, guard, 3, [batch])
        of_one_pass = live.peak
        engine.forward_backward([batch])
    # all that is left of a pass are gradients
    parameters = sum(size.total for size in sizes)
    assert live.now / parameters == pytest.approx(each, rel=0.02)
    passing = 2 * max(size.local_trainable for size in sizes) if "working copies" in said else 0
    assert sum(said.get(item, 0) for item in OF_PARAMETERS) - passing == pytest.approx(
        live.now, rel=0.02
    )
    assert sum(said.values()) == pytest.approx(of_one_pass, rel=0.04)
    assert sum(estimate_row(of_two, sizes).values()) == pytest.approx(of_two_passes, rel=0.04)
    assert of_one_pass < of_two_passes
