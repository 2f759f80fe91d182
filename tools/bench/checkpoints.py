"""What a checkpoint costs.

A save against a raw write that waits for the disk, the share of the digest, and what training
waits for.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import xxhash

from titanrun.components.checkpoints.async_save import AsyncSaver, StagingBuffer
from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.hashed_file import HashedFile

MIB = 1024**2
TENSOR_BYTES = 4 * MIB


def checkpoints_report(runs: int, *, mib: int = 256) -> None:
    """Print medians of `runs` rounds.

    Each round is one raw write, one save, one digest and one background save of the same bytes.
    """
    tensors = {
        f"model.layers.{index}.weight": torch.randn(TENSOR_BYTES // 4)
        for index in range(mib * MIB // TENSOR_BYTES)
    }
    content = torch.cat([tensor.view(torch.uint8) for tensor in tensors.values()]).numpy()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="titanrun-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        for _ in range(runs):
            store = CheckpointStore(folder=folder / "checkpoint")
            saves = AsyncSaver(store.save, StagingBuffer())
            rounds.append(
                {
                    "raw": seconds(lambda: write_raw(folder / "raw", content)),
                    "save": seconds(lambda store=store: store.save(snapshot(1, tensors))),  # type: ignore[misc]
                    # the second save: the first one also makes the buffer that the others use again
                    "first stall": seconds(
                        lambda saves=saves: saves.start_save(snapshot(2, tensors), lambda: None)
                    ),  # type: ignore[misc]
                    "commit": seconds(saves.wait),
                    "stall": seconds(
                        lambda saves=saves: saves.start_save(snapshot(3, tensors), lambda: None)
                    ),  # type: ignore[misc]
                }
            )
            saves.close()
            shutil.rmtree(folder / "checkpoint")
    tell(rounds, mib)
    tell_digest(content, raw_seconds=min(found["raw"] for found in rounds))


def tell(rounds: list[dict[str, float]], mib: int) -> None:
    """Print the figures, with the spread of the ratios."""
    median = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    ratios = sorted(found["raw"] / found["save"] for found in rounds)
    middle = statistics.median(ratios)
    print(f"raw write of {mib} MiB with fsync: {mib / median['raw']:,.0f} MiB/s")
    print(
        f"save: {mib / median['save']:,.0f} MiB/s, {middle:.2f} of the raw write (rounds "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}; target 0.70)"
    )
    print(
        f"background save: training waits {median['stall'] * 1e3:.0f} ms, "
        f"{median['first stall'] * 1e3:.0f} ms the first time"
    )


def snapshot(step: int, tensors: dict[str, torch.Tensor]) -> Snapshot:
    """Build a checkpoint of weights only."""
    return Snapshot(step=step, tensors=tensors, state={}, rng={}, resolved_yaml="")


def write_raw(path: Path, content: object) -> None:
    """Do the least that a durable write can do."""
    with path.open("wb") as file:
        file.write(content)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def tell_digest(content: object, *, raw_seconds: float, pairs: int = 12) -> None:
    """Print what the digest adds to a write, in CPU seconds.

    The smallest values count, since noise only adds.
    """
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="titanrun-bench-", dir=Path.cwd()) as name:
        for _ in range(pairs):
            found.setdefault("plain", []).append(
                cpu(lambda: write_plain(Path(name) / "plain", content))
            )
            found.setdefault("digested", []).append(
                cpu(lambda: write_digested(Path(name) / "digested", content))
            )
            found.setdefault("alone", []).append(cpu(lambda: xxhash.xxh3_128(content).digest()))  # type: ignore[arg-type]
    least = {name: min(times) for name, times in found.items()}
    added = least["digested"] - least["plain"]
    print(
        f"digest: adds {added * 1e3:.1f} ms of CPU to {least['plain'] * 1e3:.0f} ms, "
        f"{added / raw_seconds:.1%} of the fastest raw write "
        f"with fsync (target 3%); by itself {least['alone'] * 1e3:.1f} ms"
    )


def write_plain(path: Path, content: object) -> None:
    """Write without waiting for the disk, which costs no CPU."""
    with path.open("xb") as file:
        file.write(content)  # type: ignore[arg-type]
    path.unlink()


def write_digested(path: Path, content: object) -> None:
    """Write the same through the file that every checkpoint is written with."""
    file = HashedFile(path)
    file.write(content)  # type: ignore[arg-type]
    file.discard()
    path.unlink()


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def seconds(work: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
