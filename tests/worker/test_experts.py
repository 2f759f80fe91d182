"""Experts of the deepseek_v3 family in a run: forced balance, counts under recomputation, and the
bias that balances them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.rl.parts import TEXT
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

Metrics = Callable[..., list[dict[str, float]]]
ROOT = Path(__file__).parents[2]
ATTENTION = "n_heads: 2, kv_lora_rank: 16, qk_nope_head_dim: 8, qk_rope_head_dim: 8, v_head_dim: 8"
EXPERTS = (
    "{num_experts: 8, top_k: 3, hidden_dim: 16, score_func: sigmoid, num_expert_groups: 4, "
    "num_limited_groups: 2}"
)
MODEL = (
    f"model={{name: deepseek_v3, vocab_size: 64, dim: 32, n_layers: 3, {ATTENTION}, "
    f"feed_forward: {{hidden_dim: 48}}, moe: {EXPERTS}}}"
)
# four rows of sixteen tokens, each to three of eight experts
SLOTS_OF_AN_EXPERT = 4 * 16 * 3 / 8


def evenness(lines: list[dict[str, float]]) -> list[tuple[float, float, float]]:
    """Imbalance, most and fewest tokens of an expert, of each step."""
    return [
        (
            line["moe/imbalance"],
            line["moe/most_tokens_per_expert"],
            line["moe/least_tokens_per_expert"],
        )
        for line in lines
    ]


def test_forced_balance_gives_every_expert_as_many_tokens(metrics: Metrics) -> None:
    lines = metrics(
        MODEL, "training.steps=3", "debug.moe_force_load_balance=true", "activation_checkpoint=full"
    )
    assert evenness(lines) == [(1.0, SLOTS_OF_AN_EXPERT, SLOTS_OF_AN_EXPERT)] * 3


@pytest.mark.parametrize("recomputing", ["full", "{name: selective, selective_ac_option: op}"])
def test_tokens_are_counted_once_where_layers_are_computed_twice(
    recomputing: str, metrics: Metrics
) -> None:
    kept, recomputed = (
        metrics(MODEL, "training.steps=3", f"activation_checkpoint={how}")
        for how in ("none", recomputing)
    )
    assert evenness(recomputed) == evenness(kept)
    assert [line["loss"] for line in recomputed] == [line["loss"] for line in kept]
    assert all(most > SLOTS_OF_AN_EXPERT > least for _, most, least in evenness(kept))


def test_the_bias_evens_experts_out(metrics: Metrics) -> None:
    balanced, left_alone = (
        evenness(metrics(MODEL, "training.steps=20", f"model.moe.load_balance_coeff={coefficient}"))
        for coefficient in ("0.02", "null")
    )
    assert sum(step[0] for step in balanced[-5:]) < sum(step[0] for step in left_alone[-5:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek_v3_debug", "gpt_oss_debug", "llama4_debug"])
def test_the_debug_recipe_learns_the_tiny_corpus(name: str, tmp_path: Path) -> None:
    recipe, run = ROOT / "recipes" / f"{name}.yaml", tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        str(recipe),
        f"dump_folder={run}",
        "metrics.log_freq=1",
    ]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    lines = read_metrics(run / "metrics.jsonl")
    held_out = [line["validation/loss"] for line in lines if "validation/loss" in line]
    assert held_out == sorted(held_out, reverse=True)
    assert held_out[-1] < held_out[0] - 2.5
    assert sum(line["loss"] for line in lines[-5:]) / 5 < 5.3


def expert_loads(line: dict[str, float]) -> dict[str, float]:
    """Tokens of each expert, by layer and number."""
    start = "moe/tokens_per_expert/"
    return {name.removeprefix(start): line[name] for name in line if name.startswith(start)}


def test_the_tokens_of_each_expert_are_logged_where_they_are_asked_for(metrics: Metrics) -> None:
    """Row A13 of the defect list. The first layer of three has no experts."""
    lines = metrics(MODEL, "training.steps=4", "metrics.tokens_per_expert=true")
    plain = metrics(MODEL, "training.steps=4")
    assert not any(expert_loads(line) for line in plain)
    assert [line["loss"] for line in lines] == [line["loss"] for line in plain]
    names = {f"layer_{layer}/expert_{expert}" for layer in (1, 2) for expert in range(8)}
    for line in lines:
        loads = expert_loads(line)
        assert loads.keys() == names
        for layer in (1, 2):
            own = [loads[name] for name in names if name.startswith(f"layer_{layer}/")]
            assert sum(own) == 8 * SLOTS_OF_AN_EXPERT
        assert max(loads.values()) == line["moe/most_tokens_per_expert"]
        assert min(loads.values()) == line["moe/least_tokens_per_expert"]
    (first, last) = metrics(
        MODEL, "training.steps=4", "metrics={tokens_per_expert: true, log_freq: 4}"
    )
    assert expert_loads(first) == expert_loads(lines[0])
    # the mean of the steps since the last line
    for name, count in expert_loads(last).items():
        assert count == pytest.approx(sum(expert_loads(line)[name] for line in lines[1:]) / 3)


def read_counts(resolved: Path) -> dict[int, np.ndarray]:
    """Counts [layers with experts, experts] of each step in moe.jsonl."""
    lines = [json.loads(line) for line in (resolved.parent / "moe.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["counts"][0] is None and len(line["counts"]) == 3
    return {line["step"]: np.array(line["counts"][1:]) for line in lines}


def test_the_counts_of_a_step_are_its_tokens_and_shares_follow_from_them(
    run: Callable[..., Path], tokens: Path
) -> None:
    """The sums are exact, whatever else passed through the experts: validation, recomputation."""
    validates = (
        f"validation={{enable: true, freq: 1, steps: 2, dataset: {{name: tokens, path: {tokens}}}}}"
    )
    found = {}
    for name, options in {
        "plain": (),
        "twice": ("activation_checkpoint=full",),
        "held-out": (validates, "activation_checkpoint=full"),
    }.items():
        resolved = run(name, MODEL, "training.steps=3", *options)
        assert main([str(resolved)]) == 0
        found[name] = read_counts(resolved), read_metrics(resolved.parent / "metrics.jsonl")
    counts, lines = found["plain"]
    assert sorted(counts) == [1, 2, 3]
    for step, counts_LE in counts.items():
        # four rows of sixteen tokens, each to three experts
        assert counts_LE.sum(1).tolist() == [4 * 16 * 3] * 2
        (line,) = [each for each in lines if each["step"] == step]
        for layer, counts_E in zip((1, 2), counts_LE, strict=True):
            share = counts_E / counts_E.sum()
            nonzero = share[share > 0]
            expected = {
                "share_max": share.max(),
                "share_min": share.min(),
                "entropy": -(nonzero * np.log(nonzero)).sum(),
                "dead_experts": (counts_E == 0).sum(),
            }
            for name, value in expected.items():
                assert line[f"moe/layer_{layer}/{name}"] == pytest.approx(value, abs=1e-9)
        assert not any(name.startswith("moe/layer_0/") for name in line)
    for other in ("twice", "held-out"):
        for step, counts_LE in found[other][0].items():
            assert np.array_equal(counts_LE, counts[step])


def test_trackers_get_the_counts_as_histograms(run: Callable[..., Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    resolved = run("board", MODEL, "training.steps=2", "metrics.trackers=[tensorboard]")
    assert main([str(resolved)]) == 0
    events = EventAccumulator(str(resolved.parent / "tensorboard"))
    events.Reload()
    for layer in (1, 2):
        for event in events.Histograms(f"moe/layer_{layer}/tokens_per_expert"):
            found = event.histogram_value
            by_limit = dict(zip(found.bucket_limit, found.bucket, strict=True))
            counts = read_counts(resolved)[event.step][layer - 1]
            assert [by_limit.get(expert + 1.0, 0) for expert in range(8)] == counts.tolist()
            assert found.num == 4 * 16 * 3
    assert not any("layer_0" in name for name in events.Tags()["histograms"])


@pytest.mark.slow
def test_ranks_count_what_one_counts(tmp_path: Path, tokens: Path) -> None:
    from tests.worker.conftest import RECIPE

    (tmp_path / "recipe.yaml").write_text(RECIPE % tokens)
    found = {}
    for name, ranks, options in [
        ("one", 1, ()),
        ("dp2", 2, ("parallelism.data_parallel_shard_degree=2",)),
        ("ep2", 2, ("parallelism={data_parallel_shard_degree: 2, expert_parallel_degree: 2}",)),
    ]:
        command = [
            *(sys.executable, "-m", "titanrun", "train", str(tmp_path / "recipe.yaml")),
            *("--nproc", str(ranks), f"dump_folder={tmp_path / name}", MODEL, *options),
            *("training.steps=2", "activation_checkpoint=full"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[name] = read_counts(tmp_path / name / "resolved.yaml")
    for name in ("dp2", "ep2"):
        for step, counts_LE in found["one"].items():
            assert np.array_equal(found[name][step], counts_LE)


@pytest.mark.parametrize("options", [(), ("rl.reference=frozen_copy", "rl.algorithm.kl.coef=0.1")])
def test_in_rl_the_generator_is_counted_apart_and_the_reference_is_not(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    resolved = tmp_path / "run" / "resolved.yaml"
    resolved.parent.mkdir()
    overrides = (
        MODEL.replace("vocab_size: 64", "vocab_size: 56").replace(
            "kv_lora_rank", "max_seq_len: 64, attention: {mask: block_causal}, kv_lora_rank"
        ),
        *("rl.validation.dataset=null", "rl.rollout.drop_zero_variance=false"),
    )
    resolved.write_text(
        resolve_recipe(str(tmp_path / "recipe.yaml"), (*overrides, *options), environment={}).text
    )
    assert main([str(resolved)]) == 0
    counts = read_counts(resolved)
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    for step, counts_LE in counts.items():
        (line,) = [each for each in lines if each["step"] == step]
        # whole rows of 32 tokens, of which the packing decides the number
        totals = counts_LE.sum(1)
        assert totals[0] == totals[1] > 0 and totals[0] % (32 * 3) == 0
        for layer in (1, 2):
            prefix = f"rl/generator_moe/layer_{layer}"
            assert 1 / 8 <= line[f"{prefix}/share_max"] <= 1 / 3 + 1e-9
            assert 0 < line[f"{prefix}/entropy"] <= np.log(8) + 1e-9
            assert line[f"{prefix}/share_max"] != line[f"moe/layer_{layer}/share_max"]
