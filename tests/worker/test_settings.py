"""Every setting reaches what it is about: a run with another value differs, and differs where it
should.

What a setting does exactly is tested beside its component; here a setting that is lost on the way
from the recipe would show.
"""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from titanrun.distributed.device import select_device
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.run_files import read_json_or_empty
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.rank_main import main
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
Metrics = Callable[..., list[dict[str, float]]]

STRETCHED = "model.rope.scaling={name: llama3, original_max_position_embeddings: 16}"
BY_THE_RULE = "model.feed_forward.hidden_dim=auto"
QWEN3 = (
    "model={name: qwen3, vocab_size: 64, dim: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
    "head_dim: 8, feed_forward: {hidden_dim: 48}}"
)
EXPERTS = (
    "model.moe={num_experts: 8, top_k: 2, hidden_dim: 16, num_shared_experts: 0, score_func: "
    "softmax, route_norm: false, "
    "route_scale: 1.0, gate_bias: false, score_before_experts: false, num_expert_groups: null, "
    "num_limited_groups: null, "
    "load_balance_coeff: 0.1}"
)
IN_GROUPS = EXPERTS.replace(
    "num_expert_groups: null, num_limited_groups: null",
    "num_expert_groups: 4, num_limited_groups: 1",
)
# each leaf with another value than the tiny recipe has, and what must be so for it to be read
PLAIN = "loss=cross_entropy"
CHUNKED = "loss=chunked_cross_entropy"
NUMERICS: dict[str, tuple[str, ...]] = {
    "debug.seed": ("debug.seed=1",),
    "training.global_batch_size": ("training.global_batch_size=2",),
    "training.max_norm": ("training.max_norm=0.01",),
    "training.dtype": ("training.dtype=bfloat16",),
    "training.mixed_precision_param": ("training.mixed_precision_param=bfloat16",),
    "dataset:tokens.shuffle": ("training.dataset.shuffle=false",),
    "model:llama3.vocab_size": ("model.vocab_size=128",),
    "model:llama3.dim": ("model.dim=48",),
    "model:llama3.n_layers": ("model.n_layers=3",),
    "model:llama3.n_heads": ("model.n_heads=8",),
    "model:llama3.n_kv_heads": ("model.n_kv_heads=4",),
    "model:llama3.head_dim": ("model.head_dim=16",),
    "model:llama3.norm_eps": ("model.norm_eps=0.01",),
    "model:llama3.tie_word_embeddings": ("model.tie_word_embeddings=true",),
    "model:llama3.rope.theta": ("model.rope.theta=100.0",),
    "model:llama3.rope.scaling": (STRETCHED,),
    "model:llama3.feed_forward.hidden_dim": ("model.feed_forward.hidden_dim=96",),
    "model:llama3.feed_forward.multiple_of": ("model.feed_forward.multiple_of=64", BY_THE_RULE),
    "model:llama3.feed_forward.ffn_dim_multiplier": (
        "model.feed_forward.ffn_dim_multiplier=2.0",
        BY_THE_RULE,
    ),
    "model:llama3.init.embedding_std": ("model.init.embedding_std=0.5",),
    "model:llama3.init.linear_std": ("model.init.linear_std=0.05",),
    "model:llama3.init.depth_scaling": ("model.init.depth_scaling=model",),
    "model:llama3.init.truncation": ("model.init.truncation=0.02",),
    "model:llama3.init.output_std": ("model.init.output_std=0.5",),
    "model:llama3.init.output_truncation_stds": ("model.init.output_truncation_stds=0.5",),
    "rope_scaling:llama3.factor": ("model.rope.scaling.factor=2.0", STRETCHED),
    "rope_scaling:llama3.low_freq_factor": ("model.rope.scaling.low_freq_factor=2.0", STRETCHED),
    "rope_scaling:llama3.high_freq_factor": ("model.rope.scaling.high_freq_factor=8.0", STRETCHED),
    "rope_scaling:llama3.original_max_position_embeddings": (
        "model.rope.scaling.original_max_position_embeddings=64",
        STRETCHED,
    ),
    "model:qwen3.vocab_size": ("model.vocab_size=128", QWEN3),
    "model:qwen3.dim": ("model.dim=48", QWEN3),
    "model:qwen3.n_layers": ("model.n_layers=3", QWEN3),
    "model:qwen3.n_heads": ("model.n_heads=8", QWEN3),
    "model:qwen3.n_kv_heads": ("model.n_kv_heads=4", QWEN3),
    "model:qwen3.head_dim": ("model.head_dim=16", QWEN3),
    "model:qwen3.norm_eps": ("model.norm_eps=0.01", QWEN3),
    "model:qwen3.tie_word_embeddings": ("model.tie_word_embeddings=true", QWEN3),
    "model:qwen3.rope.theta": ("model.rope.theta=100.0", QWEN3),
    "model:qwen3.feed_forward.hidden_dim": ("model.feed_forward.hidden_dim=96", QWEN3),
    "model:qwen3.init.embedding_std": ("model.init.embedding_std=0.5", QWEN3),
    "model:qwen3.init.linear_std": ("model.init.linear_std=0.05", QWEN3),
    "model:qwen3.init.depth_scaling": ("model.init.depth_scaling=model", QWEN3),
    "model:qwen3.init.truncation": ("model.init.truncation=0.02", QWEN3),
    "model:qwen3.init.output_std": ("model.init.output_std=0.5", QWEN3),
    "model:qwen3.init.output_truncation_stds": ("model.init.output_truncation_stds=0.5", QWEN3),
    "model:qwen3.moe.num_experts": ("model.moe.num_experts=4", QWEN3, EXPERTS),
    "model:qwen3.moe.top_k": ("model.moe.top_k=3", QWEN3, EXPERTS),
    "model:qwen3.moe.hidden_dim": ("model.moe.hidden_dim=24", QWEN3, EXPERTS),
    "model:qwen3.moe.num_shared_experts": ("model.moe.num_shared_experts=1", QWEN3, EXPERTS),
    "model:qwen3.moe.score_func": ("model.moe.score_func=sigmoid", QWEN3, EXPERTS),
    "model:qwen3.moe.route_norm": ("model.moe.route_norm=true", QWEN3, EXPERTS),
    "model:qwen3.moe.route_scale": ("model.moe.route_scale=2.0", QWEN3, EXPERTS),
    "model:qwen3.moe.gate_bias": ("model.moe.gate_bias=true", QWEN3, EXPERTS),
    "model:qwen3.moe.score_before_experts": ("model.moe.score_before_experts=true", QWEN3, EXPERTS),
    "model:qwen3.moe.load_balance_coeff": ("model.moe.load_balance_coeff=null", QWEN3, EXPERTS),
    "model:qwen3.moe.num_expert_groups": ("model.moe.num_expert_groups=2", QWEN3, IN_GROUPS),
    "model:qwen3.moe.num_limited_groups": ("model.moe.num_limited_groups=2", QWEN3, IN_GROUPS),
    "debug.moe_force_load_balance": ("debug.moe_force_load_balance=true", QWEN3, EXPERTS),
    "optimizer:adamw.lr": ("optimizer.lr=0.02",),
    "optimizer:adamw.beta1": ("optimizer.beta1=0.5",),
    "optimizer:adamw.beta2": ("optimizer.beta2=0.5",),
    "optimizer:adamw.eps": ("optimizer.eps=0.01",),
    "optimizer:adamw.weight_decay": ("optimizer.weight_decay=0.9",),
    "loss:auto.label_smoothing": ("loss.label_smoothing=0.1",),
    "loss:auto.z_loss": ("loss.z_loss=0.01",),
    "loss:cross_entropy.label_smoothing": ("loss.label_smoothing=0.1", PLAIN),
    "loss:cross_entropy.z_loss": ("loss.z_loss=0.01", PLAIN),
    "loss:chunked_cross_entropy.label_smoothing": ("loss.label_smoothing=0.1", CHUNKED),
    "loss:chunked_cross_entropy.z_loss": ("loss.z_loss=0.01", CHUNKED),
    "lr_scheduler:warmup_stable_decay.warmup_steps": ("lr_scheduler.warmup_steps=1",),
    "lr_scheduler:warmup_stable_decay.total_steps": ("lr_scheduler.total_steps=8",),
    "lr_scheduler:warmup_stable_decay.decay_ratio": ("lr_scheduler.decay_ratio=0.0",),
    "lr_scheduler:warmup_stable_decay.decay_type": ("lr_scheduler.decay_type=cosine",),
    "lr_scheduler:warmup_stable_decay.min_lr_factor": ("lr_scheduler.min_lr_factor=0.5",),
}


