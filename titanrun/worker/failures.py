"""What an error that ends a worker means: an exit code, and what to say."""

import errno
from dataclasses import dataclass

import torch

from titanrun.config.problems import ProblemsFound
from titanrun.config.render import render_text
from titanrun.distributed.processes import is_of_another_rank
from titanrun.training.finite import EXIT_NON_FINITE, NonFinite
from titanrun.training.replay import Corruption

EXIT_OUT_OF_SPACE = 7
EXIT_HANG = 6
EXIT_INTERNAL = 70
# the shell's convention for a process that Ctrl-C ended
EXIT_INTERRUPTED = 130

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DISK_BROKEN = {errno.EIO, errno.EROFS, errno.EACCES, errno.ESTALE}
# torch has no exception type of its own for the CPU's allocator
CPU_ALLOCATOR = "can't allocate memory"
# nor for what debug.detect_anomaly stops at; its traceback of the forward call is a warning, and in the log
ANOMALY = "returned nan values in its"
# a collective that nobody else joined
TIMED_OUT = ("timed out", "timeout")
HELP_CORRUPTION = "start again, it goes on from its last checkpoint; where it names the same machine twice, leave that one out"
HELP_NON_FINITE = "lower optimizer.lr, or go on from an earlier checkpoint with other data"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a failed worker ends.

    Args:
        exit_code: of the process.
        text: what to say.
        is_internal: the fault is titanrun's or a library's, and its traceback is worth keeping.
        is_of_another: another rank is gone or silent; what went wrong, it says itself.
    """

    exit_code: int
    text: str
    is_internal: bool = False
    is_of_another: bool = False


def failure_of(error: BaseException) -> Failure:
    """What `error` means to whoever started the worker."""
    if isinstance(error, ProblemsFound):
        return Failure(error.exit_code, render_text(error.problems))
    if isinstance(error, NonFinite):
        return Failure(error.exit_code, f"error[non-finite]: {error}\n  = help: {HELP_NON_FINITE}")
    if isinstance(error, Corruption):
        return Failure(error.exit_code, f"error[corruption]: {error}\n  = help: {HELP_CORRUPTION}")
    if isinstance(error, RuntimeError) and ANOMALY in str(error):
        return Failure(
            EXIT_NON_FINITE,
            f"error[non-finite]: {error}\n  = help: the warning above says where it was called in the forward pass",
        )
    if isinstance(error, KeyboardInterrupt):
        return Failure(
            EXIT_INTERRUPTED, "stopped at once; steps since the last checkpoint are lost"
        )
    if is_out_of_memory(error):
        first_line = str(error).splitlines()[0] if str(error) else "an allocation failed"
        help = "lower training.local_batch_size or training.seq_len, or set activation_checkpoint: full"
        return Failure(
            EXIT_OUT_OF_SPACE, f"error[memory]: out of memory: {first_line}\n  = help: {help}"
        )
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return Failure(
            EXIT_OUT_OF_SPACE,
            f"error[disk]: {error}\n  = help: free space, then start the same command again",
        )
    if isinstance(error, OSError) and error.errno in DISK_BROKEN:
        help = "see what is wrong with the disk (mount, dmesg, permissions), then start the same command again"
        return Failure(EXIT_OUT_OF_SPACE, f"error[disk]: {error}\n  = help: {help}")
    if is_of_another_rank(error):
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        silent = any(word in str(error).lower() for word in TIMED_OUT)
        code, kind = (EXIT_HANG, "hang") if silent else (EXIT_INTERNAL, "internal")
        return Failure(
            code, f"error[{kind}]: another rank is gone or silent: {first_line}", is_of_another=True
        )
    return Failure(
        EXIT_INTERNAL, f"error[internal]: {type(error).__name__}: {error}", is_internal=True
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and CPU_ALLOCATOR in str(error)
