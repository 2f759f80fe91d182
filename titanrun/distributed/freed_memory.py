"""Memory that a run on a CPU frees in a step, kept for the next step.

At the end of its backward pass a step has freed nearly all that it allocated. glibc's malloc then
returns the end of its heap to the system, which clears each page again when the next step writes to
it: some ten thousand page faults a step of a small model, and a few percent of its CPU time.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.rank_env import get_environment_variables

# numbers in glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1
# glibc raises its thresholds up to these by itself as large blocks are freed. Larger tensors stay
# outside of the heap, so that they cannot fragment it
MAX_MMAP_THRESHOLD = 32 * 2**20
MAX_TRIM_THRESHOLD = 2 * MAX_MMAP_THRESHOLD
# the user's own settings of malloc
MALLOC_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
)
TUNABLES_VARIABLE, MALLOC_TUNABLES = "GLIBC_TUNABLES", "glibc.malloc."


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """Have malloc keep freed memory within the block, and return it to the system after it.

    The process then holds as much as it once needed: a step needs the same again. What building the
    model needed should be freed before. Nothing changes for accelerators, for other C libraries,
    and if the environment has settings of malloc.
    """
    libc = find_glibc()
    if is_accelerator(device) or libc is None or sets_malloc(get_environment_variables()):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        libc.mallopt(M_TRIM_THRESHOLD, MAX_TRIM_THRESHOLD)
        libc.malloc_trim(0)


@cache
def find_glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc


def sets_malloc(environment: Mapping[str, str]) -> bool:
    """Return whether environment variables set how much memory malloc keeps."""
    return any(name in environment for name in MALLOC_VARIABLES) or (
        MALLOC_TUNABLES in environment.get(TUNABLES_VARIABLE, "")
    )
