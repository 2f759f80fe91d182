"""A run with adapters: the model stays frozen, checkpoints may hold adapters alone, and every
export has them, merged or for peft."""

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.worker.test_resume import assert_same_end, saved, sending, train
from titanrun.components.checkpoints.adapter_weights import is_adapter
from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.build.build_model import build_model
from titanrun.worker.commands import checkpoint as worker
from titanrun.worker.commands.dry_build import dry_build
from titanrun.worker.commands.measure_memory import measure_layers
from titanrun.worker.commands.show_model import describe_modules
from titanrun.worker.rank_main import main
from titanrun.worker.weights.drawn_weights import select_drawing_device
from titanrun.worker.weights.saved_weights import load_verified_weights

# of transformers, which peft asks in its old words
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)
Run = Callable[..., Path]
LORA = "converters=[{name: lora, rank: 4, target_modules: [wq, wk, wo, w2]}]"
DROPOUT = "converters=[{name: lora, rank: 4, dropout: 0.2}]"
ALONE = "checkpoint.adapters_only=true"


def job(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> int:
    """The worker of `titanrun checkpoint`, in this process."""
    text = json.dumps({"dtype": None, "merge": False, "shard_bytes": 10**9, **asked})
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return worker.main()


@pytest.fixture
def base(run: Run) -> Path:
    """A short run without adapters, and its weights for transformers."""
    resolved = run("base", "training.steps=4", "checkpoint.last_save_in_hf=true")
    assert main([str(resolved)]) == 0
    return resolved.parent


SLOW = [(DROPOUT,), (DROPOUT, ALONE, "activation_checkpoint=full")]


@pytest.mark.parametrize(
    "overrides", [(LORA, ALONE), *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)]
)
def test_ten_steps_are_a_stop_and_the_rest_and_only_adapters_change(
    run: Run, overrides: tuple[str, ...]
) -> None:
    uncut, stopped = run("uncut", *overrides), run("stopped", *overrides)
    train(uncut)
    assert train(stopped, sending(signal.SIGTERM, at=5))[0].step == 5
    assert train(stopped)[0].step == 10
    assert_same_end(uncut, stopped)
    tensors, _ = saved(uncut, 10)
    states = {name for name in tensors if name.startswith("optimizer.")}
    assert states and all(is_adapter(name.rpartition(".")[0]) for name in states)
    frozen = {name for name in tensors if name.startswith("model.") and not is_adapter(name)}
    assert bool(frozen) == (ALONE not in overrides)
    first, _ = saved(stopped, 5)
    assert all(torch.equal(tensors[name], first[name]) for name in frozen)
    assert all(
        not torch.equal(tensors[name], first[name]) for name in tensors if name.endswith(".lora_b")
    )
    losses = [line["loss"] for line in read_metrics(uncut.parent / "metrics.jsonl")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("in_hf", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_over_given_weights_begins_as_they_are_and_exports_adapters_and_merged_weights(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_hf: bool
) -> None:
    start = (
        ("checkpoint.initial_load_in_hf=true", f"checkpoint.initial_load_path={base / 'hf'}")
        if in_hf
        else (f"checkpoint.initial_load_path={base}",)
    )
    tuned = run("tuned", LORA, ALONE, *start, "checkpoint.last_save_in_hf=true", "debug.seed=5")
    plain = run("plain", *start, "debug.seed=5", "checkpoint.enable=false")
    train(plain)
    assert main([str(tuned)]) == 0
    first, other = (
        read_metrics(path.parent / "metrics.jsonl")[0]["loss"] for path in (tuned, plain)
    )
    assert first == other
    step = str(tuned.parent / "checkpoint" / "step-10")
    assert (
        job(monkeypatch, do="export", checkpoint=step, out=str(tmp_path / "adapter"), format="hf")
        == 0
    )
    assert (
        job(
            monkeypatch,
            do="export",
            checkpoint=step,
            out=str(tmp_path / "merged"),
            format="hf",
            merge=True,
        )
        == 0
    )
    merged, at_end = (
        AutoModelForCausalLM.from_pretrained(folder)
        for folder in (tmp_path / "merged", tuned.parent / "hf")
    )
    assert all(
        torch.equal(weight, at_end.state_dict()[name])
        for name, weight in merged.state_dict().items()
    )
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base / "hf"), tmp_path / "adapter"
    ).eval()
    (start_record,) = json.loads((tuned.parent / "run.json").read_text())["starts"]
    assert start_record["parameters"] == {
        "total": sum(weight.numel() for weight in theirs.parameters()),
        "trainable": sum(
            weight.numel() for name, weight in theirs.named_parameters() if "lora_" in name
        ),
    }
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, merged.eval()(ids).logits, rtol=1e-4, atol=1e-5)
    # and back: a run starts from what peft has
    inside = tmp_path / "in" / "checkpoint"
    taken_in = {
        "from": "peft",
        "source": str(tmp_path / "adapter"),
        "out": str(inside),
        "resolved": tuned.read_text(),
    }
    assert job(monkeypatch, do="import", **taken_in) == 0
    imported, _ = saved(tmp_path / "in" / "resolved.yaml", 0)
    wanted = {**saved(base / "resolved.yaml", 4)[0], **saved(tuned, 10)[0]}
    assert {name for name in wanted if name.startswith("model.")} == imported.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in imported.items())
    again = run(
        "again",
        LORA,
        f"checkpoint.initial_load_path={inside / 'step-0'}",
        "training.steps=3",
        "debug.seed=7",
    )
    train(again)
    tensors, _ = saved(again, 3)
    assert all(
        torch.equal(tensor, tensors[name]) != is_adapter(name) for name, tensor in imported.items()
    )
    assert read_metrics(again.parent / "metrics.jsonl")[0]["loss"] < first


