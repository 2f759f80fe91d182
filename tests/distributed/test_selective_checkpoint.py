"""Selective activation checkpointing: nothing it computes differs, and what it keeps and computes
again is what was chosen."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.activation_checkpoint import SelectiveCheckpointPolicy
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe

ROOT = Path(__file__).parents[2]
OP = "{name: selective, selective_ac_option: op}"
DENSE = ("model.n_layers=4", "model.dim=64", "model.vocab_size=512")
EXPERTS = (
    "model={name: qwen3, flavor: debugmodel_moe, n_layers: 2, moe: {num_experts: 4, top_k: 2, "
    "hidden_dim: 64}}",
)
PRODUCT, ATTENTION = "aten::mm", "aten::_scaled_dot_product_flash_attention_for_cpu"


@cache
def recipe(*overrides: str) -> Recipe:
    """The debug recipe with overrides, resolved."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "resolved.yaml"
        path.write_text(
            resolve_recipe(str(ROOT / "recipes/llama3_debug.yaml"), overrides, environment={}).text
        )
        return load_resolved(path)


def built(choice: str, model: tuple[str, ...] = DENSE) -> nn.Module:
    """A model whose layers recompute as `choice` says."""
    run = recipe(*model, f"activation_checkpoint={choice}")
    made: nn.Module = run.model.load_builder()(run.model, seq_len=64)
    made.init_weights(generator=torch.Generator().manual_seed(1))  # type: ignore[operator]
    run.activation_checkpoint.load_builder()(run.activation_checkpoint, model=made)
    return made


