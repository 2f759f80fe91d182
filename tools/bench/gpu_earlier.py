"""What earlier calls of the GPU benchmark measured on the same device with the same torch."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_files import read_json
from gpu_rows import ROWS, Row

# of a side that ran before: compiled kernels may be cached now, clocks may be lower
MARGIN = 1.1


@dataclass(frozen=True)
class Machine:
    """What results depend on: the names of the device and of the version of torch."""

    device: str | None
    torch: str | None


def read_machine(clocks: str | None, *, toy: bool) -> Machine:
    """Return the machine that this is, without importing torch.

    Args:
        clocks: what nvidia-smi says, by read_clocks.
        toy: whether rows run on the CPU, whatever the machine has.
    """
    spec, version = find_spec("torch"), None
    if spec is not None and spec.origin is not None:
        text = Path(spec.origin).with_name("version.py").read_text()
        found = re.search(r"^__version__ = ['\"](.+)['\"]$", text, re.MULTILINE)
        version = found and found[1]
    if toy or clocks is None:
        return Machine("cpu" if toy else None, version)
    return Machine(clocks.splitlines()[1].partition(",")[0], version)


@dataclass(frozen=True)
class EarlierSides:
    """Sides of rows that earlier calls measured on a machine, the newest last."""

    sides: tuple[dict[str, Any], ...] = ()

    def estimate_seconds(self, name: str, side: str, row: Row) -> float:
        """Return the seconds that a side may take: what it took before, or the row's estimate."""
        taken = [each["seconds"] for each in self.sides if describes(each, name, side)]
        return MARGIN * taken[-1] if taken else row.seconds

    def find_ceilings(self, name: str) -> dict[str, Any] | None:
        """Return the newest side with the ceilings at the shapes of a row."""
        ceilings = find_ceilings_row(name)
        found = [each for each in self.sides if describes(each, ceilings, "titanrun")]
        return found[-1] if found else None


def describes(side: dict[str, Any], name: str | None, side_name: str) -> bool:
    """Return whether the results of a side are those of a row."""
    return (side["row"], side["side"]) == (name, side_name)


def find_ceilings_row(name: str) -> str | None:
    """Return the row that measures ceilings at the shapes of a row with a bare loop."""
    row = ROWS[name]
    shapes = (row.sizes, row.batch, row.seq_len)
    for other, found in ROWS.items():
        is_same = shapes == (found.sizes, found.batch, found.seq_len)
        if is_same and found.part == "ceilings" and row.bare is not None:
            return other
    return None


def read_earlier(folders: Iterable[Path], machine: Machine) -> EarlierSides:
    """Read the sides that were measured on this machine from folders of results."""
    files = [file for folder in folders for file in folder.glob("*-*.json")]
    found = map(read_json, sorted(files, key=lambda file: file.stat().st_mtime))
    return EarlierSides(tuple(side for side in found if was_measured(side, machine)))


def was_measured(side: dict[str, Any], machine: Machine) -> bool:
    """Return whether a side was measured to its end on a machine."""
    is_same = machine == Machine(side.get("device_name"), side.get("torch"))
    return is_same and side.get("state") == "done"