def losses(lines: list[dict[str, float]]) -> list[float]:
    return [line["loss"] for line in lines]


@pytest.mark.parametrize("leaf", NUMERICS)
def test_another_value_gives_other_losses(leaf: str, metrics: Metrics) -> None:
    changed, *given = NUMERICS[leaf]
    steps = "training.steps=6"
    assert losses(metrics(steps, *given, changed)) != losses(metrics(steps, *given))


@pytest.fixture
def held_out(tmp_path: Path) -> list[str]:
    """Overrides that validate every second step on two rows of a stream of tokens."""
    np.save(
        tmp_path / "stream.npy",
        np.random.Generator(np.random.PCG64(1)).integers(64, size=400, dtype=np.uint16),
    )
    dataset = f"validation.dataset={{name: tokens, path: {tmp_path / 'stream.npy'}}}"
    return [
        "training.steps=2",
        "validation.enable=true",
        dataset,
        "validation.freq=2",
        "validation.steps=1",
    ]


@pytest.mark.parametrize(
    "changed",
    [
        "validation.seq_len=8",
        "validation.local_batch_size=1",
        "validation.steps=2",
        "validation.dataset",
    ],
)
def test_another_validation_gives_another_held_out_loss(
    changed: str, held_out: list[str], metrics: Metrics, tmp_path: Path
) -> None:
    if changed == "validation.dataset":
        np.save(tmp_path / "other.npy", np.arange(400, dtype=np.uint16) % 64)
        changed = f"validation.dataset={{name: tokens, path: {tmp_path / 'other.npy'}}}"
    different = [
        override for override in held_out if override.partition("=")[0] != changed.partition("=")[0]
    ]
    before, after = metrics(*held_out), metrics(*different, changed)
    assert losses(before) == losses(after)
    assert before[-1]["validation/loss"] != after[-1]["validation/loss"]


