from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Muon, Optimizer, RMSprop

from titanrun.components.checkpoints.optimizer_state import (
    flatten_optimizer_state,
    load_optimizer_state,
)
from titanrun.config.problems import ProblemsFound

OPTIMIZERS = {
    "adamw": AdamW,
    "adamw-fused": partial(AdamW, fused=True),
    "adamw-foreach": partial(AdamW, foreach=True),
    "adamw-amsgrad": partial(AdamW, amsgrad=True, weight_decay=0.3),
    "sgd": partial(SGD, lr=0.1),
    "sgd-momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": partial(RMSprop, centered=True, momentum=0.9),
    "adagrad": Adagrad,
    "muon": Muon,
}


class Tied(nn.Module):
    """Two names for one weight, and one weight that never learns."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 4, bias=False)
        self.middle = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.ones(4, 4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.embedding(x)))) * self.frozen


def built(name: str) -> tuple[Tied, Optimizer]:
    torch.manual_seed(0)
    model = Tied()
    return model, OPTIMIZERS[name](model.parameters())


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(model: nn.Module) -> dict[str, list[list[float]]]:
    return {name: parameter.tolist() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("cut", [0, 3])
def test_training_goes_on_bitwise_after_a_restore(name: str, cut: int) -> None:
    uncut, uncut_optimizer = built(name)
    train(uncut, uncut_optimizer, range(6))

    model, optimizer = built(name)
    train(model, optimizer, range(cut))
    saved = {
        key: tensor.clone() for key, tensor in flatten_optimizer_state(model, optimizer).items()
    }
    resumed, resumed_optimizer = built(name)
    resumed.load_state_dict(model.state_dict())
    load_optimizer_state(resumed, resumed_optimizer, saved)
    train(resumed, resumed_optimizer, range(cut, 6))
    assert weights(resumed) == weights(uncut)


def test_names_are_those_of_the_weights() -> None:
    model, optimizer = built("adamw")
    names = {
        f"optimizer.{weight}.{state}"
        for weight in ("embedding.weight", "middle.weight")
        for state in ("step", "exp_avg", "exp_avg_sq")
    }
    assert flatten_optimizer_state(model, optimizer).keys() == names
    train(model, optimizer, range(1))
    assert flatten_optimizer_state(model, optimizer).keys() == names


def test_the_state_of_a_fresh_optimizer_is_made_without_touching_weights_or_gradients() -> None:
    model, optimizer = built("adamw-fused")
    optimizer.param_groups[0]["lr"] = 1.0
    before = weights(model)
    calls: list[object] = []
    optimizer.register_step_post_hook(lambda *arguments: calls.append(arguments))
    tensors = flatten_optimizer_state(model, optimizer)
    assert weights(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(tensor.any() for tensor in tensors.values())
    assert calls == []


def test_the_tensors_are_the_optimizers_own() -> None:
    model, optimizer = built("adamw")
    train(model, optimizer, range(1))
    flatten_optimizer_state(model, optimizer)["optimizer.middle.weight.exp_avg"].fill_(5)
    assert optimizer.state[model.middle.weight]["exp_avg"].unique().tolist() == [5]


def test_state_of_another_optimizer_is_refused() -> None:
    model, optimizer = built("sgd-momentum")
    other, adamw = built("adamw")
    with pytest.raises(ProblemsFound) as error:
        load_optimizer_state(other, adamw, flatten_optimizer_state(model, optimizer))
    assert error.value.problems[0].message.startswith(
        "the saved optimizer state does not fit this run: missing: "
        "optimizer.embedding.weight.exp_avg,"
    )
    assert error.value.exit_code == 4
