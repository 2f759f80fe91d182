import pytest
import torch
from torch import nn

from titanrun.distributed.dtypes import get_dtype, set_default_dtype
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights


@pytest.mark.parametrize(
    ("storage", "compute", "product"),
    [
        ("float32", "float32", torch.float32),
        ("float32", "bfloat16", torch.bfloat16),
        ("bfloat16", "bfloat16", torch.bfloat16),
        ("bfloat16", "float32", torch.bfloat16),
    ],
)
def test_the_two_names_decide_what_a_matrix_product_runs_in(
    storage: str, compute: str, product: torch.dtype
) -> None:
    precision = get_precision(storage, compute)
    model = nn.Linear(2, 2, dtype=precision.storage_dtype)
    with WorkingWeights(model, precision).swap_in():
        assert model(torch.ones(2, 2).to(precision.storage_dtype)).dtype == product
    assert precision.compute_dtype == product
    assert precision.as_stored.computes_as_stored


def test_default_dtype_is_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), set_default_dtype(torch.bfloat16):
        assert torch.ones(1).dtype == torch.bfloat16
        1 / 0  # noqa: B018
    assert torch.ones(1).dtype == torch.float32


def test_dtypes_have_names() -> None:
    assert [get_dtype(name) for name in ("float32", "bfloat16", "float16")] == [
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ]
