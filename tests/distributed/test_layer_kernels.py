"""How many kernels a compiled layer launches, forward and backward: fewer are better fused.

Counted are the kernels that inductor generates, and the operators that it calls, such as matrix
products and those for which it has no code. It is inductor for a CPU, which is near to that for
GPUs in what it fuses, and says nothing of time. Kernels are generated, but not compiled.
layer_kernels.json has the counts, of torch 2.13; TITANRUN_WRITE_GOLDEN=1 writes them again.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import metrics
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ExternKernelSchedulerNode

from tests.distributed.test_whole_graphs import FAMILIES
from tests.training.meta_engine import resolve_text
from titanrun.distributed.compile import CompileOptions, compile_layers
from titanrun.models.shared import feed_forward, rope
from titanrun.models.shared.moe_load_balance import get_moe_layers

COUNTS = Path(__file__).with_name("layer_kernels.json")
# PyTorch's compiler warns of itself
pytestmark = [
    pytest.mark.skipif(torch.__version__ < "2.13", reason="other versions fuse in other ways"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
    # of the rows of RoPE, which are viewed as real numbers there
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
]


@torch.library.custom_op("titanrun_tests::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    """A copy, by an operator of which inductor knows nothing: it fuses nothing across it."""
    return x.clone()


opaque.register_fake(lambda x: torch.empty_like(x))
opaque.register_autograd(lambda _, gradient: opaque(gradient))


@dataclass
class CodeGenerator:
    """Generates the kernels of graphs, and runs the graphs without them.

    Args:
        calls: operators that are called as they are.
    """

    calls: int = 0

    def generate(self, graph: GraphLowering) -> Any:
        """Return what stands for the compiled graph."""
        graph.codegen()
        nodes = graph.scheduler.nodes
        self.calls += sum(isinstance(node, ExternKernelSchedulerNode) for node in nodes)

        def run(arguments: list[Any]) -> Any:
            found = graph.orig_gm(*arguments)
            arguments.clear()
            return found

        return SimpleNamespace(call=run, runner=None, key="", __file__="")


def count_launches(folder: Path, family: str) -> int:
    """Count the launches of a model of one layer, or one of each kind."""
    torch._dynamo.reset()
    recipe = resolve_text(
        folder, f"model: {{{FAMILIES[family]}}}\ntraining: {{dataset: tiny, seq_len: 64}}"
    )
    model = recipe.model.load_builder()(recipe.model, seq_len=64)
    model.init_weights(torch.Generator().manual_seed(0))
    options = CompileOptions("inductor", has_fixed_shapes=True)
    compile_layers(model, options, experts=get_moe_layers(model))
    metrics.reset()
    generator = CodeGenerator()
    # counted where kernels are generated, which a cache of earlier ones leaves out
    with (
        pytest.MonkeyPatch.context() as patch,
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        patch.setattr(GraphLowering, "compile_to_module", lambda graph: generator.generate(graph))
        model(torch.zeros(2, 64, dtype=torch.int64)).sum().backward()
    return metrics.generated_kernel_count + generator.calls


@pytest.mark.parametrize(
    "family",
    [
        "llama3",
        "qwen3",
        pytest.param("deepseek_v3", marks=pytest.mark.slow),
        pytest.param("gpt_oss", marks=pytest.mark.slow),
    ],
)
def test_a_layer_is_fused_into_few_kernels(family: str, tmp_path: Path) -> None:
    found = count_launches(tmp_path, family)
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    if os.environ.get("TITANRUN_WRITE_GOLDEN"):
        counts[family] = found
        COUNTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
        return
    assert 0 < found <= counts[family]


def fuse_no_gates(patch: pytest.MonkeyPatch) -> None:
    """The activation of a feed-forward layer is a kernel apart from its product."""
    patch.setattr(feed_forward, "F", SimpleNamespace(silu=lambda x: opaque(F.silu(x))))


def fuse_no_norms(patch: pytest.MonkeyPatch) -> None:
    """The input of a norm is written, and read again."""
    norm = torch.nn.RMSNorm.forward
    patch.setattr(torch.nn.RMSNorm, "forward", lambda module, x: norm(module, opaque(x)))


def rotate_complex_numbers(patch: pytest.MonkeyPatch) -> None:
    """Queries and keys are multiplied as complex numbers, for which inductor has no code."""
    patch.setattr(
        rope,
        "multiply_as_real",
        lambda pairs, rows: torch.view_as_real(torch.view_as_complex(pairs) * rows),
    )


@pytest.mark.parametrize(
    "lose", [fuse_no_gates, fuse_no_norms, rotate_complex_numbers], ids=lambda lose: lose.__name__
)
def test_one_lost_fusion_exceeds_the_counts(
    lose: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch)
    assert count_launches(tmp_path, "llama3") > json.loads(COUNTS.read_text())["llama3"]
