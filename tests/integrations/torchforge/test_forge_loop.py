"""The loop of TorchForge's app grpo over our actors.

It follows the order and the signatures of the calls in TorchForge's published apps/grpo/main.py:
rollouts, rewards, log-probabilities of
the reference, advantages, replay buffer, train_step, push_weights, update of the policy, the
version before dropped. TorchForge itself
was not run: the package torchforge on PyPI is empty. What is asynchronous there comes in turn here,
and tokens stand in for text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.integrations.torchforge.parts import MODEL, fields
from titanrun.components.data.token_batch import TokenBatch
from titanrun.integrations.torchforge.reference_actor import ReferenceModel
from titanrun.integrations.torchforge.replay_buffer import ReplayBuffer
from titanrun.integrations.torchforge.titan_trainer import TitanTrainer
from titanrun.integrations.torchforge.weight_store import drop_version
from titanrun.models.shared.spec.family import load_family_module
from titanrun.training.engine import Engine
from titanrun.worker.open_engine import open_engine

GROUP, REQUEST, RESPONSE, STEPS = 8, 4, 6, 20
# the policy says only these ids: of 2048 few would come twice
LETTERS = 16
TRAINING = {
    "local_batch_size": GROUP,
    "seq_len": REQUEST + RESPONSE,
    "steps": STEPS,
    "mixed_precision_param": "float32",
}
RECIPE = f"""
version: 1
model: {{name: llama3, flavor: debugmodel}}
optimizer: {{lr: 2.0e-3}}
lr_scheduler: {{warmup_steps: 1, decay_ratio: 0.0}}
training: {{dataset: tiny, local_batch_size: {GROUP}, seq_len: {REQUEST + RESPONSE}, steps: {STEPS},
            mixed_precision_param: float32}}
"""


@dataclass
class Episode:
    """An answer of the policy with what is known of it."""

    policy_version: int
    ids: Tensor
    reward: float
    ref_logprobs: Tensor | None = None
    advantage: float = 0.0


class Policy:
    """What vLLM is there: answers with the weights of the store, a version at a time."""

    def __init__(self) -> None:
        self.actor = ReferenceModel(model=MODEL, training=TRAINING)
        self.actor.setup()
        self.version = 0
        self.chance = torch.Generator().manual_seed(0)

    def generate(self, request: Tensor) -> Tensor:
        """Answers [GROUP, REQUEST + RESPONSE] of letters that are drawn one by one."""
        ids = request.expand(GROUP, -1)
        for _ in range(RESPONSE):
            logits = self.actor.forward(ids, 1, return_logprobs=False)[:, -1, :LETTERS]
            ids = torch.cat(
                [ids, torch.multinomial(logits.softmax(-1), 1, generator=self.chance)], 1
            )
        return ids

    @torch.no_grad()
    def update_weights(self, version: int, trainer: TitanTrainer) -> None:
        """Takes a version out of the store."""
        assert self.actor._handle is not None
        config, model = self.actor._handle.recipe.model, self.actor._handle.engine.model
        pulled = trainer.store[f"policy_ver_{version:010d}.model_state_dict"].load()
        model.load_state_dict(
            load_family_module(type(config), "huggingface").from_huggingface(config, pulled)
        )
        self.version = version


def collate(
    batches: list[list[Episode]],
) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Inputs and targets of each data-parallel rank."""
    inputs, targets = [], []
    for episodes in batches:
        ids = torch.stack([episode.ids for episode in episodes])
        references = [
            episode.ref_logprobs for episode in episodes if episode.ref_logprobs is not None
        ]
        inputs.append({"tokens": ids})
        targets.append(
            {
                "response": ids[:, REQUEST:],
                "ref_logprobs": torch.stack(references),
                "advantages": torch.tensor([[episode.advantage] for episode in episodes]),
                "padding_mask": torch.ones(len(episodes), RESPONSE, dtype=torch.bool),
            }
        )
    return inputs, targets


def grpo_loss(
    logits: Tensor, response: Tensor, ref_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor
) -> Tensor:
    """The policy gradient with a small penalty for leaving the reference: of answers the mean, of
    an answer the mean of its tokens."""
    logprobs = (
        logits[:, REQUEST - 1 : -1]
        .float()
        .log_softmax(-1)
        .gather(-1, response.unsqueeze(-1))
        .squeeze(-1)
    )
    behind = ref_logprobs - logprobs
    gain = (logprobs - logprobs.detach()).exp() * advantages - 1e-6 * (behind.exp() - behind - 1)
    return -((gain * padding_mask).sum(1) / padding_mask.sum(1)).mean()


def rollouts(policy: Policy, reference: ReferenceModel, buffer: ReplayBuffer) -> float:
    """A group of answers into the buffer; gives their mean reward: the share of tokens of the first
    half."""
    ids = policy.generate(torch.randint(0, 2048, (1, REQUEST), generator=policy.chance))
    episodes = [
        Episode(policy.version, row, float((row[REQUEST:] < LETTERS // 2).float().mean()))
        for row in ids
    ]
    for episode, logprobs in zip(
        episodes, reference.forward(ids, REQUEST, return_logprobs=True), strict=True
    ):
        episode.ref_logprobs = logprobs
    rewards = torch.tensor([episode.reward for episode in episodes])
    for episode, advantage in zip(
        episodes, (rewards - rewards.mean()) / (rewards.std() + 1e-4), strict=True
    ):
        episode.advantage = float(advantage)
        buffer.add(episode)
    return float(rewards.mean())


@pytest.mark.slow
def test_forge_main_loop_learns_and_its_losses_are_those_of_the_engine(tmp_path: Path) -> None:
    given = fields(
        tmp_path,
        training=TRAINING,
        optimizer={"lr": 2e-3},
        lr_scheduler={"warmup_steps": 1, "decay_ratio": 0.0},
    )
    trainer = TitanTrainer(**given, loss=grpo_loss, dcp_path=str(tmp_path / "pushed"))
    reference, policy = ReferenceModel(model=MODEL, training=TRAINING), Policy()
    trainer.setup()
    reference.setup()
    buffer = ReplayBuffer(batch_size=GROUP, max_policy_age=1, seed=0, collate=collate)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    opened = open_engine(str(tmp_path / "recipe.yaml"))
    rewards, training_step = [], 0
    while training_step < STEPS:
        batch = buffer.sample(curr_policy_version=training_step)
        if batch is None:
            rewards.append(rollouts(policy, reference, buffer))
            continue
        inputs, targets = batch
        loss = trainer.train_step(inputs, targets)
        assert loss == pytest.approx(
            engine_step(opened.engine, inputs[0]["tokens"], targets[0]), rel=1e-5, abs=1e-7
        )
        training_step += 1
        trainer.push_weights(training_step)
        policy.update_weights(training_step, trainer)
        if training_step >= 2:
            drop_version(trainer.store, training_step - 1)
        assert [path.name for path in (tmp_path / "pushed").iterdir()] == [
            f"policy_ver_{training_step:010d}"
        ]
    assert len(rewards) == STEPS and sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    for actor in (trainer, reference, policy.actor):
        actor.cleanup()
    opened.close()


def engine_step(engine: Engine, tokens: Tensor, targets: Mapping[str, Tensor]) -> float:
    """The same step by the engine's own calls."""
    rows = TokenBatch(tokens, tokens, None, torch.ones_like(tokens, dtype=torch.bool))
    output = engine.forward_backward(
        rows, loss=lambda logits, _: grpo_loss(logits, **targets), normalizer=torch.tensor(1)
    )
    engine.optim_step()
    return float(output.loss_sum)
