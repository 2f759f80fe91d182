"""What counting the weights of a rank needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.recipe.plan.plan_layout import ModuleSize
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.measure_memory import measure_rank_memory

RECIPES = Path(__file__).parents[3] / "recipes"
RECIPE = RECIPES / "llama3_405b.yaml"
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


def test_trained_and_quantized_elements_of_a_layer_are_counted_apart() -> None:
    for name, unsharded in (("lora", 0), ("qlora", 256 * 256 * 4 + 3 * 256 * 768)):
        words = [f"converters=[{{name: {name}, rank: 8}}]", "checkpoint.adapters_only=true"]
        recipe = str(RECIPES / "llama3_lora_debug.yaml")
        run = resolve_recipe(recipe, words, environment={}, ranks=2).run
        layer = ModuleSize(*measure_rank_memory(run, 2)["layers"][0])
        # A and B of four square matrices, and of three others
        adapters = 8 * (4 * (256 + 256) + 3 * (256 + 768))
        assert (layer.total_trainable, layer.gathered_trainable) == (adapters, adapters)
        assert layer.unsharded == unsharded