class Watch(TorchDispatchMode):
    """Counts operations by name, and the bytes of all that was made within it and is still
    alive."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.applied_fixes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        output = operation(*arguments, **(options or {}))
        self.operations[operation.name()] += 1
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor):
                self.applied_fixes[StorageWeakRef(tensor.untyped_storage())] = (
                    tensor.untyped_storage().nbytes()
                )
        return output

    def alive(self) -> int:
        """Bytes that something still holds."""
        return sum(size for storage, size in self.applied_fixes.items() if not storage.expired())


def passed(model: nn.Module) -> tuple[int, Counter[str]]:
    """The bytes kept between the passes, and the operations of the backward pass."""
    tokens = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(2))
    with Watch() as first:
        loss = model(tokens).square().mean()
    kept = first.alive()
    with Watch() as second:
        loss.backward()
    return kept, second.operations


def gradients(model: nn.Module) -> list[Tensor]:
    passed(model)
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("choice", ["selective", '{name: selective, selective_ac_option: "3"}', OP])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_recomputing_a_part_changes_no_bit(choice: str, model: tuple[str, ...]) -> None:
    expected, found = gradients(built("none", model)), gradients(built(choice, model))
    assert len(found) == len(expected) > 10
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_more_is_recomputed_the_less_is_kept() -> None:
    none, second, operations, full = (
        passed(built(choice))[0] for choice in ("none", "selective", OP, "full")
    )
    assert full < 0.4 * none
    assert full < operations < 0.75 * none
    assert second == pytest.approx((none + full) / 2, rel=0.05)


def recomputed_layers(model: nn.Module) -> list[str]:
    """The names of the layers that a backward pass goes through again."""
    again: list[str] = []
    for name, layer in model.get_submodule("layers").named_children():
        note: Callable[..., None] = lambda *_, name=name: again.append(name)  # noqa: E731
        layer.get_submodule("attention").register_forward_hook(note)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    loss = model(tokens).sum()
    again.clear()
    loss.backward()
    return sorted(again)


def test_every_nth_layer_is_recomputed() -> None:
    assert recomputed_layers(built("selective")) == ["1", "3"]
    assert recomputed_layers(built('{name: selective, selective_ac_option: "3"}')) == ["2"]
    assert recomputed_layers(built('{name: selective, selective_ac_option: "1"}')) == [
        "0",
        "1",
        "2",
        "3",
    ]


def test_layers_are_counted_in_the_whole_model() -> None:
    run = recipe(*DENSE, "activation_checkpoint=selective")
    model: nn.Module = run.model.load_builder()(run.model, seq_len=64)
    model.init_weights(generator=torch.Generator().manual_seed(1))  # type: ignore[operator]
    # as a pipeline stage has them
    del model.layers._modules["0"]  # type: ignore[union-attr]
    run.activation_checkpoint.load_builder()(run.activation_checkpoint, model=model)
    assert recomputed_layers(model) == ["1", "3"]


def test_attention_and_every_second_product_are_kept() -> None:
    _, plain = passed(built("none"))
    _, again = passed(built(OP))
    # of the seven products of a layer the second, fourth and sixth
    assert again[PRODUCT] - plain[PRODUCT] == 4 * 3
    assert plain[ATTENTION] == again[ATTENTION] == 0
    _, full = passed(built("full"))
    assert full[ATTENTION] == 4


SAVED = {
    # of each layer; with nothing else kept, all are computed again
    "attention": (DENSE, ATTENTION, 4),
    "products": (DENSE, PRODUCT, 4 * 7),
    "every_second_product": (DENSE, PRODUCT, 4 * 4),
    "activations": (DENSE, "aten::silu", 4),
    "top_k": (EXPERTS, "aten::topk", 2),
    "grouped_products": (EXPERTS, "aten::_grouped_mm", 2 * 3),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_is_not_computed_again(name: str) -> None:
    model, kernel, fewer = SAVED[name]
    chosen = "{{name: selective, selective_ac_option: op, early_stop: false, per_op_sac_saves: {}}}"
    nothing, something = built(chosen.format("[]"), model), built(chosen.format(f"[{name}]"), model)
    (kept_of_nothing, again), (kept, fewer_again) = passed(nothing), passed(something)
    assert again[kernel] - fewer_again[kernel] == fewer
    assert kept > kept_of_nothing
    for one, other in zip(nothing.parameters(), something.parameters(), strict=True):
        assert one.grad is None or torch.equal(one.grad, other.grad)


def test_products_are_saved_in_one_way() -> None:
    with pytest.raises(ProblemsFound, match="contains both products and every_second_product"):
        recipe(
            "activation_checkpoint={name: selective, per_op_sac_saves: [products, "
            "every_second_product]}"
        )


def test_products_of_forced_shapes_are_recomputed_and_not_counted() -> None:
    forced = (
        "{name: selective, selective_ac_option: op, "
        "per_op_sac_force_recompute_mm_shapes_by_fqns: [layers.1.feed_forward.w1]}"
    )
    _, plain = passed(built("none"))
    _, again = passed(built(forced))
    # of layer 1 w1 and w3, which has the same shape, and of wq, wk, wv, wo, w2 the second and the
    # fourth
    assert again[PRODUCT] - plain[PRODUCT] == 3 * 3 + 4


@pytest.mark.parametrize("option", ["0", "-1", "ops", "1.5", ""])
def test_a_choice_that_is_neither_op_nor_a_number_is_refused(option: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        recipe(f'activation_checkpoint={{name: selective, selective_ac_option: "{option}"}}')
    (problem,) = found.value.problems
    assert (problem.path, problem.hint) == (
        ("activation_checkpoint", "selective_ac_option"),
        'use op, or a number in quotes: "2" is every second layer',
    )


def test_operations_can_be_listed_only_of_whole_layers() -> None:
    with pytest.raises(
        ProblemsFound, match="debug lists the operations of layers that are recomputed as a whole"
    ):
        recipe("activation_checkpoint={name: selective, selective_ac_option: op, debug: true}")


def test_float8_products_are_counted_with_the_others() -> None:
    policy = SelectiveCheckpointPolicy(frozenset(), ["every_second_product"])
    kinds = [torch.ops.aten._scaled_mm.default, torch.ops.aten.mm.default] * 2
    matrix, context = torch.empty(16, 16, device="meta"), SimpleNamespace(is_recompute=False)
    kept = [policy(context, kind, matrix, matrix) for kind in kinds]
    assert kept == [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE] * 2
    everything = SelectiveCheckpointPolicy(frozenset(), ["products", "grouped_products"])
    for kind in (*kinds, torch.ops.aten._scaled_grouped_mm.default):
        assert everything(context, kind, matrix, matrix) == CheckpointPolicy.MUST_SAVE
