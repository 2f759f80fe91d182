"""Weights and state by name, loads into them, and who hears of new weights."""

import pytest
import torch
from torch import nn

from tests.training.test_engine import WIDTH, Bigram, batch, engine
from titanrun.components.optimizers.config import ScheduleFreeAdamWConfig
from titanrun.models.shared.config import DecoderInitConfig, MoeConfig
from titanrun.models.shared.moe import Moe
from titanrun.training.engine import Engine

EXPERTS = {
    "num_experts": 4,
    "top_k": 1,
    "hidden_dim": 8,
    "num_shared_experts": 0,
    "score_func": "sigmoid",
    "route_norm": False,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "load_balance_coeff": 1e-3,
}


def train(trained: Engine, *steps: int) -> None:
    for step in steps:
        trained.forward_backward(batch(step))
        trained.optim_step()


def test_listeners_hear_of_every_change_of_the_weights() -> None:
    trained = engine()
    heard: list[float] = []
    weight = trained.model.get_parameter("head.weight")
    trained.add_weights_listener(lambda: heard.append(float(weight.detach().sum())))
    trained.forward_backward(batch())
    assert heard == []
    trained.optim_step()
    # afterwards: what is derived from the weights follows the new ones
    assert heard == [float(weight.detach().sum())]
    trained.forward_backward(batch())
    trained.optim_step(should_update=lambda norm: False)
    with trained.eval_mode():
        pass
    assert len(heard) == 1
    trained.on_state_loaded()
    assert len(heard) == 2


def test_an_evaluation_uses_averages_and_listeners_hear_when_they_come_and_go() -> None:
    trained = engine(optimizer=ScheduleFreeAdamWConfig(lr=1e-2))
    train(trained, 0, 1, 2)
    weight = trained.model.get_parameter("head.weight")
    average = trained.named_state_tensors()["model.head.weight"].clone()
    training = weight.detach().clone()
    assert not torch.equal(average, training)
    heard: list[torch.Tensor] = []
    trained.add_weights_listener(lambda: heard.append(weight.detach().clone()))
    with trained.eval_mode():
        assert torch.equal(weight, average)
        # nothing is left to swap where the model is in evaluation mode already
        with trained.eval_mode():
            assert torch.equal(weight, average)
        assert torch.equal(weight, average)
    assert torch.equal(weight, training)
    assert len(heard) == 2
    assert torch.equal(heard[0], average) and torch.equal(heard[1], training)


def test_schedule_free_training_goes_on_from_loaded_state_bit_for_bit() -> None:
    """What is saved are averages; the weights to train with are computed from them."""
    config = ScheduleFreeAdamWConfig(lr=1e-2)
    first, second = engine(optimizer=config), engine(optimizer=config)
    train(first, 0, 1, 2)
    saved = {name: tensor.clone() for name, tensor in first.named_state_tensors().items()}
    for name, tensor in second.named_state_tensors().items():
        tensor.copy_(saved[name])
    second.on_state_loaded()
    second.steps_done = first.steps_done
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    train(first, 3)
    train(second, 3)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_beside_adapters_are_weights_that_stay_called_frozen() -> None:
    trained = engine()
    trained.model.get_parameter("norm.weight").requires_grad_(False)
    assert trained.frozen_names() == frozenset()
    head = trained.model.get_submodule("head")
    for name, shape in (("lora_a", (2, 16)), ("lora_b", (32, 2))):
        head.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    for name in ("head.weight", "embedding.weight"):
        trained.model.get_parameter(name).requires_grad_(False)
    assert "model.head.lora_a" in trained.named_state_tensors(with_optimizer=False)
    assert trained.frozen_names() == {
        "model.head.weight",
        "model.norm.weight",
        "model.embedding.weight",
    }


@pytest.mark.parametrize("is_applied", [True, False])
def test_tokens_of_a_step_that_was_refused_do_not_move_the_bias_of_experts_later(
    is_applied: bool,
) -> None:
    model = Bigram()
    moe = Moe(MoeConfig.model_validate(EXPERTS), dim=WIDTH)
    moe.init_weights(
        DecoderInitConfig(), residual_std=0.02, generator=torch.Generator().manual_seed(0)
    )
    model.norm = nn.Sequential(moe)
    trained = engine(model=model)
    trained.forward_backward(batch())
    assert moe.tokens_per_expert.sum() == 8 * 12
    trained.optim_step(should_update=lambda norm: is_applied)
    assert not moe.tokens_per_expert.any()


@pytest.mark.parametrize("takes_state", [True, False])
def test_an_engine_that_moves_takes_its_weights_gradients_and_states_along(
    takes_state: bool,
) -> None:
    trained = engine()
    train(trained, 0)
    trained.forward_backward(batch())
    # stands for an accelerator: what is there takes no host memory
    trained.device = torch.device("meta")
    trained.to("cpu")
    assert not any(weight.is_meta for weight in trained.model.parameters())
    trained.to("meta", **({} if takes_state else {"optimizer": False}))
    for weight in trained.model.parameters():
        assert weight.is_meta and weight.grad is not None and weight.grad.is_meta
    moments = [state["exp_avg"] for state in trained.optimizer.state.values()]
    assert {moment.is_meta for moment in moments} == {takes_state}


def test_an_engine_moves_to_the_host_and_back_only_and_gradients_not_alone() -> None:
    trained = engine()
    with pytest.raises(ValueError, match="only to the CPU and back"):
        trained.to("meta")
    with pytest.raises(ValueError, match="grad needs model"):
        trained.to("cpu", model=False)
    trained.to("cpu", model=False, grad=False)
    trained.to("cpu")
