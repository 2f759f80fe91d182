"""The GPU benchmark at toy size, and what it makes of its sides."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from titanrun.recipe.resolving.resolve import resolve_recipe

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tools" / "bench"
sys.path[:0] = [str(BENCH), str(ROOT / "tools")]

from gpu import END_OF_DOCUMENT, add_ceilings, write_rows  # noqa: E402
from gpu_ceiling_sum import compute_ceiling, list_products  # noqa: E402
from gpu_ceilings import measure_ceilings  # noqa: E402
from gpu_commands import run_command, run_commands  # noqa: E402
from gpu_earlier import EarlierSides  # noqa: E402
from gpu_optimizers import OPTIMIZERS, create_weights, measure_optimizers  # noqa: E402
from gpu_profile import profile_steps, summarize_spans  # noqa: E402
from gpu_row import compute_mfu, measure_host, summarize  # noqa: E402
from gpu_rows import CALLS, ROWS, toy_row  # noqa: E402
from gpu_verdicts import (  # noqa: E402
    compare_sides,
    compare_with_torchtitan,
    fails,
    format_line,
)
from write_benchmarks import BEGIN, END, NOTHING, build_section, renew_page  # noqa: E402
from write_benchmarks import main as write_benchmarks  # noqa: E402

LOSSES = [6.0, 5.5]


def side(
    ms: float = 10.0, *, state: str = "done", losses: Any = LOSSES, noise: float = 0.005
) -> dict[str, Any]:
    return {
        "row": "1b",
        "side": "titanrun",
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
        (side(10.0, losses=[6.0]), side(10.0), "VOID: 1 first losses of titanrun, 2 of bare"),
        (side(10.0), side(10.0, losses=[]), "VOID: 2 first losses of titanrun, 0 of bare"),
        (side(losses=[]), side(losses=[]), "VOID: 0 first losses of titanrun, 0 of bare"),
        (side(losses=[0.0]), side(losses=[0.0]), "tie"),
        (side(losses=[6.0]), side(losses=[0.0]), "VOID: first losses differ by 6.0e+09"),
        (side(10.0), {"state": "absent"}, "alone"),
        (side(losses=[float("nan")]), {"state": "absent"}, "VOID: first losses are [nan]"),
        ({"state": "done", "parts": {}}, {"state": "absent"}, "alone"),
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
    ("name", "flops", "causal"),
    # 6 a weight that is multiplied, and 12 L D S of attention, or half of that
    [
        ("1b_s4096", 9.03e9, 8.22e9),
        ("8b_s4096", 51.5e9, 48.2e9),
        ("8b_s8192_float8", 57.9e9, 51.5e9),
    ],
)
def test_flops_are_those_of_both_formulas(name: str, flops: float, causal: float) -> None:
    assert ROWS[name].count_flops(causal=False) == pytest.approx(flops, rel=2e-3)
    assert ROWS[name].count_flops(causal=True) == pytest.approx(causal, rel=2e-3)
    found = summarize(ROWS[name], [[100.0, 100.0], [100.0, 101.0]], False)
    tokens = ROWS[name].batch * ROWS[name].seq_len / 0.1
    assert found["tflops"] == pytest.approx(flops * tokens / 1e12, rel=2e-3)
    assert found["tflops_causal"] == pytest.approx(causal * tokens / 1e12, rel=2e-3)


def test_the_share_of_the_host_is_that_of_a_step_on_an_idle_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, happened = [0.0], list[str]()
    monkeypatch.setattr("gpu_row.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def run(steps: int, *, losses: bool, mark: Any) -> None:
        for _ in range(steps):
            now[0] += 0.031
            mark()
            happened.append("step")

    def synchronize() -> None:
        now[0] += 0.2
        happened.append("idle")

    found = measure_host(run, 100.0, True, synchronize)
    # the device is waited for before the step that is measured, and that wait is not measured
    assert happened == 3 * ["idle", "step", "step"]
    assert found["host_ms"] == pytest.approx(31)
    assert found["host_share"] == pytest.approx(0.31)
    line = format_line({"row": "1b", "titanrun": side() | {"host_share": 0.31}, "verdict": "ok"})
    assert "31% host" in line


def test_a_cpu_has_no_share_of_the_host_and_says_why() -> None:
    found = measure_host(lambda *_, **__: None, 1.0, False)
    assert found["host_share"] is None and found["host_missing"] == "on a CPU the host computes"


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


def test_torchtitan_is_compared_where_it_is_and_decides_nothing() -> None:
    assert compare_with_torchtitan(side(10.0), {"state": "absent"}) == {}
    found = compare_with_torchtitan(side(10.0), side(9.0))
    assert found == {"torchtitan_ratio": 0.9, "torchtitan_verdict": "compared"}
    found = {"row": "1b", "titanrun": side(), "verdict": "ok", **found}
    assert "0.900 of torchtitan ok" in format_line(found)
    void = compare_with_torchtitan(side(10.0), side(9.0, losses=[6.0, 5.6]))
    assert void["torchtitan_verdict"].startswith("VOID")
    late = compare_with_torchtitan(side(), {"state": "timeout in compile"})
    assert late["torchtitan_verdict"] == "FAILED: torchtitan timeout in compile"


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
        assert not ROWS[name].has_flops
        assert summarize(ROWS[name], [[1.0], [1.0]], False)["tflops_causal"] is None
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
    assert ROWS["qwen3_0.6b"].count_flops(causal=False) == expected


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


def test_the_calls_have_every_row_once() -> None:
    assert sorted(name for call in CALLS.values() for name in call) == sorted(ROWS)


def test_a_ceiling_is_the_sum_of_its_parts() -> None:
    found = {
        "copy": {"ms": 1.0, "gb_per_second": 4000.0},
        "products bf16": {"ms": 60.0, "tflops": 700.0},
        "products float8 tensorwise": {"ms": 35.0, "tflops": 1200.0},
        "attention cudnn": {"ms": 8.0, "tflops": 400.0},
        "attention flash": {"ms": 9.0, "tflops": 350.0},
    }
    head = 6 * 4 * 4096 * 2048 * 128256 / 700e12 * 1e3
    layer = 2048 * (2048 + 2 * 512) + 2048 * 2048 + 3 * 2048 * 8192
    update = (16 * layer + 2 * 2048 * 128256) * 28 / 4000e9 * 1e3
    row = ROWS["1b_s4096"]
    assert compute_ceiling(row, found) == pytest.approx(60 + 8 + head + update)
    tensorwise = ROWS["1b_s4096_float8_tensorwise"]
    assert compute_ceiling(tensorwise, found) == pytest.approx(35 + 8 + head + update)
    assert compute_ceiling(ROWS["1b_float8_rowwise"], found) is None
    # products of a layer, forward and twice backward
    flops = 3 * sum(2 * 4 * 4096 * a * b * count for a, b, count in list_products(row))
    assert flops + head * 700e9 == pytest.approx(
        (row.count_flops(causal=False) - 12 * 16 * 2048 * 4096) * 4 * 4096
    )


def test_ceilings_are_measured_and_a_step_is_compared_with_them() -> None:
    row = toy_row(ROWS["1b_ceilings"])
    parts = measure_ceilings(row, torch.device("cpu"))
    assert {"copy", "products bf16"} <= set(parts)
    assert all(part["ms"] > 0 for part in parts.values())
    measured = {"row": "1b_ceilings", "side": "titanrun", "state": "done", "parts": parts}
    ceilings = {"row": "1b_ceilings", "titanrun": measured}
    table = [ceilings | {"verdict": "alone"}, {"row": "1b_s4096", "titanrun": side(10.0)}]
    parts["attention flash"] = {"ms": 1.0, "tflops": 1.0}
    add_ceilings(table, EarlierSides(()), toy=True)
    assert table[1]["ceiling_share"] == pytest.approx(table[1]["ceiling_ms"] / 10.0)
    assert "of ceiling" in format_line(table[1] | {"verdict": "ok"})
    # at other shapes nothing was measured
    other = [table[0], {"row": "8b_s4096", "titanrun": side(10.0)}]
    add_ceilings(other, EarlierSides(()), toy=True)
    assert "ceiling_share" not in other[1]
    # of an earlier call, and of a row that came before its ceilings
    later = [{"row": "1b_s4096", "titanrun": side(10.0)}]
    add_ceilings(later, EarlierSides((measured,)), toy=True)
    assert later[0]["ceiling_share"] == table[1]["ceiling_share"]


def test_commands_that_fail_or_take_too_long_are_told(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert run_command([sys.executable, "-c", "print(1)"], log, 60).startswith("ok")
    failing = run_command([sys.executable, "-c", "raise SystemExit(3)"], log, 60)
    assert failing == f"FAILED: exit code 3, see {log}"
    endless = run_command([sys.executable, "-c", "import time; time.sleep(600)"], log, 1)
    assert endless == f"FAILED: more than 1 s, see {log}"
    late = dict(run_commands(tmp_path, end=0.0, toy=True))
    assert set(late.values()) == {"FAILED: no time left"}
    assert list(late) == ["versions", "doctor", "train", "resume"]


def test_the_page_has_a_table_for_each_call(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "gpu" / "2026-12-01-h100"
    folder.mkdir(parents=True)
    page = tmp_path / "benchmarks" / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    clocks = {"before": "name, driver\nNVIDIA H100, 570\n", "after": None}
    (folder / "clocks.json").write_text(json.dumps(clocks))
    measured = side(125.0) | {"torch": "2.11.0", "mfu": 0.55, "max_allocated": 2**33}
    measured |= {"tflops_causal": 0.9, "host_share": 0.31}
    void = {"row": "8b_s4096", "titanrun": {"state": "failed"}, "verdict": "FAILED: titanrun x"}
    table = [{"row": "1b_s4096", "titanrun": measured, "ratio": 0.995, "verdict": "tie"}, void]
    (folder / "table.json").write_text(json.dumps(table))
    section = build_section(tmp_path / "benchmarks" / "gpu")
    assert "NVIDIA H100, 570; torch 2.11.0." in section
    assert (
        "| 1b_s4096 | 125.00 | 1,000 | 1.0 | 0.9 | 55.0% | 31% | 0.995 |  | 8.0 | tie |" in section
    )
    assert "| 8b_s4096 |  |  |  |  |  |  |  |  |  | FAILED: titanrun x |" in section
    assert write_benchmarks(tmp_path) == 0
    assert page.read_text() == f"before\n{BEGIN}\n{section.strip()}\n{END}\nafter\n"
    assert build_section(tmp_path) == NOTHING


def test_the_page_of_this_repository_is_what_the_results_say() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert renew_page(text, build_section(ROOT / "benchmarks" / "gpu")) == text


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
