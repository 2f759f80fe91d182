"""torchtitan's table of integration tests, row by row under its names, from overrides on the debug
recipe with recipes/parts/cpu.yaml.

A row trains as one process does, in fp32; where it saves, it goes on as one process does that was
never stopped. What a row asks for that
is not built, or needs a GPU, validate refuses by name: when it lands, the row fails here and must
move.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import TEXT, alone, train
from titanrun.components.checkpoints.dcp_io import read_tensor_metadata, read_tensors
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.worker.rank_main import export_final_model

TOLERANCE = 1e-5
# float8 has three bits behind the point: what differs in fp32's last bit may be rounded to the next
# of them
ROUNDED = 1e-4
# all of the debug model's layers
BASE = ("model.n_layers=6",)
FLEX, VARLEN = (
    (*BASE, "model.flavor=debugmodel_flex_attn"),
    (*BASE, "model.flavor=debugmodel_varlen_attn"),
)
COMPILED = "compile={enable: true, backend: aot_eager}"
OPERATIONS = "activation_checkpoint={name: selective, selective_ac_option: op}"
FOUR_ROWS = ("training.local_batch_size=4", "validation.local_batch_size=2")
# parameters that are updated in the backward pass have no gradients left to clip, to measure or to
# add up
UNCLIPPED = (*BASE, "training.max_norm=null", "training.global_batch_size=8")
OFFLOADED = (
    *FOUR_ROWS,
    "training.enable_cpu_offload=true",
    "optimizer.early_step_in_backward=true",
)
ORDER = Path(__file__).with_name("v_shaped_order.csv")
ASYNC = "parallelism.enable_async_tensor_parallel=true"
SHARD1 = "parallelism.data_parallel_shard_degree=1"
# a row that another test stands for
ELSEWHERE = {"fsdp2_memory_estimation": "distributed/test_plan.py"}
# these have functions of their own
APART = [
    *("default", "optional_checkpoint", "last_save_model_only_fp32", "last_save_model_only_bf16"),
    *("model_only_hf_checkpoint", "float8_emulation", "test_generate"),
]
ROWS = 43
TESTS = Path(__file__).parents[1]
SAVING = ("checkpoint={enable: true, interval: 5}", "lr_scheduler.total_steps=8")


def degrees(**of: int) -> list[str]:
    """Overrides of the degrees of parallelism: tp, pp, cp, replicate."""
    names = {
        "tp": "tensor_parallel",
        "pp": "pipeline_parallel",
        "cp": "context_parallel",
        "replicate": "data_parallel_replicate",
    }
    return [f"parallelism.{names[short]}_degree={degree}" for short, degree in of.items()]


def schedule(name: str, **more: object) -> list[str]:
    """Overrides of the pipeline's schedule."""
    settings = {"schedule": name, **more}
    return [f"parallelism.pipeline_parallel_{key}={value}" for key, value in settings.items()]


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of the table: its name, its ranks, its overrides; several runs have one list
    each."""

    name: str
    nproc: int
    runs: tuple[tuple[str, ...], ...]
    base: tuple[str, ...] = BASE


def row(
    name: str,
    nproc: int,
    *overrides: str,
    then: Sequence[str] | None = None,
    base: tuple[str, ...] = BASE,
) -> Any:
    """One row for `pytest.mark.parametrize`; `then` is its second run, `base` applies to the one
    process it is compared with as well."""
    runs = (overrides,) if then is None else (overrides, tuple(then))
    return pytest.param(Row(name, nproc, runs, base), id=name)


TRAINS = [
    row("1d_compile", 4, COMPILED),
    row("1d_compile_sac_op", 4, COMPILED, OPERATIONS),
    row("2d_eager", 4, *degrees(tp=2)),
    row("2d_compile", 4, *degrees(tp=2), COMPILED),
    row("pp_looped_zero_bubble", 4, *degrees(pp=4), *schedule("InterleavedZeroBubble"), *FOUR_ROWS),
    row("pp_zbv", 2, *degrees(pp=2), *schedule("ZBVZeroBubble"), *FOUR_ROWS),
    row("pp_1f1b", 2, *degrees(pp=2), *schedule("1F1B"), SHARD1),
    row("pp_gpipe", 2, *degrees(pp=2), *schedule("GPipe"), SHARD1),
    row(
        "pp_dp_1f1b",
        4,
        *(*degrees(pp=2), *schedule("1F1B"), "parallelism.data_parallel_shard_degree=2"),
        then=[
            *degrees(pp=2),
            *schedule("1F1B", layers_per_stage=4),
            "parallelism.data_parallel_shard_degree=2",
        ],
    ),
    row(
        "pp_dp_gpipe",
        4,
        *degrees(pp=2),
        *schedule("GPipe"),
        "parallelism.data_parallel_shard_degree=2",
    ),
    row("pp_tp", 4, *degrees(pp=2, tp=2), *schedule("1F1B")),
    row("3d_compile", 8, *degrees(pp=2, tp=2), *schedule("1F1B"), COMPILED),
    row(
        "pp_looped_1f1b",
        4,
        *(*degrees(pp=4), *schedule("Interleaved1F1B"), *FOUR_ROWS),
        then=[*degrees(pp=4), *schedule("Interleaved1F1B", layers_per_stage=1), *FOUR_ROWS],
    ),
    row(
        "pp_custom_csv",
        2,
        *degrees(pp=2),
        f"parallelism.pipeline_parallel_schedule_csv={ORDER}",
        *FOUR_ROWS,
    ),
    row("optimizer_foreach", 2, "optimizer.implementation=foreach"),
    row("ddp", 4, *degrees(replicate=4)),
    row("hsdp", 4, *degrees(replicate=2)),
    row("fsdp+flex_attn", 4, "activation_checkpoint=full", base=FLEX),
    row("fsdp+flex_attn+per_op_sac", 4, OPERATIONS, base=FLEX),
    row("fsdp+varlen_attn+per_op_sac", 4, OPERATIONS, base=VARLEN),
    row("cp_allgather", 4, *degrees(cp=4), "parallelism.context_parallel_rotate_method=allgather"),
    row("cp_alltoall", 4, *degrees(cp=4), "parallelism.context_parallel_rotate_method=alltoall"),
    row("hsdp+tp", 8, *degrees(replicate=2, tp=2)),
    row("fsdp+cp", 4, *degrees(cp=2)),
    row("hsdp+cp_without_dp_shard", 4, *degrees(replicate=2, cp=2), SHARD1),
    row("hsdp+cp_with_dp_shard", 8, *degrees(replicate=2, cp=2)),
    row("fsdp+tp+cp", 8, *degrees(tp=2, cp=2)),
    row(
        "cpu_offload+opt_in_bwd+TP+DP+CP",
        8,
        *degrees(tp=2, cp=2),
        *OFFLOADED,
        then=[*degrees(tp=2, cp=2, replicate=2), *OFFLOADED],
        base=UNCLIPPED,
    ),
    row("fsdp_reshard_always", 2, "parallelism.fsdp_reshard_after_forward=always"),
    # page-locked memory, which this row also asks for, is an accelerator's
    row(
        "dataloader_kwargs",
        2,
        "training.dataloader={num_workers: 2, persistent_workers: true, prefetch_factor: 4}",
    ),
    row("gradient_accumulation", 2, "training.global_batch_size=8"),
    row(
        "validation_tp_cp_pp",
        8,
        *degrees(tp=2, cp=2, pp=2),
        *schedule("Interleaved1F1B"),
        *FOUR_ROWS,
    ),
]


def agrees(found: Sequence[dict[str, float]], expected: Sequence[dict[str, float]]) -> None:
    """Fails where a step's numbers are not those of one process."""
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True), start=1):
        assert ours == pytest.approx(theirs, rel=TOLERANCE), f"step {step}"


