"""Loops of torchtitan's names that actors of every carrier run."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from titanrun.rl.policy_trainer import PolicyTrainer
from titanrun.worker.open_engine import open_policy_trainer


class Microbatch(SimpleNamespace):
    """torchtitan's flat microbatch."""


def flat(lengths: tuple[int, ...], seed: int = 0) -> Microbatch:
    """Documents one after the other, a prompt of two tokens each."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return Microbatch(
        token_ids=torch.randint(56, (total,), generator=rng),
        labels=torch.randint(56, (total,), generator=rng),
        positions=positions,
        generator_logprobs=-4 + torch.rand(total, generator=rng) / 10,
        loss_mask=positions > 1,
        advantages=torch.randn(total, generator=rng),
    )


DATA = [flat((5, 8), 1), flat((5,), 2)]
NUM_TOKENS = sum(int(each.loss_mask.sum()) for each in DATA)


def run_plain(trainer: PolicyTrainer, steps: int = 2) -> list[dict[str, Any]]:
    """The loop without actors: one rank, whose batches are all."""
    found = []
    for step in range(1, steps + 1):
        trainer.sync_log_step(step, step)
        losses = [trainer.forward_backward([each], NUM_TOKENS)["loss/mean"] for each in DATA]
        update = trainer.optim_step()
        trainer.push_model_state_dict()
        saved = trainer.save_checkpoint(step, step == steps)
        found.append({"losses": losses, "norm": update["grad_norm"], "saved": saved})
    return found


def run_handles(actor: Any, steps: int = 2) -> list[dict[str, Any]]:
    """The same loop over handles with `call_one` and `get`."""
    found = []
    for step in range(1, steps + 1):
        actor.sync_log_step.call(step, step).get(timeout=240)
        losses = [
            actor.forward_backward.call([each], NUM_TOKENS).get(timeout=240).get(0)["loss/mean"]
            for each in DATA
        ]
        update = actor.optim_step.call_one().get(timeout=240)
        actor.push_model_state_dict.call().get(timeout=240)
        saved = actor.save_checkpoint.call_one(step, step == steps).get(timeout=240)
        found.append({"losses": losses, "norm": update["grad_norm"], "saved": saved})
    assert actor.get_policy_version.call_one().get(timeout=240) == steps
    return found


def open_trainer(recipe: str, folder: str, ranks: int = 1) -> PolicyTrainer:
    """A trainer of one row for each rank, that pushes into a folder."""
    overrides = [f"parallelism.data_parallel_shard_degree={ranks}", "rl.sync.transport=file"]
    return open_policy_trainer(
        recipe, overrides, folder=Path(folder) / "pushed", checkpoints=Path(folder) / "saved"
    )


class WaitingTrainer(PolicyTrainer):
    """A trainer whose optimizer step lasts until a file is there."""

    flag: Path

    def optim_step(self, lr: float | None = None) -> Any:
        (self.flag / "begun").touch()
        while not (self.flag / "go").exists():
            time.sleep(0.01)
        return PolicyTrainer.optim_step(self, lr)


def open_waiting_trainer(recipe: str, folder: str) -> WaitingTrainer:
    plain = open_trainer(recipe, folder)
    made = WaitingTrainer(
        engine=plain.engine,
        loss=plain.loss,
        transport=plain.transport,
        dtype=plain.dtype,
        parameter_names=plain.parameter_names,
    )
    made.flag = Path(folder)
    return made


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 240
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.01)


def check_that_versions_are_told_beside_a_long_call(actor: Any, folder: Path) -> None:
    """A second long call waits; the version and the step of the log do not."""
    actor.forward_backward.call(DATA[:1], NUM_TOKENS).get(timeout=240)
    long, queued = actor.optim_step.call_one(), actor.state_dict.call_one()
    wait_for(folder / "begun")
    assert actor.get_policy_version.call_one().get(timeout=240) == 0
    actor.sync_log_step.call_one(4).get(timeout=240)
    assert actor.health.call_one().get(timeout=240)["running"] == "optim_step"
    (folder / "go").touch()
    assert long.get(timeout=240)["policy_version"] == 1
    # what came after it saw its update
    assert queued.get(timeout=240) == {"policy_version": 1}
