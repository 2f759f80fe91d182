"""One row of the GPU benchmark on one side, in a process of its own.

python tools/bench/gpu_row.py ROW titanrun|bare|torchtitan ROWS.npy OUT.json [--toy]

OUT.json is written again at each phase (import, build, compile, warm, timed, host, profile), so
that a timeout still says where it was.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

from gpu_files import write_json  # noqa: E402
from gpu_rows import ROWS, Row, toy_row  # noqa: E402

FIRST_STEPS, WARM_STEPS, BLOCK_STEPS, BLOCKS, HOST_STEPS = 5, 10, 15, 2, 3
TOY_STEPS = 2


@dataclass
class Report:
    """What is known of the row so far."""

    path: Path
    content: dict[str, Any] = field(default_factory=dict)

    def add(self, phase: str, **values: Any) -> None:
        """Write the phase that begins, and values."""
        self.content |= {"phase": phase, "seconds": time.perf_counter() - STARTED, **values}
        write_json(self.path, self.content)


class Clock:
    """Times at which the device ends steps, read at the very end."""

    def __init__(self, is_gpu: bool) -> None:
        self.is_gpu, self.ends = is_gpu, []
        self.host: list[float] = []

    def mark(self) -> None:
        """Note the end of a step."""
        import torch

        self.host.append(time.perf_counter())
        if self.is_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.ends.append(event)

    def milliseconds(self) -> list[float]:
        """Return the duration of each step after the first mark."""
        if not self.is_gpu:
            return [1e3 * (b - a) for a, b in zip(self.host, self.host[1:], strict=False)]
        self.ends[-1].synchronize()
        return [a.elapsed_time(b) for a, b in zip(self.ends, self.ends[1:], strict=False)]


def main() -> None:
    """Run the row."""
    name, side, rows_file, out = sys.argv[1:5]
    is_toy = "--toy" in sys.argv
    row = toy_row(ROWS[name]) if is_toy else ROWS[name]
    report = Report(Path(out).absolute())
    report.add("import", row=name, side=side, state="unfinished", toy=is_toy)
    if row.bare is None and side != "titanrun":
        report.add("done", state="absent")
        return
    import torch

    is_gpu = torch.cuda.is_available() and not is_toy
    device = torch.device("cuda" if is_gpu else "cpu")
    device_name = torch.cuda.get_device_name() if is_gpu else "cpu"
    report.add("build", torch=torch.__version__, device=str(device), device_name=device_name)
    if row.part is not None:
        from gpu_parts import PARTS

        report.add("timed")
        report.add("done", state="done", parts=PARTS[row.part](row, device))
        return
    sides: dict[str, Any] = {"titanrun": open_titanrun, "bare": open_bare}
    if side == "torchtitan":
        from gpu_torchtitan import open_torchtitan

        sides["torchtitan"] = open_torchtitan
    with tempfile.TemporaryDirectory() as folder:
        opened = sides[side](row, Path(rows_file).absolute(), device, Path(folder))
        measure(opened, row, report, is_gpu, is_toy)


def measure(opened: Any, row: Row, report: Report, is_gpu: bool, is_toy: bool) -> None:
    """Take the first steps, the warm ones and the timed blocks."""
    import torch

    with opened as run:
        report.add("compile")
        first = run(FIRST_STEPS, losses=True, mark=lambda: None)
        report.add(
            "warm",
            first_losses=first,
            first_steps_seconds=time.perf_counter() - STARTED,
            compile_seconds=read_compile_seconds(),
        )
        run(TOY_STEPS if is_toy else WARM_STEPS, losses=False, mark=lambda: None)
        if is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        report.add("timed")
        blocks = []
        for _ in range(BLOCKS):
            clock = Clock(is_gpu)
            clock.mark()
            run(TOY_STEPS if is_toy else BLOCK_STEPS, losses=False, mark=clock.mark)
            blocks.append(clock.milliseconds())
        speed = summarize(row, blocks, is_gpu)
        report.add("host", **speed)
        report.add("profile", **measure_host(run, speed["ms"], is_gpu))
        from gpu_profile import profile_steps

        seen = profile_steps(
            lambda steps: run(steps, losses=False, mark=lambda: None), is_gpu=is_gpu
        )
        report.add("done", state="done", profile=seen)


def read_compile_seconds() -> float:
    """Return the seconds that torch.compile has taken in this process."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0.0
    seconds: float = sys.modules["torch._dynamo.utils"].calculate_time_spent()["total_wall_time"]
    return seconds


def compute_mfu(row: Row, tflops: float | None, device_name: str) -> float | None:
    """Return the share of the device's bf16 peak; None for float8, which has another peak."""
    from titanrun.components.metrics.peak_flops import get_peak_flops

    peak = get_peak_flops(device_name)
    if tflops is None or peak is None or row.has_float8:
        return None
    return tflops * 1e12 / peak


