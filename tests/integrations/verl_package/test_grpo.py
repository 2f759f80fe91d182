"""GRPO steps by verl's own trainer and workers: log-probabilities, advantages, updates."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
GROUPS, SAMPLES, PROMPT, RESPONSE = 2, 4, 5, 6
MEASURED = (
    "actor/loss",
    "actor/grad_norm",
    "actor/lr",
    "actor/pg_loss",
    "actor/entropy_loss",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
    "actor/kl_loss",
)
TITANRUN = {
    "_target_": "titanrun.integrations.verl.registered_engine.TitanrunEngineConfig",
    "strategy": "titanrun",
    "use_torch_compile": False,
    "activation_checkpoint": "none",
    "dtype": "float32",
    "max_seq_len": 64,
}
FSDP = {
    "use_torch_compile": False,
    "model_dtype": "fp32",
    "dtype": "float32",
    "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
}


def load_config(folder: Path, backend: str) -> Any:
    """verl's own trainer config of a strategy, made small."""
    import verl.trainer.config
    from omegaconf import OmegaConf

    name = "_torchtitan" if backend == "titanrun" else ""
    configs = Path(verl.trainer.config.__file__).parent
    config = OmegaConf.load(configs / f"_generated_ppo{name}_trainer.yaml")
    engine = {"titanrun": ("torchtitan", TITANRUN), "fsdp2": ("fsdp_config", FSDP)}[backend]
    role = {engine[0]: engine[1]} | ({} if backend == "titanrun" else {"strategy": "fsdp2"})
    schedule = {"min_lr_factor": 1.0} if backend == "titanrun" else {}
    actor = {
        **role,
        "optim": {"lr": 1e-2, **schedule},
        "ppo_mini_batch_size": 1,
        "ppo_epochs": 2,
        "ppo_micro_batch_size_per_gpu": 2,
        "calculate_entropy": True,
        "entropy_coeff": 0.01,
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
    }
    if backend == "fsdp2":
        actor["use_torch_compile"] = False
    worker = {
        "actor": actor,
        "ref": {**role, "log_prob_micro_batch_size_per_gpu": 2},
        "rollout": {"n": SAMPLES, "temperature": 1.0, "log_prob_micro_batch_size_per_gpu": 2},
        "model": {
            "path": str(folder),
            "use_remove_padding": backend == "titanrun",
            "enable_gradient_checkpointing": False,
            "override_config": {"attn_implementation": "eager"},
        },
    }
    OmegaConf.set_struct(config, False)
    return OmegaConf.merge(config, {"actor_rollout_ref": worker})


def build_trainer(folder: Path, backend: str) -> Any:
    """verl's trainer with its workers in this process, and without generators."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.workers.engine_workers import ActorRolloutRefWorker

    config = load_config(folder, backend)
    workers = {}
    for role in ("ref", "actor"):
        workers[role] = ActorRolloutRefWorker(config=config.actor_rollout_ref, role=role)
        workers[role].init_model()
    trainer = object.__new__(RayPPOTrainer)
    vars(trainer).update(
        config=config,
        actor_rollout_wg=workers["actor"],
        ref_policy_wg=workers["ref"],
        ref_in_actor=False,
        distillation_config=None,
    )
    return trainer


def build_rollouts(step: int) -> Any:
    """Fixed answers in verl's layout: prompts padded on the left, responses on the right."""
    import numpy as np
    from verl import DataProto

    rng = torch.Generator().manual_seed(step)
    count = GROUPS * SAMPLES
    prompt_lengths = torch.arange(count) // SAMPLES + 3
    lengths = torch.randint(2, RESPONSE + 1, (count,), generator=rng)
    tokens = torch.randint(1, 60, (count, PROMPT + RESPONSE), generator=rng)
    index = torch.arange(PROMPT + RESPONSE)
    mask = (index >= PROMPT - prompt_lengths[:, None]) & (index < PROMPT + lengths[:, None])
    tokens = tokens.masked_fill(~mask, 61)
    response_mask = mask[:, PROMPT:].long()
    rewards = torch.zeros(count, RESPONSE)
    score = (tokens[:, PROMPT:] * response_mask).float().mean(-1)
    rewards[torch.arange(count), lengths - 1] = score
    return DataProto.from_dict(
        tensors={
            "prompts": tokens[:, :PROMPT],
            "responses": tokens[:, PROMPT:],
            "input_ids": tokens,
            "attention_mask": mask.long(),
            "position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0),
            "response_mask": response_mask,
            "token_level_rewards": rewards,
        },
        non_tensors={"uid": np.array([str(row // SAMPLES) for row in range(count)], dtype=object)},
        meta_info={"temperature": 1.0, "global_token_num": mask.sum(-1).tolist()},
    )


def run_step(trainer: Any, step: int) -> SimpleNamespace:
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.utils.metric import reduce_metrics

    batch = build_rollouts(step)
    old, _ = trainer._compute_old_log_prob(batch)
    batch = batch.union(old)
    batch = batch.union(trainer._compute_ref_log_prob(batch))
    batch = compute_advantage(batch, adv_estimator=AdvantageEstimator.GRPO)
    metrics = trainer._update_actor(batch).meta_info["metrics"]
    num_updates = len(metrics["actor/grad_norm"])
    return SimpleNamespace(
        batch=batch.batch, metrics=reduce_metrics(metrics), num_updates=num_updates
    )


def test_grpo_steps_are_those_of_verls_own_engine(folder: Path) -> None:
    own, theirs = build_trainer(folder, "titanrun"), build_trainer(folder, "fsdp2")
    assert type(own.actor_rollout_wg.actor.engine).__name__ == "TitanrunEngine"
    assert type(theirs.actor_rollout_wg.actor.engine).__name__ == "FSDPEngineWithLMHead"
    start = run_step(own, 0), run_step(theirs, 0)
    for step in range(1, 4):
        found, wanted = run_step(own, step), run_step(theirs, step)
        mask = wanted.batch["response_mask"].bool()
        for name in ("old_log_probs", "ref_log_prob", "entropys"):
            torch.testing.assert_close(
                found.batch[name][mask], wanted.batch[name][mask], rtol=0, atol=1e-4
            )
        assert found.metrics.keys() == wanted.metrics.keys()
        for name in MEASURED:
            assert found.metrics[name] == pytest.approx(wanted.metrics[name], rel=1e-4, abs=1e-4), (
                name
            )
    # two mini-batches, two epochs: four updates a step, of which the reference takes none
    assert found.num_updates == GROUPS * 2
    ref = [run.batch["ref_log_prob"] for run in (start[0], run_step(own, 0))]
    torch.testing.assert_close(*ref, rtol=0, atol=0)
    assert not torch.equal(start[0].batch["old_log_probs"], run_step(own, 0).batch["old_log_probs"])
