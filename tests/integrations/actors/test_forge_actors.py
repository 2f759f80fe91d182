"""TorchForge's main loop with its actors in processes of their own, called through handles."""

import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.integrations.torchforge.parts import MODEL, fields
from tests.integrations.torchforge.test_forge_loop import (
    GROUP,
    LETTERS,
    REQUEST,
    STEPS,
    TRAINING,
    Episode,
    Policy,
    collate,
    grpo_loss,
)
from titanrun.config.problems import ProblemsFound
from titanrun.integrations.actors.local import LocalActor, spawn
from titanrun.integrations.torchforge.reference_actor import ReferenceModel
from titanrun.integrations.torchforge.replay_buffer import ReplayBuffer
from titanrun.integrations.torchforge.titan_trainer import TitanTrainer
from titanrun.integrations.torchforge.weight_store import drop_version


def generate(policy: Policy, reference: LocalActor, buffer: LocalActor) -> float:
    """A group of answers into the buffer; gives their mean reward."""
    ids = policy.generate(torch.randint(0, 2048, (1, REQUEST), generator=policy.chance))
    logprobs = reference.forward.route(ids, REQUEST, return_logprobs=True)
    rewards = (ids[:, REQUEST:] < LETTERS // 2).float().mean(1)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    for row, reward, behind, advantage in zip(
        ids, rewards, logprobs.get(timeout=240), advantages, strict=True
    ):
        episode = Episode(policy.version, row, float(reward), behind, float(advantage))
        buffer.add.call_one(episode).get(timeout=240)
    return float(rewards.mean())


@pytest.mark.slow
def test_forges_main_loop_learns_through_handles(tmp_path: Path) -> None:
    given = fields(
        tmp_path,
        training=TRAINING,
        optimizer={"lr": 2e-3},
        lr_scheduler={"warmup_steps": 1, "decay_ratio": 0.0},
    )
    folder = str(tmp_path / "pushed")
    with (
        multiprocessing.get_context("spawn").Manager() as manager,
        spawn(
            TitanTrainer, **given, loss=grpo_loss, dcp_path=folder, store=(store := manager.dict())
        ) as trainer,
        spawn(ReferenceModel, model=MODEL, training=TRAINING) as reference,
        spawn(ReplayBuffer, batch_size=GROUP, max_policy_age=1, seed=0, collate=collate) as buffer,
    ):
        setups = [trainer.setup.fanout(), reference.setup.fanout(), buffer.setup.call()]
        for each in setups:
            each.get(timeout=300)
        policy, rewards, step = Policy(), [], 0
        while step < STEPS:
            batch = buffer.sample.route(curr_policy_version=step).get(timeout=240)
            if batch is None:
                rewards.append(generate(policy, reference, buffer))
                continue
            trainer.train_step.call(*batch).get(timeout=240)
            step += 1
            trainer.push_weights.call(step).get(timeout=240)
            policy.update_weights(step, SimpleNamespace(store=store))  # type: ignore[arg-type]
            if step >= 2:
                drop_version(store, step - 1)
        # what the trainer cannot take reaches the caller, and the trainer goes on
        with pytest.raises(ProblemsFound) as found:
            trainer.train_step.call([{"tokens": torch.zeros(1, 3)}], [{}]).get(timeout=240)
        assert "raised in rank 0 of TitanTrainer" in found.value.__notes__[0]
        trainer.push_weights.call(step + 1).get(timeout=240)
        assert f"policy_ver_{step + 1:010d}.model_state_dict" in store
        trainer.cleanup.call().get(timeout=240)
    policy.actor.cleanup()
    assert len(rewards) == STEPS and sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
