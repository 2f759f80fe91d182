from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError

from titanrun.distributed.activation_checkpoint import apply_full_ac, apply_no_ac
from titanrun.distributed.config import FullActivationCheckpointConfig, NoActivationCheckpointConfig

WIDTH = 16


class Layer(nn.Module):
    """A layer that keeps much more than its input, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(WIDTH, 8 * WIDTH)
        self.narrow = nn.Linear(8 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.dropout(torch.tanh(self.widen(x))))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): Layer() for index in range(4)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def built(*, recompute: bool, **settings: Any) -> Layers:
    torch.manual_seed(0)
    model = Layers()
    if recompute:
        apply_full_ac(FullActivationCheckpointConfig(**settings), model=model)
    else:
        apply_no_ac(NoActivationCheckpointConfig(), model=model)
    return model


def counting(sizes: list[int]) -> AbstractContextManager[None]:
    """Notes the bytes of every tensor that is kept for the backward pass."""

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    return saved_tensors_hooks(keep, lambda tensor: tensor)


def trained(model: Layers, steps: int = 3) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses, [
        parameter.grad for parameter in model.parameters() if parameter.grad is not None
    ]


def test_recomputing_changes_no_bit_of_losses_and_gradients() -> None:
    kept_losses, kept_gradients = trained(built(recompute=False))
    losses, gradients = trained(built(recompute=True))
    assert losses == kept_losses
    assert len(gradients) == 16
    assert all(
        torch.equal(one, other) for one, other in zip(gradients, kept_gradients, strict=True)
    )


def test_a_recomputed_layer_keeps_its_input_only() -> None:
    inputs = torch.randn(8, WIDTH, requires_grad=True)
    sizes: list[int] = []
    with counting(sizes):
        built(recompute=True)(inputs)
    kept: list[int] = []
    with counting(kept):
        built(recompute=False)(inputs)
    # the rest of what is saved are the placeholders of a checkpointed layer, without bytes
    assert sum(sizes) == 4 * inputs.nbytes
    assert sum(kept) > 10 * sum(sizes)


def test_names_stay_as_they_are() -> None:
    assert list(built(recompute=True).state_dict()) == list(built(recompute=False).state_dict())


def test_without_the_random_state_the_second_pass_draws_other_numbers() -> None:
    _, kept_gradients = trained(built(recompute=False), steps=1)
    _, gradients = trained(built(recompute=True, preserve_rng_state=False), steps=1)
    assert not all(
        torch.equal(one, other) for one, other in zip(gradients, kept_gradients, strict=True)
    )


@pytest.mark.parametrize(("early_stop", "calls"), [(True, 4), (False, 8)])
def test_the_second_pass_stops_early_unless_told_otherwise(early_stop: bool, calls: int) -> None:
    model = built(recompute=True, early_stop=early_stop)
    ended = []
    for layer in model.layers.values():
        # what the last matrix product gives is not needed again
        layer.narrow.register_forward_hook(lambda *_: ended.append(1))
    trained(model, steps=1)
    assert len(ended) == calls


class Fickle(nn.Module):
    """A layer that computes in another type the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": Turncoat()})

    def forward(self, x: Tensor) -> Tensor:
        return self.layers["0"](x)


class Turncoat(nn.Module):
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return (x if self.passes == 1 else x.double()).sin().float()


def fickle_gradient(**settings: Any) -> Tensor | None:
    model = Fickle()
    apply_full_ac(FullActivationCheckpointConfig(**settings), model=model)
    x = torch.ones(2, requires_grad=True)
    model(x).sum().backward()
    return x.grad


def test_a_second_pass_that_computes_something_else_is_an_error_unless_unchecked() -> None:
    with pytest.raises(CheckpointError, match="different metadata"):
        fickle_gradient()
    assert fickle_gradient(determinism_check="none") is not None


def test_debug_lists_the_operations_of_both_passes() -> None:
    with pytest.raises(CheckpointError, match=r"aten[.:]+sin"):
        fickle_gradient(debug=True)
    with pytest.raises(CheckpointError) as plain:
        fickle_gradient()
    assert "sin" not in str(plain.value)
