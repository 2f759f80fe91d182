import pytest
import torch

from titanrun.components.metrics.peak_flops import get_peak_flops
from titanrun.components.metrics.throughput import Throughput


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def throughput(clock: Clock, *, peak: float | None = None, ranks_per_row: int = 1) -> Throughput:
    return Throughput(
        flops_per_token=1e9,
        peak_flops=peak,
        device=torch.device("cpu"),
        ranks_per_sequence=ranks_per_row,
        clock=clock,
    )


def test_one_step_of_a_rank_that_shares_its_rows_with_another() -> None:
    clock = Clock()
    meter = throughput(clock, peak=312e12, ranks_per_row=2)
    clock.now += 0.5
    meter.count_step(8 * 2048)
    figures = meter.flush()
    assert figures["tps"] == 16384
    assert figures["tflops"] == pytest.approx(16.384)
    assert figures["mfu"] == pytest.approx(100 * 16.384 / 312)


def test_the_first_interval_of_one_step_counts_one_step() -> None:
    clock = Clock()
    meter = throughput(clock)
    clock.now += 4
    meter.count_step(100)
    assert meter.flush()["time/step_seconds"] == 4
    for _ in range(10):
        clock.now += 2
        meter.count_step(100)
    figures = meter.flush()
    assert figures["time/step_seconds"] == 2
    assert figures["tps"] == 50


def test_paused_time_is_left_out() -> None:
    clock = Clock()
    meter = throughput(clock)
    clock.now += 1
    meter.count_step(100)
    with meter.pause():
        clock.now += 30
    clock.now += 1
    assert meter.flush()["tps"] == 50
    with meter.pause():
        clock.now += 7
    clock.now += 1
    meter.count_step(10)
    assert meter.flush()["tps"] == 10


def test_time_before_the_start_is_left_out() -> None:
    clock = Clock()
    meter = throughput(clock)
    clock.now += 60
    meter.start_interval()
    clock.now += 1
    meter.count_step(5)
    assert meter.flush()["tps"] == 5


def test_waiting_for_data_is_measured_a_step() -> None:
    clock = Clock()
    meter = throughput(clock)
    for _ in range(2):
        with meter.time_data_loading():
            clock.now += 0.25
        clock.now += 1
        meter.count_step(1)
    assert meter.flush()["time/data_seconds"] == 0.25


def test_where_the_peak_is_not_known_there_is_no_mfu() -> None:
    clock = Clock()
    meter = throughput(clock)
    clock.now += 1
    meter.count_step(1)
    assert meter.flush().keys() == {
        "tps",
        "tflops",
        "time/step_seconds",
        "time/data_seconds",
        "memory_gib",
    }


def test_an_interval_without_a_step_has_memory_only() -> None:
    figures = throughput(Clock()).flush()
    assert figures.keys() == {"memory_gib"}
    assert 0.05 < figures["memory_gib"] < 100


@pytest.mark.parametrize(
    ("device_name", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA GB200", 2.5e15),
        ("NVIDIA B200", 2.25e15),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA RTX A6000", 154.85e12),
        ("AMD Instinct MI300X", 1.3e15),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA T4", None),
        ("cpu", None),
    ],
)
def test_peaks_are_found_by_the_devices_name(device_name: str, flops: float | None) -> None:
    assert get_peak_flops(device_name) == flops