def test_merged_weights_are_not_rounded_as_frozen_ones_are_stored(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What adapters add is often less than bf16 resolves beside the frozen weight."""
    resolved = run(
        "narrow", LORA, "training.mixed_precision_param=bfloat16", "checkpoint.last_save_in_hf=true"
    )
    assert main([str(resolved)]) == 0
    step = resolved.parent / "checkpoint/step-10"
    saved = load_verified_weights(CheckpointReader(step))
    name = "layers.0.attention.wq"
    assert saved[f"{name}.weight"].dtype == torch.bfloat16
    scale = find_lora_converter(load_resolved(resolved)).scale
    added = scale * (saved[f"{name}.lora_b"] @ saved[f"{name}.lora_a"])
    expected = saved[f"{name}.weight"].float() + added
    assert not torch.equal(expected, expected.bfloat16().float())
    out = tmp_path / "merged.pt"
    asked = {"checkpoint": str(step), "out": str(out), "format": "torch", "merge": True}
    assert job(monkeypatch, do="export", **asked) == 0
    merged = torch.load(out, weights_only=True)
    assert {weight.dtype for weight in merged.values()} == {torch.float32}
    assert torch.equal(merged[f"{name}.weight"], expected)
    at_end = load_file(resolved.parent / "hf/model.safetensors")
    assert {weight.dtype for weight in at_end.values()} == {torch.float32}
    # w2 is laid out in both as it is
    assert torch.equal(
        at_end["model.layers.0.mlp.down_proj.weight"], merged["layers.0.feed_forward.w2.weight"]
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_frozen_weights_that_are_rounded_are_told(run: Run, base: Path, dtype: str) -> None:
    start = ("checkpoint.initial_load_in_hf=true", f"checkpoint.initial_load_path={base / 'hf'}")
    kept = (f"training.mixed_precision_param={dtype}", "training.steps=1")
    resolved = run("rounded", LORA, *start, *kept)
    assert main([str(resolved)]) == 0
    said = "rounded from float32 to bfloat16, also in merged exports"
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    assert (said in log) == (dtype == "bfloat16")


def test_what_cannot_be_merged_is_said(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = str(tmp_path / "out")
    plain = str(base / "checkpoint" / "step-4")
    assert job(monkeypatch, do="export", checkpoint=plain, out=out, format="hf", merge=True) != 0
    assert "has no adapters to merge" in capsys.readouterr().err
    drawn = run("drawn", LORA, ALONE, "training.steps=3")
    train(drawn)
    step = str(drawn.parent / "checkpoint" / "step-3")
    assert job(monkeypatch, do="export", checkpoint=step, out=out, format="torch") == 0
    assert all(map(is_adapter, torch.load(out, weights_only=True)))
    for resolved, code, text in (
        (run("plain"), 2, "the recipe has no adapters to load these into"),
        (drawn, 4, "the recipe loads no weights that the adapters could belong to"),
    ):
        taken_in = {"from": "peft", "source": out, "out": f"{out}-2"}
        assert job(monkeypatch, do="import", **taken_in, resolved=resolved.read_text()) == code
        assert text in capsys.readouterr().err


def test_weights_of_another_device_are_not_drawn_again() -> None:
    text = "drew them from debug.seed on another GPU, and this machine has "
    with pytest.raises(ProblemsFound, match=text):
        select_drawing_device("another GPU")
    assert select_drawing_device("cpu").type == "cpu"


MOE = ("model.flavor=debugmodel_moe", "model.moe={num_experts: 4, top_k: 2, hidden_dim: 16}")
MIXTURE = (
    "model={name: qwen3, vocab_size: 64, dim: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
    "head_dim: 8}"
)


def test_what_is_shown_of_a_model_names_the_adapters_of_experts(run: Run) -> None:
    recipe = load_resolved(
        run(
            "run",
            MIXTURE,
            *MOE,
            "converters=[{name: lora, rank: 4, target_modules: [layers.0.moe.experts.w2]}]",
        )
    )
    shown = {module["name"]: module for module in describe_modules(recipe, world_size=1)}
    first, second = (shown[f"layers.{layer}.moe.experts"] for layer in (0, 1))
    assert (first["taken"], first["shapes"]["w2_lora_a"]) == ("lora: rank 4, scale 4", [4, 4, 16])
    assert (second["taken"], second["left"]) == (None, {"lora": "target_modules does not name it"})


@pytest.mark.slow
def test_adapters_of_experts_go_on_are_forked_merged_and_written_for_peft_and_read_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = (MIXTURE, *MOE, "converters=[{name: lora, rank: 4, target_modules: [wq, experts]}]")
    uncut, stopped, whole = (
        run("uncut", *experts, ALONE),
        run("stopped", *experts, ALONE),
        run("whole", *experts),
    )
    train(uncut)
    train(stopped, sending(signal.SIGTERM, at=5))
    train(stopped)
    assert_same_end(uncut, stopped)
    train(whole)
    tensors, _ = saved(uncut, 10)
    assert all(map(is_adapter, (name for name in tensors if name.startswith("model."))))
    assert sum("experts.w" in name for name in tensors if name.startswith("model.")) == 2 * 3 * 2
    step = str(whole.parent / "checkpoint" / "step-10")
    assert (
        job(monkeypatch, do="export", checkpoint=step, out=str(tmp_path / "adapter"), format="hf")
        == 0
    )
    inside = tmp_path / "in" / "checkpoint"
    from_whole = run("from_whole", *experts, f"checkpoint.initial_load_path={whole.parent}")
    taken_in = {
        "from": "peft",
        "source": str(tmp_path / "adapter"),
        "out": str(inside),
        "resolved": from_whole.read_text(),
    }
    assert job(monkeypatch, do="import", **taken_in) == 0
    imported, wanted = saved(tmp_path / "in" / "resolved.yaml", 0)[0], saved(whole, 10)[0]
    assert imported.keys() == {name for name in wanted if name.startswith("model.")}
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in imported.items())
    assert (
        job(
            monkeypatch,
            do="export",
            checkpoint=step,
            out=str(tmp_path / "merged"),
            format="hf",
            merge=True,
        )
        == 0
    )
    ahead = ("training.steps=3", "optimizer.lr=1.0e-9")
    from_hf = (
        "checkpoint.initial_load_in_hf=true",
        f"checkpoint.initial_load_path={tmp_path / 'merged'}",
    )
    plain, forked = (
        run("plain", MIXTURE, *MOE, *ahead, *from_hf),
        run("forked", *experts, *ahead, f"checkpoint.initial_load_path={whole.parent}"),
    )
    for each in (plain, forked):
        train(each)
    one, other = (
        read_metrics(each.parent / "metrics.jsonl")[0]["loss"] for each in (plain, forked)
    )
    assert one == pytest.approx(other, rel=1e-5)
    assert one < read_metrics(whole.parent / "metrics.jsonl")[0]["loss"]


@pytest.mark.parametrize(
    ("converter", "said"),
    [
        ("{name: lora, target_modules: [wz]}", "no module of the model is called 'wz'"),
        (
            "{name: lora, target_modules: [experts]}",
            "no module of the model is called 'experts'",
        ),
        ("{name: lora, target_modules: []}", "lora cannot convert any module of the model"),
        ("{name: lora, target_modules: [norm]}", "lora cannot convert any module of the model"),
    ],
)
def test_targets_that_mean_no_linear_module_are_refused(
    run: Run, converter: str, said: str
) -> None:
    with pytest.raises(ProblemsFound, match=said):
        dry_build(load_resolved(run("run", f"converters=[{converter}]")), world_size=1)


def test_groups_of_the_optimizer_name_adapters(run: Run) -> None:
    groups = "optimizer.param_groups=[{match: ['*.%s'], lr: 1.0e-1}]"
    dry_build(load_resolved(run("run", LORA, groups % "lora_b")), world_size=1)
    with pytest.raises(ProblemsFound, match=r"no parameter is called '\*\.weight'"):
        dry_build(load_resolved(run("run", LORA, groups % "weight")), world_size=1)


def test_a_pipeline_stage_without_adapters_is_refused(run: Run) -> None:
    pipeline = (
        "parallelism.pipeline_parallel_degree=2",
        "parallelism.pipeline_parallel_schedule=1F1B",
    )
    run_of = load_resolved(
        run("run", "converters=[{name: lora, target_modules: [output]}]", *pipeline)
    )
    with pytest.raises(
        ProblemsFound,
        match=r"pipeline stage 0 \(tok_embeddings, layers.0\) has no trainable parameters",
    ):
        dry_build(run_of, world_size=2)


def test_a_plan_counts_gradients_and_optimizer_states_of_adapters_alone(run: Run) -> None:
    recipe = load_resolved(run("run", LORA))
    model = build_model(recipe, get_precision("float32", "float32"))
    convert_model(recipe, model, meshes=None)
    whole, kept, _, whole_trained, trained, *_ = measure_layers(model, torch.float32)["layers"][0]
    assert whole == kept
    # wq and wo are 32 x 32, wk is 16 x 32, w2 is 32 x 64
    assert whole_trained == trained == 4 * (2 * (32 + 32) + (16 + 32) + (32 + 64))


def test_a_fork_of_adapters_alone_is_that_of_the_whole_checkpoint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = [
        run(name, LORA, *more, "training.steps=4")
        for name, more in (("whole", ()), ("alone", (ALONE,)))
    ]
    for parent in parents:
        train(parent)
    start = [f"checkpoint.initial_load_path={parent.parent}" for parent in parents]
    forks = [
        run(f"fork-{number}", LORA, ALONE, path, "training.steps=4")
        for number, path in enumerate(start)
    ]
    for fork in forks:
        train(fork)
    whole, alone = (
        [line["loss"] for line in read_metrics(fork.parent / "metrics.jsonl")] for fork in forks
    )
    assert whole == alone
    # merging draws the weights of the first run again where no checkpoint has them
    merged = []
    for fork in forks:
        out = tmp_path / f"merged-{fork.parent.name}"
        step = str(fork.parent / "checkpoint" / "step-4")
        merging = {"do": "export", "checkpoint": step, "format": "torch", "merge": True}
        assert job(monkeypatch, out=str(out), **merging) == 0
        merged.append(torch.load(out, weights_only=True))
    assert merged[0].keys() == merged[1].keys()
    assert all(torch.equal(merged[1][name], tensor) for name, tensor in merged[0].items())
    with pytest.raises(ProblemsFound, match=r"for weights that its run drew from debug.seed 0"):
        train(run("other", LORA, ALONE, start[1], "training.steps=4", "debug.seed=9"))
