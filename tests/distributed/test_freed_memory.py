import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.page_faults import SETTLING_STEPS
from titanrun.distributed.freed_memory import MALLOC_VARIABLES, find_glibc, sets_malloc

pytestmark = pytest.mark.skipif(find_glibc() is None, reason="needs glibc")
# what a step does to memory: 32 tensors of 4 MiB, of which none is left
PROGRAM = """
import sys, torch
from tests.distributed.page_faults import count_faults
from titanrun.distributed.device import PROC_STATUS
from titanrun.distributed.freed_memory import keep_freed_memory

def read_resident_mib():
    return int(PROC_STATUS.read_text().partition("VmRSS:")[2].split()[0]) // 1024

with keep_freed_memory(torch.device(sys.argv[1])):
    for _ in range(int(sys.argv[2])):
        count_faults()
    kept, held = count_faults(), read_resident_mib()
left = read_resident_mib()
print(kept, count_faults(), held, left)
"""


def measure(device: str = "cpu", steps: int = 1, **variables: str) -> tuple[int, int, int, int]:
    """Page faults of a step within the block and after it, and MiB held at its end and after it.

    `steps` are taken before it.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device, str(steps)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if not sets_malloc({name: value})}
        | variables,
    )
    kept, freed, held, left = map(int, done.stdout.split())
    return kept, freed, held, left


def test_a_step_gets_the_memory_of_the_last_one_without_page_faults() -> None:
    kept, freed, held, left = measure(steps=SETTLING_STEPS)
    assert kept * 8 < freed
    assert left < held - 64, "memory is returned at the end"


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
    ids=["variable", "tunable"],
)
def test_settings_of_the_environment_stay(variables: dict[str, str]) -> None:
    kept, freed, *_ = measure(**variables)
    assert kept * 2 > freed > 0


def test_runs_on_accelerators_return_their_host_memory() -> None:
    kept, freed, *_ = measure("cuda")
    assert kept * 2 > freed > 0


def test_other_variables_are_no_settings_of_malloc() -> None:
    assert all(sets_malloc({name: "1"}) for name in MALLOC_VARIABLES)
    assert not sets_malloc({"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2", "MALLOC_ARENA_MAX": "1"})