@pytest.mark.slow
@pytest.mark.parametrize("entry", TRAINS)
def test_a_row_trains_as_one_process_does(entry: Row) -> None:
    for overrides in entry.runs:
        agrees(train(entry.nproc, [*entry.base, *overrides]).numbers, alone(entry.base).numbers)


@pytest.mark.slow
def test_default() -> None:
    seen = ["profiling={enable_profiling: true, profile_freq: 5}", "metrics.trackers=[tensorboard]"]
    trained = train(4, [*BASE, *seen])
    agrees(trained.numbers, alone(BASE).numbers)
    traces = sorted(
        path.name for path in (trained.folder / "profile_traces" / "iteration_5").iterdir()
    )
    assert traces == [f"rank{rank}.pt.trace.json" for rank in range(4)]
    assert len(list((trained.folder / "tensorboard").iterdir())) == 1


@cache
def unbroken() -> list[dict[str, float]]:
    """What one process logs in eight steps."""
    return train(1, [*BASE, "lr_scheduler.total_steps=8", "training.steps=8"]).numbers


SAVES = [row("full_checkpoint", 4), row("pp_dp_tp", 8, *degrees(pp=2, tp=2), *schedule("1F1B"))]


@pytest.mark.slow
@pytest.mark.parametrize("entry", SAVES)
def test_a_row_that_saves_goes_on_as_if_it_had_never_stopped(entry: Row, tmp_path: Path) -> None:
    for steps in (5, 8):
        found = train(
            entry.nproc,
            [*BASE, *entry.runs[0], *SAVING, f"training.steps={steps}"],
            folder=tmp_path,
        ).numbers
    agrees(found, unbroken())


