"""Warning of bf16 on a CPU that emulates it, before training starts."""

import pytest

from titanrun.cli.validate import find_slow_cpu
from titanrun.launch.host_info import CpuInfo
from titanrun.recipe.resolving.resolve import resolve_recipe

OLD, NEW = CpuInfo("old", 2, (), emulates_bf16=True), CpuInfo("new", 2, ("avx512_bf16",))


@pytest.mark.parametrize(
    ("storage", "compute", "field"),
    [
        ("float32", "bfloat16", "mixed_precision_param"),
        ("bfloat16", "float32", "dtype"),
        ("bfloat16", "bfloat16", "dtype"),
        ("float32", "float32", None),
    ],
)
def test_a_slow_dtype_is_blamed_on_the_field_that_decides_it(
    storage: str, compute: str, field: str | None
) -> None:
    sizes = [f"training.dtype={storage}", f"training.mixed_precision_param={compute}"]
    resolved = resolve_recipe("llama3_debug", [*sizes, "device=cpu"], environment={})
    found = find_slow_cpu(OLD, resolved)
    hints = [] if field is None else [f"set training.{field}: float32"]
    assert [problem.hint for problem in found] == hints
    assert all((one.code, one.severity) == ("slow", "warning") for one in found)
    assert find_slow_cpu(NEW, resolved) == []
    submitted = resolve_recipe("llama3_debug", [*sizes, "launch=slurm"], environment={})
    assert find_slow_cpu(OLD, submitted) == []
