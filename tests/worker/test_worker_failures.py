import errno
from pathlib import Path

import pytest
import torch

from titanrun.config.problems import problem_error
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.reference.exit_code_page import EXIT_CODE_DOCUMENTATION, find_problem_codes
from titanrun.training.nonfinite import NonFiniteError
from titanrun.worker.logging_setup import SecretValues
from titanrun.worker.rank_main import log_failure
from titanrun.worker.worker_failures import classify_failure
from titanrun.worker.worker_job import WorkerJob


def raised_by_the_cpu_allocator() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (problem_error("data", "no rows"), 3, "error[data]: no rows"),
        (problem_error("checkpoint", "torn"), 4, "error[checkpoint]: torn"),
        (problem_error("usage", "no accelerator"), 2, "error[usage]: no accelerator"),
        (
            NonFiniteError(step=3, name="loss", value=float("nan")),
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
        (KeyboardInterrupt(), 130, "stopped immediately"),
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
    failure = classify_failure(error)
    assert failure.exit_code == code
    assert words in failure.text
    assert failure.is_internal == (code == 70)
    assert not failure.text.endswith("\n")  # whoever writes it ends the line
    label = failure.text.partition("[")[2].partition("]")[0]
    documented = [*find_problem_codes(code), *EXIT_CODE_DOCUMENTATION[code].message_codes]
    assert code in (2, 130) or label in documented


def test_what_an_immediate_stop_loses_is_said() -> None:
    stopped = KeyboardInterrupt()
    assert classify_failure(stopped).text.endswith(": steps since the last checkpoint are lost")
    before = classify_failure(stopped, is_before_step=True)
    assert before.text == "stopped immediately, before the first step"


def test_memory_that_the_cpu_has_not_is_out_of_memory() -> None:
    assert classify_failure(raised_by_the_cpu_allocator()).exit_code == 7


def test_ranks_that_fail_together_keep_a_traceback_each(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for rank, error in enumerate(
        (ZeroDivisionError("of the first"), ZeroDivisionError("of the second"))
    ):
        log_failure(
            classify_failure(error),
            error,
            WorkerJob(tmp_path / "resolved.yaml", "", RankInfo(rank=rank, world_size=2)),
            SecretValues(),
        )
    found = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert "of the first" in found["internal-error.txt"]
    assert "of the second" in found["internal-error-rank-1.txt"]


def test_a_rank_that_seems_to_have_lost_another_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    error = RuntimeError("[gloo] sizes differ: of this rank's own making")
    log_failure(
        classify_failure(error),
        error,
        WorkerJob(tmp_path / "resolved.yaml", "", RankInfo(rank=1, world_size=2)),
        SecretValues(),
    )
    assert "of this rank's own making" in (tmp_path / "logs" / "broken-off-rank-1.txt").read_text()
