"""Layouts of two GPUs train as one does: `pytest -m multi_gpu tests/gpu`.

On the CPU, by gloo, tests/distributed/test_layouts.py has these layouts and a hundred more.
"""

from pathlib import Path
from shutil import rmtree

import pytest

from tests.distributed.ranks import EXPERTS, Trained, train

# relative; the ranks add up in another order, and kernels of a GPU in blocks
LOSS_TOLERANCE = {"cpu": 1e-5, "gpu": 1e-4}
GRADIENT_TOLERANCE = {"cpu": 5e-6, "gpu": 1e-4}
SMALLEST = 1e-30
LAYOUTS = {
    "tp": ("parallelism.tensor_parallel_degree=2", ()),
    "pp": ("parallelism.pipeline_parallel_degree=2", ()),
    "cp": ("parallelism.context_parallel_degree=2", ()),
    "ep": ("parallelism.expert_parallel_degree=2", EXPERTS),
}
MUON = "optimizer={name: muon, ns_dtype: float32}"


def compare(found: Trained, expected: Trained, kind: str) -> None:
    """Compare losses and norms of all steps, and the gradients of the first."""
    assert len(found.numbers) == len(expected.numbers) == 5
    for ours, theirs in zip(found.numbers, expected.numbers, strict=True):
        assert ours == pytest.approx(theirs, rel=LOSS_TOLERANCE[kind])
    (reference,), seen = expected.gradients, set()
    for gradients in found.gradients:
        for name, gradient in gradients.items():
            far = (gradient.cpu() - reference[name].cpu()).abs().max()
            largest = reference[name].abs().max().clamp(min=SMALLEST).cpu()
            assert far <= GRADIENT_TOLERANCE[kind] * largest, f"{name}: {far / largest}"
            seen.add(name)
    assert seen == reference.keys()


def check(devices: str, *base: str, overrides: tuple[str, ...] = ()) -> None:
    """Train on two ranks and on one, and compare."""
    shared = (f"device={devices}", *base)
    compare(train(2, [*shared, *overrides]), train(1, shared), devices)


def test_fsdp_equals_one_gpu(devices: str) -> None:
    check(devices)


@pytest.mark.parametrize("name", LAYOUTS)
def test_parallelism_equals_one_gpu(name: str, devices: str) -> None:
    override, base = LAYOUTS[name]
    check(devices, *base, overrides=(override,))


def test_distributed_muon_equals_one_gpu(devices: str) -> None:
    check(devices, MUON)


@pytest.mark.parametrize("mode", ["async", "async_with_pinned_mem"])
def test_async_checkpoint_of_shards_resumes_bitwise(
    mode: str, devices: str, tmp_path: Path
) -> None:
    saving = (
        f"device={devices}",
        "debug.deterministic=true",
        f"checkpoint={{enable: true, interval: 2, keep_latest_k: 5, async_mode: {mode}}}",
    )
    whole = train(2, saving, folder=tmp_path)
    saved = sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*"))
    assert saved == ["step-2", "step-4", "step-5"]
    # goes on from the shards of step 2
    for name in saved[1:]:
        rmtree(tmp_path / "checkpoint" / name)
    (tmp_path / "metrics.jsonl").unlink()
    found = train(2, saving, folder=tmp_path)
    assert len(found.numbers) == 3
    assert [line["loss"] for line in found.numbers] == [line["loss"] for line in whole.numbers[2:]]
