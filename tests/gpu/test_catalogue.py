"""The tests that must exist for GPUs, each with a CPU twin or a reason; without a GPU they fail."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
# by file and without the prefix; others may stand beside them
NAMES = {
    "device": "finds_the_gpu reports_memory_that_nvidia_smi_reports peak_memory_resets "
    "expandable_segments_are_on doctor_passes",
    "attention": "sdpa_takes_cudnn_or_flash_first sdpa_gqa flex_block_causal flex_window_and_sinks "
    "flex_soft_cap varlen_gqa_equals_written_out_mask varlen_window qk_norm_with_every_back_end "
    "head_widths_64_80_96_128_192 flux_uses_the_kernel_order",
    "precision": "one_rank_computes_what_fsdp_computes stream_is_bf16 loss_is_fp32 "
    "fp32_head_tf32_and_bf16",
    "loss": "head_loss_against_float64 head_loss_holds_no_whole_logits "
    "compiled_cross_entropy_equals_eager",
    "optimizers": "adamw_kernel_equals_reference low_bit_kernel_equals_reference "
    "found_inf_leaves_everything grad_scale_clips cpu_state_loads_on_gpu",
    "compile": "every_family_compiles_whole compiled_loss_equals_eager "
    "no_recompiles_with_new_documents float8_tensorwise_and_rowwise_train "
    "float8_error_is_that_of_emulation",
    "steps": "no_host_waits host_runs_ahead bitwise_rerun llama3_debug_curve_is_the_cpu_curve "
    "out_of_memory_exits_7 nan_under_stop_leaves_evidence",
    "checkpoints": "async_save_and_resume_bitwise staging_is_pinned "
    "staging_reaches_20_gb_per_second training_goes_on_while_staging "
    "process_mode_registers_shared_memory",
    "experts": "grouped_products_equal_loop permute_backward_is_deterministic "
    "moe_step_has_no_waits",
    "multi_gpu": "fsdp_equals_one_gpu parallelism_equals_one_gpu distributed_muon_equals_one_gpu "
    "async_checkpoint_of_shards_resumes_bitwise",
}
# a fixture that takes the device of the CPU, too
TWINS = {"device", "devices", "kernel_device"}
REASON = "No CPU twin: "
MARKS = {"pytest.mark.gpu", "pytest.mark.multi_gpu"}


def iter_tests(path: Path) -> Iterator[ast.FunctionDef]:
    """The tests of a file, unread by pytest."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def fixtures_of(test: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in test.args.args}


@pytest.mark.parametrize("topic", NAMES)
def test_every_test_of_the_list_exists(topic: str) -> None:
    there = {test.name for test in iter_tests(FOLDER / f"test_{topic}.py")}
    assert {f"test_{name}" for name in NAMES[topic].split()} - there == set()


@pytest.mark.parametrize("topic", NAMES)
def test_every_test_runs_on_the_cpu_or_says_why_not(topic: str) -> None:
    for test in iter_tests(FOLDER / f"test_{topic}.py"):
        marks = {ast.unparse(each) for each in test.decorator_list} & MARKS
        assert bool(marks) is ("gpu" in fixtures_of(test)), f"{test.name}: marked and given a GPU"
        if marks:
            reason = (ast.get_docstring(test) or "").partition(REASON)[2]
            assert len(reason) > 20 and not fixtures_of(test) & TWINS, test.name
        elif test.name.removeprefix("test_") in NAMES[topic].split():
            assert fixtures_of(test) & TWINS, f"{test.name} needs no GPU"


def test_each_file_is_in_the_list() -> None:
    assert {path.stem.removeprefix("test_") for path in FOLDER.glob("test_*.py")} == {
        *NAMES,
        "catalogue",
    }


@pytest.mark.parametrize("marker", ["gpu", "multi_gpu"])
def test_without_a_gpu_a_session_of_these_tests_fails(marker: str) -> None:
    file = "tests/gpu/test_multi_gpu.py" if marker == "multi_gpu" else "tests/gpu/test_loss.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marker, file]
    # without pytest-timeout its settings are unknown
    command += ["-W", "default::pytest.PytestConfigWarning"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    needed = "2 GPUs" if marker == "multi_gpu" else "1 GPU"
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert f"selected tests can run here: each needs {needed}" in done.stdout + done.stderr
