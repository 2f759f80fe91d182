"""What a run records of itself: traces, memory snapshots, and the metrics of every rank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrun.components.profiling.config import ProfilingConfig
from titanrun.components.profiling.memory_snapshots import MemorySnapshotWriter
from titanrun.components.profiling.profiler_traces import ProfilerTraceWriter
from titanrun.worker.build import build_profiling
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
CPU = torch.device("cpu")


def steps_in(trace: Path) -> list[str]:
    """What the profiler's steps in a trace are called."""
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    return [
        event["name"]
        for event in events
        if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    ]


def test_each_cycle_leaves_a_trace_of_its_last_steps(run: Run) -> None:
    cycle = (
        "profiling={enable_profiling: true, profile_freq: 4, profiler_active: 2, "
        "profiler_warmup: 1, save_traces_folder: seen}"
    )
    resolved = run("run", cycle, "training.steps=9", "checkpoint.enable=false")
    assert main([str(resolved)]) == 0
    traces = sorted(path for path in (resolved.parent / "seen").rglob("*") if path.is_file())
    files = [str(path.relative_to(resolved.parent)) for path in traces]
    assert files == ["seen/iteration_4/rank0.pt.trace.json", "seen/iteration_8/rank0.pt.trace.json"]
    assert [steps_in(path) for path in traces] == [
        [f"ProfilerStep#{step}" for step in steps] for steps in ((3, 4), (7, 8))
    ]
    names = {event["name"] for event in json.loads(traces[-1].read_text())["traceEvents"]}
    assert any("mm" in name for name in names) and any("Backward" in name for name in names)


def test_a_run_that_records_nothing_has_no_trace(run: Run) -> None:
    resolved = run("run", "training.steps=2", "checkpoint.enable=false")
    assert main([str(resolved)]) == 0
    assert not list(resolved.parent.rglob("*.pt.trace.json"))


@pytest.mark.parametrize("steps", range(9))
def test_a_run_may_end_at_any_place_of_a_cycle(steps: int, tmp_path: Path) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    config = ProfilingConfig(profile_freq=4, profiler_active=1, profiler_warmup=2)
    with ProfilerTraceWriter(
        config, tmp_path, rank=3, device=CPU, first_step=0, last_step=100
    ) as traces:
        for step in range(1, steps + 1):
            (weight @ weight).sum().backward()
            traces.on_step_end(step)
    assert len(list(tmp_path.rglob("rank3.pt.trace.json"))) == steps // 4


def test_a_run_that_goes_on_records_whole_cycles(tmp_path: Path) -> None:
    config = ProfilingConfig(profile_freq=4, profiler_active=2, profiler_warmup=1)
    with ProfilerTraceWriter(
        config, tmp_path, rank=0, device=CPU, first_step=2, last_step=10
    ) as traces:
        for step in range(3, 11):
            traces.on_step_end(step)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration_8"]


class Memory:
    """Stands in for an accelerator's allocator."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def _record_memory_history(self, **options: Any) -> None:
        self.calls.append(options)

    def _build_snapshot(self) -> dict[str, str]:
        return {"segments": "all of them"}


def test_memory_is_written_each_cycle_and_where_it_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    monkeypatch.setattr(
        torch, "get_device_module", lambda device: type("Device", (), {"memory": memory})
    )
    snapshots = MemorySnapshotWriter(
        ProfilingConfig(profile_freq=4), tmp_path, rank=1, device=torch.device("meta"), first_step=4
    )
    with pytest.raises(torch.OutOfMemoryError), snapshots:
        for step in range(5, 11):
            snapshots.on_step_end(step)
        raise torch.OutOfMemoryError
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pickle"))
    assert found == [
        "iteration_10_exit/rank1_memory_snapshot.pickle",
        "iteration_8/rank1_memory_snapshot.pickle",
    ]
    assert memory.calls == [{"max_entries": 100_000}, {"enabled": None}]


def test_snapshots_lie_in_their_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_profiling, "can_record_memory_history", lambda device: True)
    # torch 2.11 asks the accelerator itself too
    device_module = type(
        "Device", (), {"memory": Memory(), "is_available": staticmethod(lambda: False)}
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: device_module)
    wished = (
        "profiling={enable_memory_snapshot: true, save_memory_snapshot_folder: memory, "
        "profile_freq: 4}"
    )
    resolved = run("run", wished, "device=auto", "training.steps=4", "checkpoint.enable=false")
    assert main([str(resolved)]) == 0
    assert (
        resolved.parent / "memory" / "iteration_4" / "rank0_memory_snapshot.pickle"
    ).stat().st_size > 0


def test_memory_of_a_machine_without_accelerator_is_a_warning(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.accelerator.is_available():
        pytest.skip("here it is written")
    resolved = run(
        "run",
        "profiling.enable_memory_snapshot=true",
        "device=auto",
        "training.steps=2",
        "checkpoint.enable=false",
    )
    assert main([str(resolved)]) == 0
    assert "enable_memory_snapshot has no effect" in capsys.readouterr().err