def test_validation_happens_where_it_is_due(held_out: list[str], metrics: Metrics) -> None:
    lines = metrics(*held_out[1:3], "training.steps=7", "validation.freq=3", "validation.steps=1")
    assert [line["step"] for line in lines if "validation/loss" in line] == [1, 3, 6, 7]
    assert not any("validation/loss" in line for line in metrics("training.steps=2"))


def test_a_further_held_out_set_has_a_loss_of_its_own(
    held_out: list[str], metrics: Metrics, tmp_path: Path
) -> None:
    np.save(tmp_path / "other.npy", np.arange(400, dtype=np.uint16) % 64)
    other = f"{{name: tokens, path: {tmp_path / 'other.npy'}}}"
    both = metrics(*held_out, f"validation.further=[{{id: counting, dataset: {other}}}]")
    alone = metrics(
        *(
            f"validation.dataset={other}" if "dataset" in override else override
            for override in held_out
        )
    )
    assert both[-1]["validation/loss"] == metrics(*held_out)[-1]["validation/loss"]
    assert (
        both[-1]["validation/counting/loss"]
        == alone[-1]["validation/loss"]
        != both[-1]["validation/loss"]
    )


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_forward_pass_takes_the_local_batch(rows: int, run: Run) -> None:
    resolved = run(
        "run", f"training.local_batch_size={rows}", "training.steps=2", "checkpoint.enable=false"
    )
    with build_train_loop(
        load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=SignalRequests()
    ) as trainer:
        seen: list[int] = []
        trainer.engine.model.register_forward_pre_hook(
            lambda _, inputs: seen.append(len(inputs[0]))
        )
        trainer.train()
    assert seen == [rows] * (2 * 4 // rows)


def test_checkpoints_go_where_the_recipe_says_and_the_latest_stay(run: Run) -> None:
    resolved = run(
        "run", "checkpoint.folder=saved/here", "checkpoint.interval=3", "checkpoint.keep_latest_k=2"
    )
    assert main([str(resolved)]) == 0
    assert sorted(entry.name for entry in (resolved.parent / "saved" / "here").iterdir()) == [
        "step-10",
        "step-9",
    ]
    assert not (resolved.parent / "checkpoint").exists()


def test_the_run_is_on_the_device_asked_for_or_nowhere(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "device=gpu", "training.steps=2")
    code = main([str(resolved)])
    if select_device("auto", local_rank=0).type == "cpu":
        assert (code, "error[usage]: " in capsys.readouterr().err) == (2, True)
    else:
        assert code == 0
        assert (
            read_json_or_empty(resolved.parent / "run.json")["starts"][-1]["decided"]["device"]
            != "cpu"
        )


@pytest.mark.parametrize("warn_only", [False, True])
def test_kernels_are_deterministic_or_warn(warn_only: bool, metrics: Metrics) -> None:
    try:
        metrics(
            "training.steps=2",
            "debug.deterministic=true",
            f"debug.deterministic_warn_only={str(warn_only).lower()}",
        )
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_description_is_above_the_summary_of_the_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run("run", "training.steps=2", "description=with twice the rows"))]) == 0
    lines = capsys.readouterr().err.splitlines()
    summary = next(line for line in lines if line.startswith("llama3: "))
    assert lines[lines.index(summary) - 1] == "with twice the rows"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colors", [True, False])
