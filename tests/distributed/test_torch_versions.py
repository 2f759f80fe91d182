"""What differs between torch's versions: found by signature, with equal gradients either way."""

import re
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate

from tests.integrations.parts import on_ranks
from titanrun.distributed import torch_versions
from titanrun.distributed.torch_versions import FromLocal, accepts_keyword, select_from_local

PACKAGE = Path(torch_versions.__file__).parents[1]
# what they write down of a run, for people to compare
REPORTS = ("checkpoint_store.py", "drawn_weights.py", "hardware_info.py", "doctor.py")
RANKS = 2


def test_only_one_module_depends_on_torchs_version() -> None:
    asking = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"torch\.__version__|torch\.version\.__version__", path.read_text())
    }
    assert asking == set(REPORTS)
    assert "__version__" not in Path(torch_versions.__file__).read_text()


def test_a_keyword_is_found_in_the_signature() -> None:
    def old(query: object, *, scale: float | None = None) -> None: ...

    def new(query: object, *, scale: float | None = None, enable_gqa: bool = False) -> None: ...

    assert [accepts_keyword(each, "enable_gqa") for each in (old, new)] == [False, True]


def gradients_of_a_replicated_part() -> list[Tensor]:
    """Gradients of this rank's copy, of which each rank computes another summand."""
    mesh = init_device_mesh("cpu", (RANKS,))
    rank = mesh.get_local_rank()
    found = []
    for wrap in (
        lambda part: select_from_local()(part, mesh, [Replicate()], grad_placements=[Partial()]),
        lambda part: FromLocal.apply(part, mesh, [Replicate()], [Partial()]),
    ):
        part = torch.arange(3.0).requires_grad_()
        whole = wrap(part)
        assert whole.placements == (Replicate(),) and whole.requires_grad
        # this rank's summand of the gradient: rank + 1
        (whole.to_local(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
        assert part.grad is not None
        found.append(part.grad)
    return found


def test_a_partial_gradient_stays_a_summand(tmp_path: Path) -> None:
    # reduced early it would be 3 on both ranks, and 6 once somebody adds the summands up
    for rank, found in enumerate(on_ranks(RANKS, gradients_of_a_replicated_part, tmp_path)):
        for gradient in found:
            assert gradient.tolist() == [rank + 1.0] * 3
