import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from titanrun.components.metrics.step_metrics import StepMetrics, record_metric

CPU = torch.device("cpu")


def test_each_reduction_over_numbers_and_tensors() -> None:
    recorder = StepMetrics(CPU)
    with recorder.open():
        for value in (1.5, torch.tensor(2), torch.tensor([4.0], dtype=torch.bfloat16), 3):
            for reduce in ("sum", "mean", "max", "min"):
                record_metric(f"test/{reduce}", value, reduce)
    assert recorder.flush() == {
        "test/sum": 10.5,
        "test/mean": 2.625,
        "test/max": 4,
        "test/min": 1.5,
    }


def test_a_flush_begins_anew() -> None:
    recorder = StepMetrics(CPU)
    recorder.add("test/a", 1, "sum")
    assert recorder.flush() == {"test/a": 1}
    assert recorder.flush() == {}
    recorder.add("test/a", 5, "sum")
    assert recorder.flush() == {"test/a": 5}


def test_nothing_is_recorded_where_no_recorder_is_open() -> None:
    recorder = StepMetrics(CPU)
    with recorder.open():
        pass
    record_metric("test/a", 1, "sum")
    record_metric("test/a", 1, "no such reduction")  # type: ignore[arg-type]
    assert recorder.flush() == {}


def test_the_innermost_recorder_receives() -> None:
    outer, inner = StepMetrics(CPU), StepMetrics(CPU)
    with outer.open():
        record_metric("test/a", 1, "sum")
        with inner.open():
            record_metric("test/a", 2, "sum")
        with outer.open():
            record_metric("test/a", 4, "sum")
        record_metric("test/a", 8, "sum")
    assert (outer.flush(), inner.flush()) == ({"test/a": 13}, {"test/a": 2})


def test_a_recorder_is_closed_after_an_error() -> None:
    recorder = StepMetrics(CPU)
    with pytest.raises(KeyError), recorder.open():
        raise KeyError
    record_metric("test/a", 1, "sum")
    assert recorder.flush() == {}


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(
        ValueError, match="test/a is recorded with reduce='median'; use one of sum, mean, max, min"
    ):
        StepMetrics(CPU).add("test/a", 1, "median")  # type: ignore[arg-type]


def test_one_name_has_one_reduction() -> None:
    recorder = StepMetrics(CPU)
    recorder.add("test/a", 1, "sum")
    recorder.flush()
    with pytest.raises(ValueError, match="test/a is recorded as sum and as mean"):
        recorder.add("test/a", 1, "mean")


def test_a_tensor_of_several_elements_is_refused() -> None:
    with pytest.raises(ValueError, match=r"test/a is recorded with a tensor of shape \[2\]"):
        StepMetrics(CPU).add("test/a", torch.ones(2), "sum")


def test_what_the_caller_does_to_its_tensor_later_changes_nothing() -> None:
    recorder = StepMetrics(CPU)
    value = torch.ones((), dtype=torch.float64)
    recorder.add("test/a", value, "sum")
    value.fill_(5)
    recorder.add("test/a", value, "sum")
    value.fill_(9)
    assert recorder.flush() == {"test/a": 6}


def test_recording_keeps_no_graph_and_works_in_inference_mode() -> None:
    recorder = StepMetrics(CPU)
    with torch.inference_mode():
        recorder.add("test/a", torch.ones(()), "max")
    weight = torch.tensor(2.0, requires_grad=True)
    recorder.add("test/a", weight * 2, "max")
    with torch.inference_mode():
        recorder.add("test/a", torch.full((), 3.0), "max")
    assert recorder.flush() == {"test/a": 4}


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("bad", [math.nan, torch.tensor(math.nan)])
def test_nan_is_never_hidden(reduce: str, bad: float) -> None:
    recorder = StepMetrics(CPU)
    for value in (1.0, torch.tensor(1.0), bad, torch.tensor(1.0), 1.0):
        recorder.add("test/a", value, reduce)
    assert math.isnan(recorder.flush()["test/a"])


def test_large_counts_stay_exact() -> None:
    recorder = StepMetrics(CPU)
    recorder.add("test/tokens", torch.tensor(2**40 + 1), "sum")
    recorder.add("test/tokens", 2**40, "sum")
    assert recorder.flush() == {"test/tokens": 2**41 + 1}


def test_a_layer_that_is_computed_again_records_once() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        record_metric("layer/calls", 1, "sum")
        return (x * 2).sin()

    recorder = StepMetrics(CPU)
    x = torch.ones(3, requires_grad=True)
    with recorder.open():
        for use_reentrant in (False, True):
            checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    assert recorder.flush() == {"layer/calls": 2}


def test_a_backward_hook_may_record() -> None:
    recorder = StepMetrics(CPU)
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: record_metric("gradient/sum", gradient.sum(), "sum"))
    with recorder.open():
        (x * 2).sum().backward()
    assert recorder.flush() == {"gradient/sum": 6}


def test_ranks_are_reduced_with_one_collective_for_each_operation(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("one_of_two_ranks.py"))
    commands = [
        [sys.executable, script, str(rank), str(tmp_path / "rendezvous")] for rank in range(2)
    ]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]
    expected = {"data/mean": 13 / 4, "a/sum": 3, "b/sum": 3, "c/max": 1, "c/min": 0}
    assert outputs == [{"values": expected, "collectives": 3}] * 2
