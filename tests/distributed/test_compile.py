"""What a recipe asks torch.compile for is compiled, and nothing else; test_layouts.py holds the
numbers against uncompiled runs."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor import metrics

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.compile import (
    CompileOptions,
    compile_layers,
    iter_compilable_modules,
)
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.moe import sum_outputs_by_product, sum_outputs_elementwise
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.recipe.rules.compile import BACKENDS
from titanrun.worker.build.build_model import build_loss, build_model, materialize_and_init
from titanrun.worker.build.build_parallelism import (
    compile_model,
    has_fixed_shapes,
    parallelize_model,
)
from titanrun.worker.commands.dry_build import dry_build
from titanrun.worker.simulated_ranks import simulate_rank

# PyTorch's compiler warns of itself
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
FP32 = get_precision("float32", "float32")
ROOT = Path(__file__).parents[2]
SMALL = ["model.n_layers=3", "model.dim=32", "model.vocab_size=512"]
EXPERTS = (
    "model={name: qwen3, flavor: debugmodel_moe, n_layers: 1, moe: {num_experts: 4, top_k: 2, "
    "hidden_dim: 64, num_shared_experts: 1}}"
)

GPT_OSS = "model={name: gpt_oss, flavor: debugmodel, n_layers: 1, vocab_size: 2048}"


def resolved(folder: Path, *overrides: str, ranks: int | None = None) -> Recipe:
    """The debug recipe with overrides."""
    path = folder / "resolved.yaml"
    path.write_text(
        resolve_recipe(
            str(ROOT / "recipes/llama3_debug.yaml"), overrides, environment={}, ranks=ranks
        ).text
    )
    return load_resolved(path)


def built(recipe: Recipe) -> nn.Module:
    model: nn.Module = recipe.model.load_builder()(recipe.model, seq_len=32)
    model.init_weights(generator=torch.Generator().manual_seed(1))  # type: ignore[operator]
    return model


def is_compiled(function: object) -> bool:
    return hasattr(function, "_torchdynamo_orig_callable")


@pytest.mark.parametrize(
    ("settings", "compiled"),
    [
        ("{enable: false}", (False, False)),
        ("{enable: true}", (True, True)),
        ("{enable: true, components: [model]}", (True, False)),
        ("{enable: true, components: [loss]}", (False, True)),
    ],
)
def test_what_is_compiled_is_what_the_recipe_says(
    settings: str, compiled: tuple[bool, bool], tmp_path: Path
) -> None:
    recipe = resolved(tmp_path, *SMALL, f"compile={settings}")
    model = built(recipe)
    compile_model(recipe, model)
    layers = [is_compiled(layer.forward) for layer in model.get_submodule("layers").children()]
    assert (layers, is_compiled(build_loss(recipe))) == ([compiled[0]] * 3, compiled[1])


@pytest.mark.parametrize(
    ("recipe_name", "emulates"),
    [("tensorwise", False), ("rowwise", True), ("rowwise_with_gw_hp", True)],
)
def test_scales_of_rows_see_the_rounding_of_uncompiled_code(
    recipe_name: str, emulates: bool, tmp_path: Path
) -> None:
    converter = f"{{name: float8_linear, recipe_name: {recipe_name}, emulate: true}}"
    recipe = resolved(tmp_path, *SMALL, "compile={enable: true}", f"converters=[{converter}]")
    with inductor_config.patch(emulate_precision_casts=False):
        compile_model(recipe, built(recipe))
        assert inductor_config.emulate_precision_casts is emulates


@pytest.mark.parametrize(("backend", "graphs"), [("eager", 0), ("aot_eager", 1)])
def test_the_back_end_is_the_recipes(backend: str, graphs: int, tmp_path: Path) -> None:
    recipe = resolved(tmp_path, *SMALL, f"compile={{enable: true, backend: {backend}}}")
    model = built(recipe)
    compile_model(recipe, model)
    counters.clear()
    torch._dynamo.reset()
    model(torch.arange(32).view(1, 32)).sum()
    # eager runs what was traced as it is
    assert counters["aot_autograd"]["total"] == graphs


def test_layers_share_one_graph_and_names_stay(tmp_path: Path) -> None:
    model = built(resolved(tmp_path, *SMALL))
    names, tokens = list(model.state_dict()), torch.arange(32).view(1, 32)
    expected = model(tokens)
    counter = CompileCounterWithBackend("eager")
    compile_layers(model, CompileOptions(counter), experts=())  # type: ignore[arg-type]
    assert torch.equal(model(tokens), expected)
    assert (counter.frame_count, list(model.state_dict())) == (1, names)


@pytest.mark.parametrize(("has_fixed_shapes", "graphs"), [(True, 3), (False, 2)])
def test_fixed_shapes_have_a_graph_each(
    has_fixed_shapes: bool, graphs: int, tmp_path: Path
) -> None:
    model = built(resolved(tmp_path, *SMALL))
    counter = CompileCounterWithBackend("eager")
    options = CompileOptions(counter, has_fixed_shapes)  # type: ignore[arg-type]
    torch._dynamo.reset()
    compile_layers(model, options, experts=())
    # the second graph is for all lengths, where lengths may change
    for length in (16, 24, 32):
        model(torch.arange(length).view(1, length))
    assert counter.frame_count == graphs


@pytest.mark.parametrize(
    ("settings", "fixed"),
    [
        ((), True),
        (("evaluation.tasks=[loss]", "validation.enable=true"), False),
        (("metrics.samples={prompts: [One]}",), False),
        (("model.attention={backend: varlen, mask: block_causal}",), False),
    ],
)
def test_shapes_are_fixed_where_all_passes_are_of_rows(
    settings: tuple[str, ...], fixed: bool, tmp_path: Path
) -> None:
    assert has_fixed_shapes(resolved(tmp_path, *settings)) is fixed


@pytest.mark.parametrize("tunes", [True, False])
def test_products_are_tuned_where_asked(
    tunes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        torch, "compile", lambda function, **named: [given.append(named["options"]), function][1]
    )
    recipe = resolved(tmp_path, *SMALL, f"compile={{enable: true, max_autotune: {tunes}}}".lower())
    compile_model(recipe, built(recipe))
    assert given and all(
        options == ({"max_autotune": True} if tunes else None) for options in given
    )


def test_tokens_of_experts_are_counted_once_where_layers_are_recomputed(tmp_path: Path) -> None:
    with dynamo_config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=False):
        for settings, expected in ((SMALL, False), ((EXPERTS,), True)):
            recipe = resolved(tmp_path, *settings, "compile={enable: true, backend: eager}")
            compile_model(recipe, built(recipe))
            found = dynamo_config.skip_fwd_side_effects_in_bwd_under_checkpoint
            assert found is expected


def test_of_a_layer_with_experts_all_but_the_experts_is_compiled(tmp_path: Path) -> None:
    model = built(resolved(tmp_path, EXPERTS))
    (layer,) = model.get_submodule("layers").children()
    names = {module: name for name, module in layer.named_modules()}
    compiled = sorted(names[part] for part in iter_compilable_modules(layer, get_moe_layers(model)))
    assert compiled == [
        "attention",
        "attention_norm",
        "ffn_norm",
        "moe.router",
        "moe.shared_experts",
    ]


@pytest.mark.parametrize("model", [EXPERTS, pytest.param(GPT_OSS, marks=pytest.mark.slow)])
def test_element_wise_functions_between_products_of_experts_are_compiled(
    model: str, tmp_path: Path
) -> None:
    recipe = resolved(tmp_path, model, "compile={enable: true, backend: aot_eager}")
    plain, compiled = built(recipe), built(recipe)
    compile_model(recipe, compiled)
    (moe,) = get_moe_layers(compiled)
    assert is_compiled(moe.sum_outputs) and is_compiled(moe.experts.activate)
    torch._dynamo.reset()
    losses = []
    for each in (plain, compiled):
        loss = each(torch.arange(64).view(2, 32)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(
            compiled.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-6
        )


@pytest.mark.slow  # inductor starts a C++ compiler
def test_compiled_sums_of_expert_outputs_are_one_kernel_in_each_direction() -> None:
    torch._dynamo.reset()
    gates = torch.rand(64, 4, requires_grad=True)
    outputs = torch.randn(64, 4, 32, dtype=torch.bfloat16, requires_grad=True)
    before = metrics.generated_kernel_count
    found = torch.compile(sum_outputs_elementwise)(gates, outputs)
    assert metrics.generated_kernel_count == before + 1
    found.float().sum().backward()
    torch.testing.assert_close(found, sum_outputs_by_product(gates, outputs))
    expected = torch.autograd.grad(
        sum_outputs_by_product(gates, outputs).float().sum(), (gates, outputs)
    )
    torch.testing.assert_close((gates.grad, outputs.grad), expected)


def test_every_back_end_of_torch_that_a_name_is_enough_for_can_be_chosen() -> None:
    needs_arguments = {
        "aot_eager_decomp_partition_with_mode",
        "invoke_subgraph",
        "dynamo_minifier_backend",
        "dynamo_accuracy_minifier_backend",
    }
    named = {
        name
        for name in torch._dynamo.list_backends(exclude_tags=())
        if not name.endswith("_TESTING_ONLY")
    }
    assert set(BACKENDS) == named - needs_arguments


def test_inductor_without_a_compiler_is_a_problem(tmp_path: Path) -> None:
    recipe = resolved(tmp_path, *SMALL, "compile.enable=true", "device=cpu")
    missing = import_module("torch._inductor.config").patch({"cpp.cxx": (None, "no-such-compiler")})
    with (
        missing,
        pytest.raises(
            ProblemsFound, match=r"compile\.backend inductor needs a C\+\+ compiler on a CPU"
        ) as found,
    ):
        compile_model(recipe, built(recipe))
    assert found.value.problems[0].path == ("compile", "backend")


ASYNC = (
    "parallelism.enable_async_tensor_parallel=true",
    "parallelism.tensor_parallel_degree=2",
    "compile={enable: true, components: [model]}",
)


def test_asynchronous_tensor_parallelism_on_a_cpu_is_a_problem(tmp_path: Path) -> None:
    recipe = resolved(tmp_path, *SMALL, *ASYNC, "device=auto", ranks=2)
    with pytest.raises(
        ProblemsFound,
        match="asynchronous tensor parallelism needs memory that other ranks can write to",
    ):
        dry_build(recipe, world_size=2)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Torchinductor does not support code generation for complex operators:UserWarning"
)
def test_asynchronous_tensor_parallelism_is_what_inductor_makes_of_collectives_beside_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inductor, seen = import_module("torch._inductor.config"), []

    def look(graph: torch.fx.Graph) -> None:
        seen.extend(
            node.target.name()
            for node in graph.num_nodes
            if str(node.target).startswith(("symm_mem", "_c10d"))
        )
        # what it would become can run on accelerators only
        raise NotImplementedError

    monkeypatch.setattr(inductor, "post_grad_custom_post_pass", look)
    monkeypatch.setattr(inductor, "_micro_pipeline_tp", False)
    # without NCCL inductor does not even look
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    run = resolved(tmp_path, *SMALL, *ASYNC, "device=gpu", ranks=2)
    torch._dynamo.reset()
    with simulate_rank(run, 0, world_size=2) as meshes:
        model = build_model(run, FP32)
        parallelize_model(run, model, meshes=meshes, precision=FP32)
        materialize_and_init(model, device=torch.device("cpu"), seed=1)
        with pytest.raises(Exception, match="NotImplementedError"):
            model(torch.arange(64).view(2, 32))
    assert (
        seen == ["symm_mem::fused_all_gather_matmul", "symm_mem::fused_matmul_reduce_scatter"] * 2
    )