@pytest.mark.slow
def test_optional_checkpoint(tmp_path: Path) -> None:
    apart = "checkpoint.exclude_from_loading=[lr_scheduler, dataloader, optimizer]"
    runs: list[list[dict[str, float]]] = []
    for name, layouts in {
        "ranks": [(4, []), (4, degrees(tp=2))],
        "alone": [(1, []), (1, [])],
    }.items():
        (folder := tmp_path / name).mkdir()
        for (nproc, own), more in zip(
            layouts, (["training.steps=5"], ["training.steps=8", apart]), strict=True
        ):
            found = train(nproc, [*BASE, *own, *SAVING, *more], folder=folder).numbers
        runs.append(found)
    agrees(*runs)
    with pytest.raises(AssertionError):
        agrees(runs[0], unbroken())


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16"], ids=["last_save_model_only_fp32", "last_save_model_only_bf16"]
)
def test_a_last_save_holds_the_weights_alone(dtype: str, tmp_path: Path) -> None:
    asked = [
        "checkpoint={enable: true, last_save_model_only: true}",
        f"checkpoint.export_dtype={dtype}",
    ]
    saved = []
    for nproc in (4, 1):
        (folder := tmp_path / str(nproc)).mkdir()
        train(nproc, [*BASE, *asked], folder=folder)
        saved.append(weights(folder / "checkpoint" / "step-5"))
    found, expected = saved
    assert found.keys() == expected.keys() and all(name.startswith("model.") for name in found)
    # Adam divides gradients that are little more than rounding by themselves; in bf16 the next
    # number is that far away
    allowed = 1e-4 if dtype == "float32" else 2**-7
    for name, tensor in found.items():
        assert tensor.dtype == getattr(torch, dtype)
        assert (tensor - expected[name]).abs().max() <= allowed * expected[name].abs().max(), name


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole."""
    tensors = {
        name: torch.empty(layout.shape, dtype=layout.dtype)
        for name, layout in read_tensor_metadata(checkpoint).items()
    }
    read_tensors(checkpoint, tensors)
    return tensors


def exported(trainer: TrainLoop) -> None:
    """What the worker does after the last step of a run that ends as a Hugging Face folder."""
    checkpoints: Any = trainer.checkpoints
    ranks = checkpoints.rank_group
    place = RankInfo(rank=ranks.rank, world_size=ranks.size)
    export_final_model(
        load_resolved_text(checkpoints.resolved_text),
        trainer,
        checkpoints.store.folder.parent / "huggingface",
        place,
    )


@pytest.mark.slow
def test_model_only_hf_checkpoint(tmp_path: Path) -> None:
    last = "checkpoint={enable: true, last_save_model_only: true, last_save_in_hf: true}"
    runs = []
    for nproc in (4, 1):
        (folder := tmp_path / str(nproc)).mkdir()
        train(nproc, [*BASE, last], folder=folder, look=exported)
        taken = (
            f"checkpoint={{enable: true, initial_load_in_hf: true, "
            f"initial_load_path: {folder / 'huggingface'}}}"
        )
        runs.append(train(nproc, [*BASE, taken]).numbers)
    agrees(*runs)
    assert runs[0][0]["loss"] < 0.95 * alone(BASE).numbers[0]["loss"]


@pytest.mark.slow
def test_float8_emulation() -> None:
    base = (*BASE, "converters=[{name: float8_linear, emulate: true, filter_fqns: [output]}]")
    gathers = [
        f"converters[0].{name}=true"
        for name in ("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp")
    ]
    found, expected = (run.numbers for run in (train(4, [*base, *gathers]), alone(base)))
    assert [line["loss"] for line in found] == pytest.approx(
        [line["loss"] for line in expected], rel=ROUNDED
    )
    assert [line["loss"] for line in found] != pytest.approx(
        [line["loss"] for line in alone(BASE).numbers], rel=TOLERANCE
    )


@pytest.mark.slow
def test_test_generate(tmp_path: Path) -> None:
    texts = []
    for nproc in (2, 1):
        (folder := tmp_path / str(nproc)).mkdir()
        train(nproc, [*BASE, *SAVING], folder=folder)
        asked = ["--prompt", "The ", "--temperature", "0", "--max-new-tokens", "12", "--json"]
        command = [sys.executable, "-m", "titanrun", "generate", str(folder), *asked]
        texts.append(
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        )
    assert texts[0] == texts[1] and len(texts[0]["token_ids"]) == 12


def waits(name: str, nproc: int, *overrides: str, named: str) -> Any:
    """A row that validate refuses, with a word of what it names."""
    return pytest.param(nproc, overrides, named, id=name)


# these wait for a GPU
REFUSED = [
    waits(
        "2d_asynctp_compile",
        4,
        *degrees(tp=2),
        "compile.enable=true",
        ASYNC,
        named="an accelerator with symmetric memory",
    )
]


@pytest.mark.parametrize(("nproc", "overrides", "named"), REFUSED)
def test_a_row_that_waits_is_refused_by_name(
    nproc: int, overrides: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(tmp_path / "recipe.yaml"), overrides, environment={}, ranks=nproc)
    assert any(named in problem.message for problem in found.value.problems), found.value.problems


def test_every_row_of_the_table_is_here() -> None:
    rows = [entry.id for entry in (*TRAINS, *SAVES, *REFUSED)] + APART + list(ELSEWHERE)
    assert len(rows) == len(set(rows)) == ROWS
    assert [test for test in ELSEWHERE.values() if not (TESTS / test).is_file()] == []
