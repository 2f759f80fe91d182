"""RL on several ranks against one process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rl.parts import TEXT
from tests.rl.test_runs import numbers

COMPARED = (
    *("loss", "grad_norm", "rollout/reward_mean", "rollout/tokens_mean"),
    *("rl/ratio_mean", "rl/kl", "validation/reward_mean"),
    *("rl/correction/mean", "rl/correction/clipped_share"),
)
LARGER = (
    "model.n_kv_heads=2",
    "training.steps=4",
    "rl.rollout={prompts_per_step: 3, samples_per_prompt: 5}",
    "optimizer.lr=1.0e-3",
)
TWO_LAYERS = ("model.n_layers=2", "training.local_batch_size=2")
PIPELINE = ("parallelism={pipeline_parallel_degree: 2, pipeline_parallel_schedule: 1F1B}",)
HELD = (
    "converters=[{name: lora, rank: 4}]",
    "rl.algorithm={name: grpo, entropy_coef: 0.01, kl: {coef: 0.5}}",
)


def train(folder: Path, nproc: int, *overrides: str) -> list[dict[str, float]]:
    """What `titanrun train` logs on so many ranks."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(TEXT)
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        str(recipe),
        "--nproc",
        str(nproc),
        f"dump_folder={folder / str(nproc)}",
    ]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return numbers(folder / str(nproc))


MIXED = ("training.dataset={name: arithmetic, count: 64, digits: 3}",)
# the bounds cut off about half of the tokens of older completions
DROPPED = (
    "rl.schedule={target_offpolicy: 2, window: 0.5}",
    "rl.algorithm={name: grpo, length_norm: sequence_mean, "
    "correction: {name: mask, low: 0.99, high: 1.01}}",
)
SPLIT = ("parallelism.tensor_parallel_degree=2", "rl.generator.tensor_parallel=true")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "layout"),
    [
        ((), ("parallelism.data_parallel_shard_degree=2",)),
        ((), ("parallelism.data_parallel_replicate_degree=2",)),
        ((), ("parallelism.tensor_parallel_degree=2",)),
        (
            ("converters=[{name: lora, rank: 4}]", "activation_checkpoint=selective"),
            ("parallelism.data_parallel_shard_degree=2",),
        ),
        (
            (
                "rl.reference=frozen_copy",
                "rl.algorithm={name: gspo, kl: {coef: 0.1}}",
                "rl.sync.transport=file",
            ),
            ("parallelism.tensor_parallel_degree=2",),
        ),
        (("converters=[fp32_lm_head]",), ("parallelism.data_parallel_shard_degree=2",)),
        (MIXED, ("parallelism.tensor_parallel_degree=2",)),
        (MIXED, (*SPLIT, "rl.generator.batch_size=7")),
        (TWO_LAYERS, PIPELINE),
        ((*TWO_LAYERS, *HELD, "rl.reference=adapter_off"), PIPELINE),
        ((), ("parallelism.context_parallel_degree=2",)),
        (
            ("rl.reference=frozen_copy", "rl.algorithm={name: gspo, kl: {coef: 0.1}}"),
            ("parallelism.context_parallel_degree=2",),
        ),
        (DROPPED, ("parallelism.data_parallel_shard_degree=2",)),
        ((*DROPPED, *TWO_LAYERS), PIPELINE),
        (DROPPED, ("parallelism.context_parallel_degree=2",)),
    ],
    ids=[
        *(
            "fsdp2",
            "ddp2",
            "tp2",
            "fsdp2_lora_recomputed",
            "tp2_gspo_reference_file",
            "fsdp2_fp32_head",
        ),
        *(
            "tp2_mixed_lengths",
            "tp2_split_generator_mixed_lengths",
            "pp2",
            "pp2_adapter_off",
            "cp2",
            "cp2_gspo",
            "fsdp2_dropped_tokens",
            "pp2_dropped_tokens",
            "cp2_dropped_tokens",
        ),
    ],
)
def test_ranks_learn_what_one_process_learns(
    tmp_path: Path, base: tuple[str, ...], layout: tuple[str, ...]
) -> None:
    alone = train(tmp_path, 1, *LARGER, *base)
    together = train(tmp_path, 2, *LARGER, *base, *layout)
    assert [line["step"] for line in together] == [line["step"] for line in alone]
    for one, other in zip(alone, together, strict=True):
        for name in (name for name in COMPARED if name in one):
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), (one["step"], name)


@pytest.mark.slow
def test_tensor_ranks_share_a_generator(tmp_path: Path) -> None:
    train(tmp_path, 2, "model.n_kv_heads=2", "training.steps=1", *SPLIT)
    held = re.search(
        r"the generator holds ([\d,]+) of its ([\d,]+)",
        (tmp_path / "2" / "logs" / "rank-1.log").read_text(),
    )
    assert held is not None
    part, whole = (int(number.replace(",", "")) for number in held.groups())
    assert whole / 2 < part < 0.6 * whole
