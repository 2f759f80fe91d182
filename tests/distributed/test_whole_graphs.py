"""A layer of every family is one graph, whatever else is switched on, and no batch needs another.

The meta device stands for an accelerator: on a CPU flex and varlen attention would materialize
their masks.
"""

from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention

from tests.training.meta_engine import META, build_meta_engine, draw_batch, resolve_text, train_step
from titanrun.config.registry import iter_loaded_choices
from titanrun.distributed.compile import CompileOptions, compile_layers
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.recipe import Recipe
from titanrun.training.nonfinite import NonFiniteGuard
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.build.build_parallelism import has_fixed_shapes

# PyTorch's compiler warns of itself
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
SMALL = "flavor: debugmodel, dim: 64, n_heads: 4"
FAMILIES = {
    "llama3": f"name: llama3, {SMALL}, n_layers: 1",
    # layers with and without rotation, dense and with experts
    "llama4": f"name: llama4, {SMALL}, n_kv_heads: 4, n_layers: 2",
    "qwen3": f"name: qwen3, {SMALL}, n_kv_heads: 2, n_layers: 1",
    "experts of qwen3": "name: qwen3, flavor: debugmodel_moe, n_layers: 1, moe: {num_experts: 4, "
    "top_k: 2}",
    "deepseek_v3": "name: deepseek_v3, flavor: debugmodel, n_layers: 1, n_dense_layers: 0",
    # layers with and without a window
    "gpt_oss": "name: gpt_oss, flavor: debugmodel, n_layers: 2",
    "decoder": f"name: decoder, {SMALL}, n_layers: 1",
}
BACKENDS = ("sdpa", "flex", "varlen")
# of an accelerator, on which sinks need another kernel than varlen's
UNSUPPORTED = {("gpt_oss", "varlen")}


class Case(NamedTuple):
    """What is switched on."""

    family: str
    backend: str
    checkpoint: str
    is_float8: bool


CASES = [
    Case("llama3", "sdpa", "none", False),
    Case("llama3", "flex", "full", True),
    Case("llama3", "varlen", "selective", False),
    Case("llama4", "sdpa", "full", False),
    Case("llama4", "flex", "selective", False),
    Case("llama4", "varlen", "none", True),
    Case("qwen3", "sdpa", "selective", True),
    Case("qwen3", "flex", "none", False),
    Case("qwen3", "varlen", "full", False),
    Case("experts of qwen3", "sdpa", "none", True),
    Case("experts of qwen3", "flex", "full", False),
    Case("experts of qwen3", "varlen", "selective", False),
    Case("deepseek_v3", "sdpa", "full", False),
    Case("deepseek_v3", "flex", "selective", True),
    Case("deepseek_v3", "varlen", "none", False),
    Case("gpt_oss", "sdpa", "selective", False),
    Case("gpt_oss", "flex", "none", True),
    Case("gpt_oss", "flex", "full", False),
    Case("decoder", "sdpa", "none", False),
    Case("decoder", "flex", "selective", False),
    Case("decoder", "varlen", "full", True),
]
RECIPE = """model:
  {{{family}, attention: {{backend: {backend}, mask: block_causal, documents: eos}}}}
converters: {converters}
activation_checkpoint: {checkpoint}
optimizer: {{name: adamw, implementation: foreach}}
training: {{dataset: tiny, seq_len: 128}}
"""
FLOAT8 = "[{name: float8_linear, emulate: true, filter_fqns: [output, router.gate]}]"


@pytest.fixture(autouse=True)
def uncompiled_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """flex_attention on the meta device, for which torch has no kernel, and inductor no code."""
    monkeypatch.setattr(
        "titanrun.models.shared.flex_attention.compile_flex_attention",
        lambda: (flex_attention.flex_attention, flex_attention.create_block_mask),
    )
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)


def resolve_case(case: Case, folder: Path) -> Recipe:
    return resolve_text(
        folder,
        RECIPE.format(
            family=FAMILIES[case.family],
            backend=case.backend,
            checkpoint=case.checkpoint,
            converters=FLOAT8 if case.is_float8 else "[]",
        ),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_layer_is_one_graph_for_all_documents(case: Case, tmp_path: Path) -> None:
    recipe = resolve_case(case, tmp_path)
    counter = CompileCounterWithBackend("aot_eager")

    def prepare(model: nn.Module) -> None:
        convert_model(recipe, model, meshes=None)
        recipe.activation_checkpoint.load_builder()(recipe.activation_checkpoint, model=model)
        # fullgraph: a break is an exception
        compile_layers(
            model,
            CompileOptions(counter, has_fixed_shapes(recipe)),  # type: ignore[arg-type]
            experts=get_moe_layers(model),
        )

    torch._dynamo.reset()
    counters.clear()
    engine, guard = build_meta_engine(recipe, prepare), NonFiniteGuard(device=META)
    graphs = []
    for step in range(1, 5):
        train_step(engine, guard, step, [draw_batch(recipe)])
        graphs.append(counter.frame_count)
    assert not counters["graph_break"]
    # a layer once more: with varlen attention the number of documents becomes a variable
    assert 0 < graphs[0] <= graphs[-1] <= graphs[0] + recipe.model.layer_count(), graphs


def test_every_two_settings_are_compiled_together() -> None:
    values = (tuple(FAMILIES), BACKENDS, ("none", "selective", "full"), (False, True))
    for one, other in combinations(range(4), 2):
        compiled = {(case[one], case[other]) for case in CASES}
        assert set(product(values[one], values[other])) - compiled <= UNSUPPORTED


def test_what_is_left_out_is_what_families_do_not_support() -> None:
    register_builtins()
    families = {text.split(",")[0].removeprefix("name: ") for text in FAMILIES.values()}
    found = {
        (choice.model_fields["name"].default, "varlen")
        for choice in iter_loaded_choices(ModelConfig)
        if issubclass(choice, ModelConfig) and "varlen attention" in choice.unsupported_features
    }
    assert {pair for pair in found if pair[0] in families} == UNSUPPORTED
