"""RL on several ranks against one process, and a run that is killed between its answers and its update."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.processes import work
from tests.rl.parts import TEXT
from tests.rl.test_runs import numbers, write_run
from titanrun.rl.trainer import RlTrainer

COMPARED = ("loss", "grad_norm", "rollout/reward_mean", "rollout/tokens_mean", "rl/ratio_mean", "validation/reward_mean")
LARGER = ("model.n_kv_heads=2", "training.steps=4", "rl.rollout={prompts_per_step: 3, samples_per_prompt: 5}", "optimizer.lr=1.0e-3")


def train(folder: Path, nproc: int, *overrides: str) -> list[dict[str, float]]:
    """What `titanrun train` logs on so many ranks."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(TEXT)
    command = [sys.executable, "-m", "titanrun", "train", str(recipe), "--nproc", str(nproc), f"dump_folder={folder / str(nproc)}"]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return numbers(folder / str(nproc))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "layout"),
    [
        ((), ("parallelism.data_parallel_shard_degree=2",)),
        ((), ("parallelism.data_parallel_replicate_degree=2",)),
        ((), ("parallelism.tensor_parallel_degree=2",)),
        (("converters=[{name: lora, rank: 4}]", "activation_checkpoint=selective"), ("parallelism.data_parallel_shard_degree=2",)),
        (
            ("rl.reference=frozen_copy", "rl.algorithm={name: gspo, kl: {coef: 0.1}}", "rl.sync.transport=file"),
            ("parallelism.tensor_parallel_degree=2",),
        ),
    ],
    ids=["fsdp2", "ddp2", "tp2", "fsdp2_lora_recomputed", "tp2_gspo_reference_file"],
)
def test_ranks_learn_what_one_process_learns(tmp_path: Path, base: tuple[str, ...], layout: tuple[str, ...]) -> None:
    alone = train(tmp_path, 1, *LARGER, *base)
    together = train(tmp_path, 2, *LARGER, *base, *layout)
    assert [line["step"] for line in together] == [line["step"] for line in alone]
    for one, other in zip(alone, together, strict=True):
        for name in (name for name in COMPARED if name in one):
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), (one["step"], name)


def killed_before_update(step: int) -> None:
    """A fault: the process dies when all answers of that step are there, and nothing has been learned from them."""
    verify = RlTrainer._verify

    def dying(trainer: Any, difference: float) -> None:
        if trainer.state.step + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        verify(trainer, difference)

    RlTrainer._verify = dying  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("offpolicy", [0, 2])
def test_a_run_killed_between_answers_and_update_goes_on_to_the_same_numbers(tmp_path: Path, offpolicy: int) -> None:
    options = (
        "training.steps=6",
        "checkpoint={enable: true, interval: 3}",
        f"rl.schedule.target_offpolicy={offpolicy}",
        "rl.environment={name: calculator, max_turns: 2}",
        "rl.rollout.drop_zero_variance=false",
    )
    whole, cut = write_run(tmp_path / "whole", *options), write_run(tmp_path / "cut", *options)
    assert work(whole) == 0
    assert work(cut, killed_before_update, 5) == -signal.SIGKILL
    assert [line["step"] for line in numbers(cut.parent)] == [0, 1, 2, 3, 4]
    assert work(cut) == 0
    assert numbers(cut.parent) == numbers(whole.parent)
