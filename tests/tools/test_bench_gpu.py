"""The GPU benchmark at toy size, and what it makes of its sides."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from titanrun.recipe.resolving.resolve import resolve_recipe

BENCH = Path(__file__).parents[2] / "tools" / "bench"
sys.path.insert(0, str(BENCH))

from gpu import (  # noqa: E402
    END_OF_DOCUMENT,
    compare_sides,
    fails,
    format_line,
    write_rows,
)
from gpu_optimizers import OPTIMIZERS, create_weights, measure_optimizers  # noqa: E402
from gpu_profile import profile_steps, summarize_spans  # noqa: E402
from gpu_row import compute_mfu  # noqa: E402
from gpu_rows import ROWS, toy_row  # noqa: E402

LOSSES = [6.0, 5.5]


def side(
    ms: float = 10.0, *, state: str = "done", losses: Any = LOSSES, noise: float = 0.005
) -> dict[str, Any]:
    return {
        "state": state,
        "ms": ms,
        "noise": noise,
        "first_losses": losses,
        "tokens_per_second": 1e3,
        "tflops": 1.0,
    }


@pytest.mark.parametrize(
    ("ours", "bare", "verdict"),
    [
        (side(10.0), side(10.04), "tie"),
        (side(10.0), side(12.0), "ok"),
        (side(10.0), side(10.04, noise=0.001), "tie"),
        (side(10.0, noise=0.001), side(10.04, noise=0.001), "ok"),
        (side(12.0), side(10.0), "BELOW TARGET"),
        (side(12.0), side(10.0, noise=0.5), "BELOW TARGET"),
        (
            side(10.0),
            side(10.0, losses=[6.0, 5.6]),
            "VOID: first losses differ by 0.0e+00, 1.8e-02",
        ),
        (side(), side(losses=[float("nan"), 5.5]), "VOID: first losses differ by nan, 0.0e+00"),
        (side(losses=[6.0, float("nan")]), side(), "VOID: first losses differ by 0.0e+00, nan"),
        (side(10.0), {"state": "absent"}, "alone"),
        (side(10.0), {"state": "timeout in compile"}, "FAILED: bare timeout in compile"),
        ({"state": "failed in build, see x"}, side(), "FAILED: titanrun failed in build, see x"),
    ],
)
def test_a_row_counts_only_if_both_sides_computed_the_same(
    ours: dict[str, Any], bare: dict[str, Any], verdict: str
) -> None:
    found = {"row": "1b", "titanrun": ours, **compare_sides(ours, bare)}
    assert found["verdict"] == verdict
    assert verdict in format_line(found)


@pytest.mark.parametrize(
    ("verdict", "on_gpu", "at_toy_size"),
    [
        ("ok", False, False),
        ("tie", False, False),
        ("alone", False, False),
        ("BELOW TARGET", True, False),
        ("VOID: first losses differ by nan", True, True),
        ("FAILED: bare no time left", True, True),
    ],
)
def test_a_slow_void_or_failed_row_fails_the_command(
    verdict: str, on_gpu: bool, at_toy_size: bool
) -> None:
    assert fails(verdict, toy=False) == on_gpu
    assert fails(verdict, toy=True) == at_toy_size


@pytest.mark.parametrize(
    ("name", "flops"),
    # 6 a weight that is multiplied, and 12 L D S of attention
    [("1b_s4096", 9.03e9), ("8b_s4096", 51.5e9), ("8b_s8192_float8", 57.9e9)],
)
def test_flops_are_those_of_the_formula(name: str, flops: float) -> None:
    assert ROWS[name].flops_per_token == pytest.approx(flops, rel=2e-3)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.part is None])
@pytest.mark.parametrize("is_toy", [False, True])
def test_the_recipe_of_every_row_is_valid(name: str, is_toy: bool, tmp_path: Path) -> None:
    row = toy_row(ROWS[name]) if is_toy else ROWS[name]
    data = tmp_path / "rows.npy"
    write_rows(data, row)
    path = tmp_path / "recipe.yaml"
    path.write_text(row.recipe(data, "cpu" if is_toy else "gpu"))
    found = resolve_recipe(str(path), [], environment={}, ranks=1).run
    assert found.training.seq_len == row.seq_len


def test_rows_of_documents_have_ends_and_others_whole_vocabularies(tmp_path: Path) -> None:
    shares = {}
    for name in ("1b_documents_flex", "1b_s4096"):
        row = toy_row(ROWS[name])
        write_rows(tmp_path / "rows.npy", row)
        drawn = numpy.load(tmp_path / "rows.npy")
        assert drawn.max() == row.sizes["vocab_size"] - 1
        shares[name] = (drawn == END_OF_DOCUMENT).mean()
    assert shares["1b_documents_flex"] == pytest.approx(1 / 16, rel=0.1)
    assert shares["1b_s4096"] == pytest.approx(1 / 512, rel=0.2)


def test_rows_without_a_formula_print_no_flops() -> None:
    for name in ("moe_2layers_deepseek16b", "1b_documents_flex", "1b_documents_varlen"):
        assert ROWS[name].flops_per_token is None
    found = {"row": "moe", "titanrun": side() | {"tflops": None}, "verdict": "alone"}
    assert "1,000 tokens/s" in format_line(found) and "TFLOP" not in format_line(found)


def test_mfu_is_a_share_of_the_bf16_peak_and_not_that_of_float8() -> None:
    assert compute_mfu(ROWS["1b_s4096"], 494.5, "NVIDIA H100 80GB HBM3") == pytest.approx(0.5)
    assert compute_mfu(ROWS["1b_s4096_float8_tensorwise"], 494.5, "NVIDIA H100") is None
    assert compute_mfu(ROWS["1b_s4096"], None, "NVIDIA H100") is None
    assert compute_mfu(ROWS["1b_s4096"], 494.5, "another device") is None
    found = {"row": "1b", "titanrun": side() | {"mfu": 0.5}, "verdict": "ok"}
    assert "1.0 TFLOP/s 50.0% MFU" in format_line(found)


def test_a_profile_adds_up_kernels_by_name_and_finds_the_idle_share() -> None:
    # 6 ms in which two kernels overlap for 1 ms and none runs for 1.5 ms
    spans = [("mm", 0.0, 3000.0), ("add", 2000.0, 3000.0), ("mm", 4500.0, 6000.0)]
    found = summarize_spans(spans)
    assert found["launches"] == 1
    assert found["idle_share"] == pytest.approx(0.25)
    assert found["kernels_ms"] == pytest.approx({"mm": 1.5, "add": 1 / 3})
    assert list(found["kernels_ms"]) == ["mm", "add"]
    many = summarize_spans((str(number), 0.0, number + 1.0) for number in range(40))
    assert list(many["kernels_ms"]) == [str(number) for number in range(39, 14, -1)]


def test_a_profile_of_nothing_has_no_kernels() -> None:
    assert summarize_spans([])["kernels_ms"] == {}


def test_a_profile_sees_the_steps_it_takes() -> None:
    taken: list[int] = []
    weight = torch.randn(8, 8)
    found = profile_steps(
        lambda steps: taken.extend(range(steps)) or [weight @ weight for _ in range(steps)],
        is_gpu=False,
    )
    assert taken == [0, 1, 2]
    assert found["launches"] == 1 and list(found["kernels_ms"]) == ["aten::matmul"]


def test_flops_of_wide_heads_count_their_width() -> None:
    # Qwen3 0.6B: 440 million weights of layers and 156 million of the head; attention of 2048
    layer = 2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072
    expected = 6 * (28 * layer + 1024 * 151936) + 12 * 28 * 2048 * 4096
    assert ROWS["qwen3_0.6b"].flops_per_token == expected


def test_updates_of_every_optimizer_are_measured_and_printed() -> None:
    sizes = {"dim": 64, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 64}
    found = measure_optimizers({**sizes, "vocab_size": 128}, torch.device("cpu"))
    assert list(found) == list(OPTIMIZERS)
    weights = create_weights({**sizes, "vocab_size": 128}, torch.device("cpu")).values()
    count = sum(weight.numel() for weight in weights)
    # weights and two means both ways, gradients once, 4 bytes each
    traffic = found["adamw"]["gb_per_second"] * found["adamw"]["ms"] * 1e6
    assert traffic == pytest.approx(count * 28)
    ours = {"state": "done", "parts": found}
    text = format_line({"row": "optimizers", "titanrun": ours, "verdict": "alone"})
    assert all(name in text for name in OPTIMIZERS)


def test_the_bare_loop_knows_nothing_of_titanrun() -> None:
    text = (BENCH / "gpu_bare.py").read_text()
    assert "import titanrun" not in text and "from titanrun" not in text


@pytest.mark.slow
def test_the_whole_program_runs_at_toy_size(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "gpu", "--toy", "--out", str(tmp_path)]
    command += ["--budget", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["row"] for row in table] == list(ROWS)
    # one model is written by hand, the other is titanrun's
    compared = [row for row in table if ROWS[row["row"]].bare is not None]
    assert all(row["loss_difference"] < 1e-4 for row in compared)
    assert all(row["titanrun"]["profile"]["kernels_ms"] for row in compared)
    alone = [row for row in table if ROWS[row["row"]].bare is None]
    assert {row["verdict"] for row in alone} == {"alone"}
