"""Classification of errors that end a worker: exit codes and messages."""

import errno
from dataclasses import dataclass, replace

import torch

from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.exit_codes import (
    EXIT_HANG,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NON_FINITE,
    EXIT_OUT_OF_SPACE,
)
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.process_group import is_peer_failure
from titanrun.distributed.rank_heartbeats import RankHeartbeats, format_silent_ranks
from titanrun.recipe.plugin_errors import find_plugin_place
from titanrun.training.nonfinite import NonFiniteError
from titanrun.training.step_replay import CorruptionError

DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DISK_FAILURE_ERRNOS = {errno.EIO, errno.EROFS, errno.EACCES, errno.ESTALE}
# torch has no exception type for failures of the CPU allocator
CPU_ALLOCATOR_MESSAGE = "can't allocate memory"
# nor for debug.detect_anomaly, whose traceback of the forward call is logged as a warning
ANOMALY_MESSAGE = "returned nan values in its"
# a collective that other ranks did not join
TIMEOUT_MESSAGES = ("timed out", "timeout")
HELP_OUT_OF_MEMORY = (
    "lower training.local_batch_size or training.seq_len, or set activation_checkpoint: full"
)
HELP_CORRUPTION = (
    "start the run again to resume from its last checkpoint, "
    "and exclude a machine that is named twice"
)
HELP_SILENT_RANK = (
    "the process is stopped or killed, or its machine does not respond: check it, then start the "
    "same command again"
)
LOST_STEPS = ": steps since the last checkpoint are lost"
HELP_NON_FINITE = "lower optimizer.lr, or resume from an earlier checkpoint with other data"


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Exit code and message of a failed worker.

    Args:
        exit_code: exit code of the process.
        text: the message.
        is_internal: the fault is in titanrun or a library, and its traceback is worth keeping.
        is_peer_failure: another rank ended or does not respond. That rank reports the reason
            itself.
        silent_ranks: the ranks that do not answer, if they are why this one failed. They report
            nothing themselves.
    """

    exit_code: int
    text: str
    is_internal: bool = False
    is_peer_failure: bool = False
    silent_ranks: tuple[int, ...] = ()


def classify_failure(error: BaseException, *, is_before_step: bool = False) -> WorkerFailure:
    """Return exit code and message, without a last line break, for an error that ended the worker.

    `is_before_step` says that a run had not begun its first step.
    """
    if isinstance(error, ProblemsFound):
        return WorkerFailure(error.exit_code, render_problems_as_text(error.problems).rstrip())
    if isinstance(error, NonFiniteError):
        return WorkerFailure(
            error.exit_code, f"error[non-finite]: {error}\n  = help: {HELP_NON_FINITE}"
        )
    if isinstance(error, CorruptionError):
        return WorkerFailure(
            error.exit_code, f"error[corruption]: {error}\n  = help: {HELP_CORRUPTION}"
        )
    if isinstance(error, RuntimeError) and ANOMALY_MESSAGE in str(error):
        return WorkerFailure(
            EXIT_NON_FINITE,
            f"error[non-finite]: {error}\n"
            "  = help: see the warning above for the call in the forward pass",
        )
    if isinstance(error, KeyboardInterrupt):
        lost = ", before the first step" if is_before_step else LOST_STEPS
        return WorkerFailure(EXIT_INTERRUPTED, f"stopped immediately{lost}")
    if is_out_of_memory(error):
        first_line = str(error).splitlines()[0] if str(error) else "an allocation failed"
        return WorkerFailure(
            EXIT_OUT_OF_SPACE,
            f"error[memory]: out of memory: {first_line}\n  = help: {HELP_OUT_OF_MEMORY}",
        )
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return WorkerFailure(
            EXIT_OUT_OF_SPACE,
            f"error[disk]: {error}\n  = help: free space, then start the same command again",
        )
    if isinstance(error, OSError) and error.errno in DISK_FAILURE_ERRNOS:
        hint = "check the disk (mount, dmesg, permissions), then start the same command again"
        return WorkerFailure(EXIT_OUT_OF_SPACE, f"error[disk]: {error}\n  = help: {hint}")
    if is_peer_failure(error):
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        silent = any(word in str(error).lower() for word in TIMEOUT_MESSAGES)
        code, kind = (EXIT_HANG, "hang") if silent else (EXIT_INTERNAL, "internal")
        return WorkerFailure(
            code,
            f"error[{kind}]: another rank ended or does not respond: {first_line}",
            is_peer_failure=True,
        )
    text, place = f"error[internal]: {type(error).__name__}: {error}", find_plugin_place(error)
    text += "" if place is None else f"\n  = help: {place}"
    return WorkerFailure(EXIT_INTERNAL, text, is_internal=True)


def add_silent_ranks(failure: WorkerFailure, heartbeats: RankHeartbeats | None) -> WorkerFailure:
    """Name the ranks that do not answer in a failure of a collective that waited too long."""
    if heartbeats is None or not failure.is_peer_failure or failure.exit_code != EXIT_HANG:
        return failure
    silent = heartbeats.find_silent_ranks()
    if not silent:
        return failure
    text = f"error[hang]: {format_silent_ranks(silent)}: {failure.text.partition(': ')[2]}"
    return replace(
        failure, text=f"{text}\n  = help: {HELP_SILENT_RANK}", silent_ranks=tuple(silent)
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and CPU_ALLOCATOR_MESSAGE in str(error)
