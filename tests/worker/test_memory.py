"""What is said to save memory does: the peak of a process that trains, with and without it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics

RECIPE = """
version: 1
name: memory
tokenizer: tiny
training: {dataset: tiny, local_batch_size: 1, global_batch_size: 1, max_norm: null, steps: 3,
           mixed_precision_param: float32}
lr_scheduler: {warmup_steps: 1}
device: cpu
"""
# 26 million weights: 99 MiB of fp32, as many of gradients, twice that of running means
WEIGHTS = (
    "model={name: llama3, flavor: debugmodel, dim: 512, n_layers: 7, n_heads: 8}",
    "training.seq_len=16",
)
# 6 layers that keep what they need for 2048 tokens
ACTIVATIONS = (
    "model={name: llama3, flavor: debugmodel, dim: 128, n_layers: 6, n_heads: 4}",
    "training.seq_len=2048",
)
COMPILED = (*ACTIVATIONS, "compile={enable: true, backend: aot_eager}")
MIB = 2**20


@cache
def peak_mib(*overrides: str) -> float:
    """The most memory that a run of three steps had."""
    # freed memory goes back at once, and does not hide in the heap
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MIB), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        recipe, run = Path(folder) / "recipe.yaml", Path(folder) / "run"
        recipe.write_text(RECIPE)
        command = [
            sys.executable,
            "-m",
            "titanrun",
            "train",
            str(recipe),
            *overrides,
            f"dump_folder={run}",
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return float(read_metrics(run / "metrics.jsonl")[-1]["memory_gib"] * 1024)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "saving", "mib"),
    [
        # of 198 MiB of running means in fp32, half, and three quarters less a share for scales
        pytest.param(WEIGHTS, "optimizer={state_dtype: bfloat16}", 80, id="bf16-states"),
        pytest.param(WEIGHTS, "optimizer=adamw_8bit", 115, id="8bit"),
        pytest.param(WEIGHTS, "optimizer=adamw_fp8", 115, id="fp8"),
        # gradients of one layer instead of seven
        pytest.param(WEIGHTS, "optimizer={early_step_in_backward: true}", 60, id="early-steps"),
        pytest.param(ACTIVATIONS, "activation_checkpoint=full", 35, id="recomputed"),
        pytest.param(
            COMPILED,
            "activation_checkpoint={name: memory_budget, memory_budget: 0.1}",
            40,
            id="memory-budget",
        ),
        # no gradients and no states for frozen weights
        pytest.param(WEIGHTS, "converters=[lora]", 200, id="lora"),
    ],
)
def test_a_setting_that_saves_memory_does(base: tuple[str, ...], saving: str, mib: int) -> None:
    without, with_it = peak_mib(*base), peak_mib(*base, saving)
    print(f"{saving}: {without:.0f} MiB without, {with_it:.0f} MiB with it")
    assert with_it < without - mib


@pytest.mark.slow
def test_packed_weights_need_less_than_plain_frozen_ones() -> None:
    # of the 99 MiB of weights 87 are packed, in 0.56 bytes instead of 4; the most is needed while
    # they are drawn
    plain, packed = (peak_mib(*WEIGHTS, f"converters=[{name}]") for name in ("lora", "qlora"))
    print(f"{plain:.0f} MiB with lora, {packed:.0f} MiB with qlora")
    assert packed < plain - 15
