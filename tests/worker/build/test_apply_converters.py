"""A run with converters: it learns as one without, goes on bit for bit, exports plain weights, and
says what was converted."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.worker.test_resume import assert_same_end, sending, train
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.commands.dry_build import dry_build
from titanrun.worker.commands.show_model import describe_modules
from titanrun.worker.rank_main import main
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
FLOAT8 = "converters=[{name: float8_linear, emulate: true, filter_fqns: [output]}]"
ROWWISE = "converters=[{name: float8_linear, emulate: true, recipe_name: rowwise}]"
EXACT = "converters=[{name: float8_linear, emulate: true, recipe_name: rowwise_with_gw_hp}]"
MXFP8 = "converters=[{name: mxfp8_linear, emulate: true}]"
EXPERTS = "converters=[{name: mxfp8_grouped_mm, emulate: true}]"
MIXTURE = (
    "model={name: qwen3, flavor: debugmodel_moe, vocab_size: 64, dim: 32, n_layers: 2, "
    "n_heads: 4, n_kv_heads: 2, head_dim: 8, "
    "moe: {num_experts: 4, top_k: 2, hidden_dim: 32}}"
)
FEED_FORWARD = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")
MIXED = "training.mixed_precision_param=bfloat16"


@contextmanager
def started(resolved: Path) -> Iterator[TrainLoop]:
    """The trainer of a run, before its first step."""
    with build_train_loop(
        load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=SignalRequests()
    ) as trainer:
        yield trainer


def losses(resolved: Path) -> list[float]:
    """Trains the run, and gives the loss of each step."""
    assert main([str(resolved)]) == 0
    return [line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")]


@pytest.mark.parametrize(
    ("converters", "base"),
    [
        (FLOAT8, ()),
        pytest.param(ROWWISE, (), marks=pytest.mark.slow),
        pytest.param(EXACT, (), marks=pytest.mark.slow),
        pytest.param(EXACT, (MIXED,), marks=pytest.mark.slow),
        pytest.param(MXFP8, (), marks=pytest.mark.slow),
        (EXPERTS, (MIXTURE, "optimizer.lr=0.002")),
    ],
    ids=["tensorwise", "rowwise", "rowwise_with_gw_hp", "mixed_precision", "mxfp8", "experts"],
)
def test_thirty_steps_follow_the_run_without_converters_and_are_not_the_same(
    run: Run, converters: str, base: tuple[str, ...]
) -> None:
    common = ("training.steps=30", "checkpoint.enable=false", *base)
    expected, found = losses(run("plain", *common)), losses(run("converted", *common, converters))
    assert found == pytest.approx(expected, rel=0.02)
    assert all(ours != theirs for ours, theirs in zip(found[1:], expected[1:], strict=True))
    assert found[-1] < 0.95 * found[0]


@pytest.mark.slow
@pytest.mark.parametrize("converters", [FLOAT8, MXFP8], ids=["float8", "mxfp8"])
def test_the_debug_model_follows_too(tmp_path: Path, converters: str) -> None:
    root = Path(__file__).parents[3]
    (tmp_path / "recipe.yaml").write_text(
        f"extends: [{root}/recipes/llama3_debug.yaml, {root}/recipes/parts/cpu.yaml]\nversion: 1\n"
    )
    small = [
        "model.n_layers=2",
        "training.steps=30",
        "training.seq_len=64",
        "checkpoint.enable=false",
        "validation.enable=false",
    ]
    found = []
    for number, changed in enumerate(([], [converters])):
        resolved = tmp_path / str(number) / "resolved.yaml"
        resolved.parent.mkdir()
        overrides = [*small, "metrics.log_freq=1", *changed]
        resolved.write_text(
            resolve_recipe(str(tmp_path / "recipe.yaml"), overrides, environment={}).text
        )
        found.append(losses(resolved))
    assert len(found[0]) == 30
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert found[1] != found[0]


def test_the_log_and_show_say_what_was_taken_and_what_was_left(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    resolved = run("run", FLOAT8, "model.n_kv_heads=1")
    with caplog.at_level(logging.INFO), started(resolved) as trainer:
        kinds = {
            name: type(module).__name__
            for name, module in trainer.engine.model.named_modules()
            if isinstance(module, nn.Linear)
        }
    taken = [
        f"layers.{layer}.{name}"
        for layer in (0, 1)
        for name in ("attention.wq", "attention.wo", *FEED_FORWARD)
    ]
    assert {name for name, kind in kinds.items() if kind == "Float8Linear"} == set(taken)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("float8_linear")
    ]
    assert line.startswith("float8_linear: 10 modules (layers.*.attention.wq, ")
    assert (
        "skipped layers.*.attention.wk, layers.*.attention.wv: 8 x 32 is not in blocks of 16"
        in line
    )
    shown = {
        module["name"]: module for module in describe_modules(load_resolved(resolved), world_size=1)
    }
    assert {
        name
        for name, module in shown.items()
        if module["taken"] == "float8_linear: float8 tensorwise, emulated"
    } == set(taken)
    assert shown["output"]["left"] == {"float8_linear": "'output' is in its name"}
    assert (shown["norm"]["taken"], shown["norm"]["shapes"]) == (None, {"weight": [32]})


def test_ten_steps_in_float8_are_five_and_the_rest(run: Run) -> None:
    uncut, stopped = run("uncut", FLOAT8), run("stopped", FLOAT8)
    train(uncut)
    train(stopped, sending(signal.SIGTERM, at=5))
    train(stopped)
    assert_same_end(uncut, stopped)


@pytest.mark.parametrize(
    ("converters", "path", "message"),
    [
        (
            "[{name: float8_linear, emulate: true, filter_fqns: [ouput]}]",
            (0, "filter_fqns", 0),
            "no module name of the model contains 'ouput'",
        ),
        (
            "[{name: float8_linear, emulate: true, auto_filter_small_kn: true}]",
            (0,),
            "float8_linear cannot convert any module of the model",
        ),
        (
            "[fp32_lm_head, {name: mxfp8_linear, emulate: true, filter_fqns: [layers]}]",
            (1,),
            "mxfp8_linear cannot convert any",
        ),
    ],
    ids=["pattern", "small", "all-filtered"],
)
def test_a_converter_that_finds_nothing_is_a_problem_of_the_recipe(
    run: Run, converters: str, path: tuple[str | int, ...], message: str
) -> None:
    recipe = load_resolved(run("run", f"converters={converters}", MIXED))
    with pytest.raises(ProblemsFound, match=message) as found:
        dry_build(recipe, world_size=1)
    problem = found.value.problems[0]
    assert problem.path == ("converters", *path)
    assert problem.hint


@pytest.mark.parametrize("name", ["float8_linear", "mxfp8_linear", "nvfp4_linear"])
def test_a_device_without_the_kernels_is_told_before_anything_is_built(
    run: Run, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                str(
                    run(
                        "run",
                        f"converters=[{name}]",
                        MIXED,
                        "training.local_batch_size=8",
                        "training.global_batch_size=8",
                    )
                )
            ]
        )
        == 2
    )
    told = capsys.readouterr().err
    assert f"{name} needs" in told and "this device (cpu) does not have" in told
    assert ("emulate: true" in told) == (name != "nvfp4_linear")


def test_the_head_computes_in_fp32_where_the_rest_does_not(run: Run) -> None:
    tokens = torch.arange(12).reshape(2, 6)
    logits = {}
    for name, overrides in {"bf16": [], "head": ["converters=[fp32_lm_head]"]}.items():
        with (
            started(run(name, MIXED, *overrides)) as trainer,
            torch.no_grad(),
            trainer.engine.use_working_weights(),
        ):
            logits[name] = trainer.engine.model(tokens)
            head, stream = trainer.engine.model.output, []
            head.register_forward_pre_hook(lambda _, given, seen=stream: seen.append(given[0]))
            trainer.engine.model(tokens)
    assert (logits["bf16"].dtype, logits["head"].dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(logits["head"], stream[0].float() @ head.weight.T)
    assert not torch.equal(logits["head"], logits["head"].bfloat16().float())


@pytest.mark.slow
def test_the_export_of_a_float8_run_is_plain_weights(run: Run) -> None:
    resolved = run("run", FLOAT8, "checkpoint.last_save_in_hf=true")
    assert main([str(resolved)]) == 0
    exported = load_file(resolved.parent / "hf" / "model.safetensors")
    with started(resolved) as trainer:
        weights = dict(trainer.engine.state_dict_stream())
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert torch.equal(
        exported["model.layers.0.mlp.gate_proj.weight"], weights["layers.0.feed_forward.w1.weight"]
    )
