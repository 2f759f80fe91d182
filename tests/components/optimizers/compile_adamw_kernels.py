"""Compile the kernels of AdamW for compute capability 9.0 and print what they take, a line each.

Registers of a thread, bytes of stack and of local memory, and the widest read in numbers.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from titanrun.components.optimizers import adamw_triton
from titanrun.components.optimizers.adamw_kernels import TILE, WARPS

HOPPER = GPUTarget("cuda", 90, 32)
NUMBERS = ["weight", "grad", "grad_scale", "found_inf"]
TABLES = ["mean_scales", "mean_table", "square_scales", "square_table"]


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any]) -> Any:
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else "fp32" for name in names}
    types |= {f"{name}_ptr": kind for name, kind in pointers.items()} | {"count": "i64"}
    aligned = [name for name in names if name.endswith("_ptr") or name == "count"]
    source = ASTSource(
        kernel,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"enable_fp_fusion": False, "num_warps": WARPS}
    return triton.compile(source, target=HOPPER, options=options)


def describe(name: str, kernel: Any) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(kernel.asm["cubin"])
        command = [tool, "--dump-resource-usage", file]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (used,) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", text)
    widths = re.findall(r"ld\.global\.v(\d)\.b32", kernel.asm["ptx"])
    return " ".join([name, *used, max(widths, default="1")])


floats = dict.fromkeys(NUMBERS, "*fp32")
bf16 = floats | {"mean": "*bf16", "square": "*bf16"}
print(describe("adamw", compiled(adamw_triton.adamw_kernel, bf16, {"size": TILE})))
for kind, of_means in (("map", "*u8"), ("float8", "*u8"), ("plain", "*fp32")):
    pointers = floats | dict.fromkeys(TABLES, "*fp32") | {"mean": of_means, "square": of_means}
    constants = {"size": 256, "num_blocks": TILE // 256, "kind": kind}
    kernel = compiled(adamw_triton.low_bit_adamw_kernel, pointers, constants)
    print(describe(kind, kernel))
