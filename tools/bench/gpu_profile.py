"""What the device does in a step: kernels by name, launches, and the time without work."""

import time
from collections.abc import Callable
from typing import Any

PROFILED_STEPS = 3
NUM_KERNELS = 25


def profile_steps(run: Callable[[int], None], *, is_gpu: bool) -> dict[str, Any]:
    """Profile some steps of a row.

    On a CPU, where there are no kernels, operations take their place.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
    if is_gpu:
        torch.cuda.synchronize()
    with profile(activities=[activity]) as found:
        started = time.perf_counter()
        run(PROFILED_STEPS)
        if is_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    name = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    events = [(event.key, event.count, getattr(event, name)) for event in found.key_averages()]
    return summarize_events(events, steps=PROFILED_STEPS, seconds=seconds)


def summarize_events(
    events: list[tuple[str, int, float]], *, steps: int, seconds: float
) -> dict[str, Any]:
    """Summarize kernels, each with its number of calls and microseconds.

    Args:
        events: The kernels of all steps.
        steps: Number of steps.
        seconds: Duration of all steps.
    """
    timed = sorted((event for event in events if event[2] > 0), key=lambda event: -event[2])
    busy = sum(microseconds for _, _, microseconds in timed)
    return {
        "launches": sum(count for _, count, _ in timed) / steps,
        # kernels of several streams may overlap
        "idle_share": max(0.0, 1 - busy / (seconds * 1e6)),
        "kernels": [
            {"name": key, "calls": count / steps, "ms": microseconds / steps / 1e3}
            for key, count, microseconds in timed[:NUM_KERNELS]
        ],
    }
