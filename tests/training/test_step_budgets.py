"""What a step of each row of the GPU benchmark launches, moves and allocates at most.

Counted on the meta device, without torch.compile: operators stand for launches, and the bytes of
their inputs and outputs for traffic. step_budgets.json holds what was counted;
TITANRUN_WRITE_GOLDEN=1 writes it again.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.training.meta_engine import META, build_meta_engine, draw_batch, train_step
from tests.training.meta_kernels import use_meta_kernels
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.engine import Engine
from titanrun.training.nonfinite import NonFiniteGuard
from titanrun.worker.build.apply_converters import convert_model

# PyTorch's compiler warns of itself
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("step_budgets.json")
TOLERANCE = 0.05
# of an update, beyond one launch a weight
FURTHER_LAUNCHES = 20
READS_OF_GRADIENTS = {"aten::_foreach_norm", "aten::_fused_adamw_", "update_adamw"}


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """The rows of the benchmark that train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "bench"))
        found = import_module("gpu_rows").ROWS
    return {name: replace(row, compiles=False) for name, row in found.items() if row.part is None}


@pytest.fixture(autouse=True)
def kernels_of_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    use_meta_kernels(monkeypatch)


def storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass
class Counter:
    """What was launched, and the operators that read tensors of `watched` storages.

    A tensor counts once for a launch, also if it is both read and written.
    """

    launches: int = 0
    bytes: int = 0
    largest: int = 0
    watched: frozenset[int] = frozenset()
    readers: set[str] = field(default_factory=set)

    def add(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Count one launch."""
        self.launches += 1
        self.bytes += nbytes([*inputs, *outputs])
        self.largest = max([self.largest, *(nbytes([tensor]) for tensor in outputs)])
        if any(storage_of(tensor) in self.watched for tensor in inputs):
            self.readers.add(name)

    def to_dict(self) -> dict[str, int]:
        """Return the numbers that have a budget."""
        return {"launches": self.launches, "bytes": self.bytes, "largest": self.largest}


class CountLaunches(TorchDispatchMode):
    """Counts operators on the meta device that do more than look at a tensor in another way."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        found = operation(*arguments, **(options or {}))
        given, made = (
            [leaf for leaf in tree_leaves(part) if is_on_meta(leaf)]
            for part in ((arguments, options), found)
        )
        inputs = {storage_of(tensor) for tensor in given}
        changes = operation._schema.is_mutable if hasattr(operation, "_schema") else False
        is_view = bool(made) and not changes and {storage_of(each) for each in made} <= inputs
        if (given or made) and not is_view:
            self.counter.add(operation.name().partition(".")[0], given, made)
        return found


def is_on_meta(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device == META


class CountedKernels:
    """Stands for the Triton kernels, which run on a GPU only."""

    AdamWStep = SimpleNamespace(from_group=lambda *given, **named: None)

    def __init__(self) -> None:
        self.counter = Counter()

    def update_adamw(self, *given: Any) -> None:
        """Count a launch that reads the weight, the gradient and the states."""
        tensors = [each for each in given if isinstance(each, Tensor)]
        self.counter.add("update_adamw", tensors, [])

    CodedMean = staticmethod(lambda *given, **named: None)
    update_low_bit_adamw = update_adamw


def build_row(row: Any, folder: Path) -> tuple[Recipe, Engine, CountedKernels]:
    """The run of a row on a GPU, its engine, and its optimizer's kernels."""
    path = folder / "recipe.yaml"
    path.write_text(row.recipe(folder / "rows.npy", "gpu"))
    recipe, kernels = resolve_recipe(str(path), [], environment={}).run, CountedKernels()

    def prepare(model: nn.Module) -> None:
        convert_model(recipe, model, meshes=None)
        recipe.activation_checkpoint.load_builder()(recipe.activation_checkpoint, model=model)

    engine = build_meta_engine(recipe, prepare)
    if isinstance(engine.optimizer, KernelAdamW):
        engine.optimizer.kernels = kernels
    return recipe, engine, kernels


def count_step(row: Any, folder: Path) -> tuple[Counter, Counter, int]:
    """Count the passes and the update of the second step, and the weights."""
    recipe, engine, kernels = build_row(row, folder)
    guard, batch = NonFiniteGuard(device=META), draw_batch(recipe, rows=row.batch)
    train_step(engine, guard, 1, [batch])
    passes = Counter()
    with CountLaunches(passes):
        out = engine.forward_backward([batch])
    weights = list(engine.model.parameters())
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    assert len(gradients) == len(weights)
    update = kernels.counter = Counter(watched=frozenset(map(storage_of, gradients)))
    with CountLaunches(update):
        engine.optim_step(
            should_update=lambda norm: guard.should_update(2, loss=out.loss_sum, grad_norm=norm)
        )
    return passes, update, len(weights)


NAMES = (
    "1b_s4096",
    "1b_s4096_float8_tensorwise",
    "8b_s4096",
    "8b_s4096_float8",
    "8b_s8192_float8",
    "8b_s4096_bf16_storage",
    "1b_s4096_eager",
    "1b_float8_rowwise",
    "1b_documents_flex",
    "1b_documents_varlen",
    "qwen3_0.6b",
    "moe_2layers_deepseek16b",
    "debugmodel",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_keeps_to_its_budget(name: str, rows: dict[str, Any], tmp_path: Path) -> None:
    passes, update, num_weights = count_step(rows[name], tmp_path)
    assert update.launches <= num_weights + FURTHER_LAUNCHES
    assert update.readers <= READS_OF_GRADIENTS and len(update.readers) == 2
    found = {"passes": passes.to_dict(), "update": update.to_dict()}
    budgets = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    if os.environ.get("TITANRUN_WRITE_GOLDEN"):
        BUDGETS.write_text(json.dumps(budgets | {name: found}, indent=1, sort_keys=True) + "\n")
        return
    for part, numbers in found.items():
        for what, number in numbers.items():
            budget = budgets[name][part][what]
            assert number <= budget * (1 + TOLERANCE), f"{part}: {what} {number}, budget {budget}"


def test_every_row_that_trains_has_a_budget(rows: dict[str, Any]) -> None:
    assert set(rows) == set(NAMES) == set(json.loads(BUDGETS.read_text()))
