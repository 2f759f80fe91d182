"""What counting the weights of a rank needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = Path(__file__).parents[3] / "recipes" / "llama3_405b.yaml"
PROGRAM = """
import sys
from titanrun.worker.commands.measure_memory import main
main()
print([name for name in ("torchao", "torch._inductor.codegen.triton") if name in sys.modules])
"""


def test_counting_weights_imports_no_compiler_and_no_torchao() -> None:
    """Row D9: of 6.3 s of CPU for llama3 405B, three were for imports that count nothing."""
    resolved = resolve_recipe(str(RECIPE), environment={}, ranks=512)
    assert resolved.run.compile.enable and resolved.run.converters
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps({"resolved": resolved.text, "world_size": 512}),
        capture_output=True,
        text=True,
        check=True,
    )
    sizes, imported = done.stdout.splitlines()
    assert imported == "[]"
    found = json.loads(sizes)
    parts = [found["embedding"], *found["layers"], found["head"]]
    # as Meta's model card counts them
    assert sum(part[0] for part in parts) == 405_853_388_800
    # a few shards are padded
    assert sum(part[1] for part in parts) == pytest.approx(405_853_388_800 / 512, rel=1e-3)
