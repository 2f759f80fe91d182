import pytest

from titanrun.distributed.precision import get_precision
from titanrun.worker.build.run_start_log import get_compute_dtype_field


@pytest.mark.parametrize(
    ("storage", "compute", "field"),
    [
        ("float32", "bfloat16", "training.mixed_precision_param"),
        ("bfloat16", "float32", "training.dtype"),
        ("bfloat16", "bfloat16", "training.dtype"),
    ],
)
def test_a_slow_dtype_is_blamed_on_the_field_that_decides_it(
    storage: str, compute: str, field: str
) -> None:
    assert get_compute_dtype_field(get_precision(storage, compute)) == field
