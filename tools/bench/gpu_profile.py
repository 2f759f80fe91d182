"""Where the device's time goes: kernels by name, launches, and the share of time without any."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

STEPS, TOP = 3, 25


def profile_steps(run: Callable[[int], Any], *, is_gpu: bool) -> dict[str, Any]:
    """Take a few more steps and return what the device did; the CPU's operators at toy size."""
    activity = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
    # torch 2.11 warns without acc_events
    with profile(activities=[activity], acc_events=True) as seen:
        run(STEPS)
        if is_gpu:
            torch.cuda.synchronize()
    kind = DeviceType.CUDA if is_gpu else DeviceType.CPU
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events() or ()
        # annotations lie over kernels, and operators over those that they call
        if event.device_type == kind and not event.is_user_annotation and event.cpu_parent is None
    ]
    return summarize_spans(spans)


def summarize_spans(spans: Iterable[tuple[str, float, float]]) -> dict[str, Any]:
    """Return launches and milliseconds a step, and the share of time without a kernel.

    Args:
        spans: Name, start and end of each kernel in microseconds.
    """
    spans, times = sorted(spans, key=lambda span: span[1]), defaultdict[str, float](float)
    if not spans:
        return {"launches": 0.0, "idle_share": None, "kernels_ms": {}}
    busy, reached = 0.0, spans[0][1]
    for name, start, end in spans:
        times[name] += (end - start) / 1e3 / STEPS
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = reached - spans[0][1]
    longest = sorted(times.items(), key=lambda item: -item[1])[:TOP]
    return {
        "launches": len(spans) / STEPS,
        "idle_share": 1 - busy / whole if whole else None,
        "kernels_ms": dict(longest),
    }