def test_a_terminal_shows_colours_unless_they_are_switched_off(
    colors: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    resolved = run(
        "run", "training.steps=2", f"metrics.disable_color_printing={str(not colors).lower()}"
    )
    assert main([str(resolved)]) == 0
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "finished: 2 steps" in shown
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", shown)) == colors


def test_events_of_tensorboard_lie_in_their_folder(run: Run) -> None:
    tracker = "metrics.trackers=[{name: tensorboard, folder: events}]"
    resolved = run("run", "training.steps=2", tracker)
    assert main([str(resolved)]) == 0
    assert [path.name.split(".")[0] for path in (resolved.parent / "events").iterdir()] == [
        "events"
    ]


@pytest.mark.parametrize(
    "sections", [(), ("training",), ("validation",), ("training", "validation")]
)
def test_batches_are_pinned_where_asked(
    run: Run, sections: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = f"{{name: tokens, path: {run().parent.parent}/tokens.npy}}"
    held_out = f"validation={{enable: true, dataset: {rows}, local_batch_size: 3, steps: 1}}"
    asked = [f"{section}.dataloader.pin_memory=true" for section in sections]
    resolved = run("pinned", held_out, "training.steps=2", "checkpoint.enable=false", *asked)
    seen: set[int] = set()
    monkeypatch.setattr("titanrun.worker.build.build_data.is_accelerator", lambda device: True)
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: [seen.add(len(tensor)), tensor][1]
    )
    assert main([str(resolved)]) == 0
    # a rank's rows of a training step, and of a held-out batch
    assert seen == {{"training": 4, "validation": 3}[section] for section in sections}