def measure_host(
    run: Callable[..., Any],
    ms: float,
    is_gpu: bool,
    synchronize: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Return what the host takes for a step, and its share of the step's time on the device.

    The device is idle when the step begins: a host that has to wait for room in a full queue of
    kernels would seem slow.

    Args:
        run: takes a number of steps and marks the end of each.
        ms: time of a step.
        is_gpu: whether steps run on a device of their own.
        synchronize: waits for the device. None: torch's.
    """
    if not is_gpu:
        return {"host_ms": None, "host_share": None, "host_missing": "on a CPU the host computes"}
    import torch

    synchronize, taken = synchronize or torch.cuda.synchronize, []
    for _ in range(HOST_STEPS):
        clock = Clock(is_gpu=False)

        def mark(clock: Clock = clock) -> None:
            if not clock.host:
                synchronize()
            clock.mark()

        run(2, losses=False, mark=mark)
        taken.extend(clock.milliseconds())
    host_ms = statistics.median(taken)
    return {"host_ms": host_ms, "host_share": host_ms / ms}


def summarize(row: Row, blocks: list[list[float]], is_gpu: bool) -> dict[str, Any]:
    """Return speed, memory and noise."""
    import torch

    steps = sorted(step for block in blocks for step in block)
    median = statistics.median(steps)
    medians = [statistics.median(block) for block in blocks]
    tokens = row.batch * row.seq_len / median * 1e3
    found: dict[str, Any] = {
        "ms": median,
        "ms_p10": steps[len(steps) // 10],
        "ms_p90": steps[-1 - len(steps) // 10],
        "noise": abs(medians[0] - medians[1]) / median,
        "tokens_per_second": tokens,
    }
    for suffix, causal in (("", False), ("_causal", True)):
        flops = row.count_flops(causal=causal) * tokens / 1e12 if row.has_flops else None
        found[f"tflops{suffix}"] = flops
        if is_gpu:
            name = torch.cuda.get_device_name()
            found[f"mfu{suffix}"] = compute_mfu(row, flops, name)
    if not is_gpu:
        return found
    stats = torch.cuda.memory_stats()
    return found | {
        "max_allocated": torch.cuda.max_memory_allocated(),
        "max_reserved": torch.cuda.max_memory_reserved(),
        "num_alloc_retries": stats["num_alloc_retries"],
        "num_ooms": stats["num_ooms"],
    }


class open_bare:  # noqa: N801 - used as a function
    """Bare loop as a context that gives a function of a number of steps."""

    def __init__(self, row: Row, rows_file: Path, device: Any, folder: Path) -> None:
        import numpy

        import gpu_bare
        from gpu_bare_batches import iter_rows, iter_staged

        assert row.bare is not None
        sizes = gpu_bare.Sizes(**row.sizes)
        self.step = gpu_bare.build_step(sizes, device=device, seq_len=row.seq_len, **row.bare)
        rows = numpy.load(rows_file, mmap_mode="r")
        self.batches = iter_staged(iter_rows(rows, row.batch), device)

    def __enter__(self) -> Callable[..., list[float]]:
        return self.run

    def __exit__(self, *_: Any) -> None: ...

    def run(self, steps: int, *, losses: bool, mark: Callable[[], None]) -> list[float]:
        """Take steps and return their losses if asked, which waits for the device."""
        found = []
        for _ in range(steps):
            loss = self.step(next(self.batches))
            if losses:
                found.append(float(loss))
            mark()
        return found


class open_titanrun:  # noqa: N801 - used as a function
    """titanrun's own loop as a context that gives a function of a number of steps."""

    def __init__(self, row: Row, rows_file: Path, device: Any, folder: Path) -> None:
        from titanrun.distributed.rank_env import read_rank_info
        from titanrun.recipe.resolving.resolve import resolve_recipe
        from titanrun.training.signal_requests import SignalRequests
        from titanrun.worker.build.build_train_loop import build_train_loop
        from titanrun.worker.worker_job import rendezvous

        recipe = folder / "recipe.yaml"
        recipe.write_text(row.recipe(rows_file, "gpu" if device.type == "cuda" else "cpu"))
        resolved = resolve_recipe(str(recipe), [], environment={}, ranks=1)
        path = folder / "resolved.yaml"
        path.write_text(resolved.text, encoding="utf-8")
        (folder / "logs").mkdir()
        self.metrics = folder / "metrics.jsonl"
        self.context = build_train_loop(
            resolved.run, rendezvous(path, read_rank_info()), signals=SignalRequests()
        )

    def __enter__(self) -> Callable[..., list[float]]:
        import gpu_bare

        self.loop = self.context.__enter__()
        for name, weight in self.loop.engine.model.named_parameters():
            gpu_bare.init_weight(name, weight)
        self.loop.engine.notify_weights_changed()
        return self.run

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)

    def run(self, steps: int, *, losses: bool, mark: Callable[[], None]) -> list[float]:
        """Train on, and return the losses if asked, which logs every step."""
        from dataclasses import replace

        from titanrun.components.metrics.spec.metrics_file import read_metrics
        from titanrun.training.train_hook import TrainHook

        class Marks(TrainHook):
            """Notes the end of each step."""

            def on_step_end(self, loop: Any) -> None:
                mark()

        loop, start = self.loop, self.loop.state.step
        hooks = loop.hooks
        loop.hooks = (*hooks, Marks())
        every = 1 if losses else 10
        loop.config = replace(
            loop.config, steps=start + steps, log_every=every, stop_after_step=None
        )
        loop.train()
        loop.hooks = hooks
        lines = list(read_metrics(self.metrics)) if losses else []
        return [line["loss"] for line in lines if start < line["step"] <= start + steps]


if __name__ == "__main__":
    main()
