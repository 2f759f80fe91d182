"""A run over packed weights: it goes on bit for bit, and what is merged computes what was
trained."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.distributed.ranks import alone
from tests.distributed.ranks import train as train_on
from tests.worker.test_lora import job
from tests.worker.test_resume import assert_same_end, sending, train
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
QLORA = ("converters=[{name: qlora, rank: 4, block_size: 32}]", "checkpoint.adapters_only=true")
SIZES = "dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: 2, feed_forward: {hidden_dim: 128}"
SHORT = (
    "training.steps=3",
    "lr_scheduler.warmup_steps=1",
    "validation.enable=false",
    "optimizer={eps: 1.0e-5, lr: 1.0e-2}",
)
SMALL = (
    f"model={{name: llama3, flavor: debugmodel, {SIZES}}}",
    *SHORT,
    "converters=[{name: qlora, rank: 4}]",
)


@pytest.mark.slow
def test_ten_steps_are_a_stop_and_the_rest(run: Run) -> None:
    uncut, stopped = run("uncut", *QLORA), run("stopped", *QLORA)
    train(uncut)
    assert train(stopped, sending(signal.SIGTERM, at=5))[0].step == 5
    assert train(stopped)[0].step == 10
    assert_same_end(uncut, stopped)
    losses = [line["loss"] for line in read_metrics(uncut.parent / "metrics.jsonl")]
    assert losses[-1] < losses[0]


def test_merged_weights_are_what_was_trained(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = run("base", "training.steps=4", "checkpoint.last_save_in_hf=true")
    assert main([str(base)]) == 0
    start = (
        "checkpoint.initial_load_in_hf=true",
        f"checkpoint.initial_load_path={base.parent / 'hf'}",
    )
    from_checkpoint = (f"checkpoint.initial_load_path={base.parent}",)
    # tied embeddings are drawn once
    from_seed = ("model.tie_word_embeddings=true",)
    tuned, other, drawn = (
        run(name, *QLORA, *given, "checkpoint.last_save_in_hf=true")
        for name, given in (("a", start), ("b", from_checkpoint), ("c", from_seed))
    )
    for each in (tuned, other, drawn):
        assert main([str(each)]) == 0
    # a Hugging Face folder and a checkpoint give the same frozen weights
    assert_same_losses(tuned, other)
    for resolved in (tuned, drawn):
        out = str(tmp_path / f"merged-{resolved.parent.name}")
        step = str(resolved.parent / "checkpoint" / "step-10")
        exporting = {"do": "export", "checkpoint": step, "format": "hf", "merge": True}
        assert job(monkeypatch, out=out, **exporting) == 0
        merged, at_end = (
            AutoModelForCausalLM.from_pretrained(folder).state_dict()
            for folder in (out, resolved.parent / "hf")
        )
        assert all(torch.equal(weight, at_end[name]) for name, weight in merged.items())
        told = "the adapters were trained on nf4 weights, and peft adds them to others: --merge "
        assert told not in capsys.readouterr().err
        assert job(monkeypatch, out=f"{out}-adapter", **{**exporting, "merge": False}) == 0
        assert told in capsys.readouterr().err


def assert_same_losses(*runs: Path) -> None:
    first, second = (
        [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]
        for resolved in runs
    )
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nproc", "layout"),
    [
        (2, ()),
        (2, ("parallelism.data_parallel_replicate_degree=2", "activation_checkpoint=full")),
        (
            2,
            (
                "parallelism.pipeline_parallel_degree=2",
                "parallelism.pipeline_parallel_schedule=1F1B",
            ),
        ),
        (4, ("parallelism.context_parallel_degree=2", "training.enable_cpu_offload=true")),
    ],
    ids=["fsdp2", "ddp2", "pp2", "fsdp2_cp2_offload"],
)
def test_several_ranks_train_as_one_does(nproc: int, layout: tuple[str, ...]) -> None:
    expected, found = alone(SMALL), train_on(nproc, [*SMALL, *layout])
    assert [line["loss"] for line in found.numbers] == pytest.approx(
        [line["loss"] for line in expected.numbers], rel=1e-5
    )
    (reference,) = expected.gradients
    seen = {name: gradient for gradients in found.gradients for name, gradient in gradients.items()}
    assert seen.keys() == reference.keys()
    for name, gradient in seen.items():
        assert (gradient - reference[name]).norm() <= 5e-6 * max(reference[name].norm(), 1e-3), name
