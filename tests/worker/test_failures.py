import errno
from pathlib import Path

import pytest
import torch

from titanrun.config.problems import fail
from titanrun.distributed.environment import Place
from titanrun.training.finite import NonFinite
from titanrun.worker.failures import failure_of
from titanrun.worker.job import Job
from titanrun.worker.main import report
from titanrun.worker.talk import Hidden


def raised_by_the_cpu_allocator() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (fail("data", "no rows"), 3, "error[data]: no rows"),
        (fail("checkpoint", "torn"), 4, "error[checkpoint]: torn"),
        (fail("usage", "no accelerator"), 2, "error[usage]: no accelerator"),
        (
            NonFinite(step=3, name="loss", value=float("nan")),
            5,
            "error[non-finite]: loss is nan at step 3",
        ),
        (MemoryError(), 7, "error[memory]: out of memory"),
        (
            torch.OutOfMemoryError("tried to allocate 2 GiB\nmore"),
            7,
            "error[memory]: out of memory: tried to allocate 2 GiB\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "step-3"),
            7,
            "error[disk]: [Errno 28] No space left on device: 'step-3'",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 7, "error[disk]"),
        (KeyboardInterrupt(), 130, "stopped at once"),
        (
            ZeroDivisionError("division by zero"),
            70,
            "error[internal]: ZeroDivisionError: division by zero",
        ),
        (OSError(errno.EIO, "Input/output error"), 7, "error[disk]"),
        (OSError(errno.EROFS, "Read-only file system"), 7, "error[disk]"),
        (RuntimeError("shape mismatch"), 70, "error[internal]"),
    ],
)
def test_every_end_has_its_exit_code(error: BaseException, code: int, words: str) -> None:
    failure = failure_of(error)
    assert failure.exit_code == code
    assert words in failure.text
    assert failure.is_internal == (code == 70)


def test_memory_that_the_cpu_has_not_is_out_of_memory() -> None:
    assert failure_of(raised_by_the_cpu_allocator()).exit_code == 7


def test_ranks_that_fail_together_keep_a_traceback_each(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for rank, error in enumerate(
        (ZeroDivisionError("of the first"), ZeroDivisionError("of the second"))
    ):
        report(
            failure_of(error),
            error,
            Job(tmp_path / "resolved.yaml", "", Place(rank=rank, world_size=2)),
            Hidden(),
        )
    found = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert "of the first" in found["internal-error.txt"]
    assert "of the second" in found["internal-error-rank-1.txt"]


def test_a_rank_that_seems_to_have_lost_another_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    error = RuntimeError("[gloo] sizes differ: of this rank's own making")
    report(
        failure_of(error),
        error,
        Job(tmp_path / "resolved.yaml", "", Place(rank=1, world_size=2)),
        Hidden(),
    )
    assert "of this rank's own making" in (tmp_path / "logs" / "broken-off-rank-1.txt").read_text()
