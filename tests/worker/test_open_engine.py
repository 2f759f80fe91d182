"""Engines and policy trainers for loops that are not ours."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.rl.parts import TEXT
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference import shipped_recipes
from titanrun.rl.policy_trainer import PolicyTrainer
from titanrun.rl.rollout_packing import pack_rollouts
from titanrun.rl.rollout_types import GenerateRequest, TrainingSample
from titanrun.rl.weight_sync.in_process_transport import InProcessTransport
from titanrun.worker.open_engine import EngineHandle, open_engine, open_policy_trainer


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


@pytest.fixture
def trainer(recipe: str) -> Iterator[PolicyTrainer]:
    made = open_policy_trainer(recipe)
    yield made
    made.close()


def answers(count: int = 7) -> list[TrainingSample]:
    """Answers of different lengths, one to a row."""
    made = []
    for index in range(count):
        length = 3 + index % 4
        tokens = [(5 * index + place) % 56 for place in range(length)]
        made.append(
            TrainingSample(tokens, [False, *[True] * (length - 1)], [-3.0] * length, index - 3.0)
        )
    return made


def rows(samples: list[TrainingSample]) -> TokenBatch:
    return pack_rollouts(
        samples,
        seq_len=8,
        batch_multiple=1,
        should_pack=False,
        length_norm="token_mean",
        max_completion_tokens=8,
    ).batch


def gradients(trainer: PolicyTrainer) -> dict[str, torch.Tensor]:
    return {
        name: weight.grad.clone()
        for name, weight in trainer.engine.model.named_parameters()
        if weight.grad is not None
    }


def test_gradients_of_unequal_parts_add_up_to_those_of_the_whole(trainer: PolicyTrainer) -> None:
    whole = rows(answers())
    tokens = int(whole.num_valid_tokens())
    told = trainer.forward_backward([whole], num_global_valid_tokens=tokens)
    expected = gradients(trainer)
    trainer.engine.zero_grad()
    parts = [rows([sample]) for sample in answers()]
    losses = [
        trainer.forward_backward([part], num_global_valid_tokens=tokens)["loss"] for part in parts
    ]
    assert sum(losses) == pytest.approx(told["loss"], rel=1e-4, abs=1e-6)
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in gradients(trainer).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5 * scale)
    trainer.engine.zero_grad()
    # each part by its own tokens: what must not be done
    for part in parts:
        trainer.forward_backward([part], num_global_valid_tokens=7 * int(part.num_valid_tokens()))
    apart = max(
        (gradient - expected[name]).abs().max().item()
        for name, gradient in gradients(trainer).items()
    )
    assert apart > 0.01 * scale


def test_an_update_counts_takes_its_own_rate_and_is_left_out_where_it_is_no_number(
    trainer: PolicyTrainer,
) -> None:
    batch = rows(answers())
    trainer.forward_backward([batch], num_global_valid_tokens=10)
    assert trainer.optim_step(lr=0.125)["lr"] == 0.125 and trainer.get_policy_version() == 1
    assert not gradients(trainer)
    before = [weight.detach().clone() for weight in trainer.engine.model.parameters()]
    trainer.forward_backward([batch], num_global_valid_tokens=10)
    next(iter(trainer.engine.model.parameters())).grad.fill_(float("nan"))  # type: ignore[union-attr]
    update = trainer.optim_step()
    assert update["is_skipped"] == 1 and update["policy_version"] == 1 and update["lr"] != 0.125
    assert all(
        torch.equal(one, other)
        for one, other in zip(before, trainer.engine.model.parameters(), strict=True)
    )


def test_what_follows_from_the_weights_is_told_once_an_update(trainer: PolicyTrainer) -> None:
    told: list[int] = []
    trainer.engine.add_weights_listener(lambda: told.append(trainer.get_policy_version()))
    for update in (1, 2):
        for part in map(rows, ([answers()[0]], answers()[1:3], answers()[3:])):
            trainer.forward_backward([part], num_global_valid_tokens=10)
        trainer.optim_step()
        assert told == list(range(1, update + 1))


def test_pushed_weights_are_those_of_their_version(trainer: PolicyTrainer) -> None:
    assert trainer.push_weights() == 0
    trainer.forward_backward([rows(answers())], num_global_valid_tokens=10)
    trainer.optim_step()
    assert trainer.push_weights() == 1 and trainer.transport.list_versions() == [0, 1]
    own, pushed = trainer.engine.model.state_dict(), dict(trainer.transport.pull(1))
    assert pushed.keys() == own.keys() and all(
        torch.equal(own[name], tensor) for name, tensor in pushed.items()
    )
    assert not all(torch.equal(own[name], tensor) for name, tensor in trainer.transport.pull(0))
    assert trainer.save_checkpoint() is False
    trainer.close()
    trainer.close()


def test_parameters_are_pushed_in_the_generators_type_and_buffers_as_they_are_under_wrappers_too(
    recipe: str,
) -> None:
    sizes = (
        "dim: 16, n_layers: 2, n_heads: 2, n_kv_heads: 1, head_dim: 8, vocab_size: 56, "
        "attention: {mask: block_causal}"
    )
    experts = "moe: {num_experts: 4, top_k: 2, hidden_dim: 16, load_balance_coeff: 1.0e-3}"
    overrides = ["training.mixed_precision_param=bfloat16", "activation_checkpoint=full"]
    trainer = open_policy_trainer(
        recipe, [f"model={{name: qwen3, flavor: debugmodel_moe, {sizes}, {experts}}}", *overrides]
    )
    own = dict(trainer.engine.state_dict_stream())
    trainer.push_weights()
    pushed = dict(trainer.transport.pull(0))
    buffers = {name for name in pushed if name.endswith("expert_bias")}
    assert len(buffers) == 2 and pushed.keys() == own.keys()
    for name, tensor in pushed.items():
        assert tensor.dtype == (torch.float32 if name in buffers else torch.bfloat16), name
        assert torch.equal(tensor, own[name].to(tensor.dtype))
    trainer.close()


def test_looking_at_a_batch_changes_nothing(recipe: str) -> None:
    opened = open_engine(recipe)
    batch, engine = rows(answers()), opened.engine
    state, before = (
        torch.get_rng_state(),
        {name: tensor.clone() for name, tensor in engine.model.state_dict().items()},
    )
    found = engine.forward(batch, outputs=("logprobs", "entropy", "logits"), temperature=0.5)
    logprobs = (found["logits"].float()).log_softmax(-1)
    by_hand = (
        logprobs.gather(-1, batch.labels.clamp(min=0).unsqueeze(-1))
        .squeeze(-1)
        .masked_fill(~batch.label_mask(), 0)
    )
    torch.testing.assert_close(found["logprobs"], by_hand, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        found["entropy"], -(logprobs.exp() * logprobs).sum(-1), rtol=1e-5, atol=1e-6
    )
    assert torch.equal(state, torch.get_rng_state()) and engine.model.training
    assert all(
        torch.equal(before[name], tensor) for name, tensor in engine.model.state_dict().items()
    )
    assert all(weight.grad is None for weight in engine.model.parameters())
    opened.close()


def test_a_generator_says_what_the_engine_would_before_and_after_an_update(recipe: str) -> None:
    opened = open_engine(recipe, ["optimizer.lr=0.1"])
    generator, bus = opened.build_generator(), InProcessTransport(keep=2)
    asked = [GenerateRequest([1, 2, 3 + index], index, 6) for index in range(4)]
    for version in range(2):
        generator.load(bus.pull(opened.publish_weights(bus)), version=version)
        for request, said in zip(asked, generator.generate(asked), strict=True):
            row = TokenBatch.from_sequences(torch.tensor([request.tokens + said.tokens]))
            logprobs = opened.engine.forward(row)["logprobs"][0, len(request.tokens) - 1 :]
            assert said.version == version and said.logprobs == pytest.approx(
                logprobs.tolist(), abs=1e-5
            )
        opened.engine.forward_backward(row)
        opened.engine.optim_step()
    assert bus.list_versions() == [0, 1]
    opened.close()


def test_a_generator_needs_a_recipe_that_says_how_answers_are_drawn() -> None:
    opened = open_engine(
        str(shipped_recipes.get_shipped_recipe("llama3_debug").path),
        ["training.mixed_precision_param=float32"],
    )
    with pytest.raises(ProblemsFound, match="the section rl is required"):
        opened.build_generator()
    opened.close()


def test_a_process_group_that_is_there_is_taken_over_and_stays(
    recipe: str, caplog: pytest.LogCaptureFixture
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with caplog.at_level(logging.WARNING):
            opened: EngineHandle = open_engine(recipe)
        assert "using the existing process group" in caplog.text and "comm" in caplog.text
        opened.close()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_group_that_the_degrees_do_not_fit_is_a_problem(recipe: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ProblemsFound, match="needs 3 ranks, but world_size is 1"):
            open_engine(recipe, ["parallelism.data_parallel_shard_degree=3"])
    finally:
        dist.destroy_process_group()
