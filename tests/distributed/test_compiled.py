"""What a recipe asks torch.compile for is compiled, and nothing else; test_layouts.py holds the numbers against uncompiled runs."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from titanrun.distributed.compiled import compile_layers, compiled_whole
from titanrun.models.shared.moe_balance import moe_layers
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved, resolve
from titanrun.worker.build_model import build_loss, compile_model

# PyTorch's compiler warns of itself
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
ROOT = Path(__file__).parents[2]
SMALL = ["model.n_layers=3", "model.dim=32", "model.vocab_size=512"]
EXPERTS = "model={name: qwen3, flavor: debugmodel_moe, n_layers: 1, moe: {num_experts: 4, top_k: 2, hidden_dim: 64, num_shared_experts: 1}}"


def resolved(folder: Path, *overrides: str) -> Recipe:
    """The debug recipe with overrides."""
    path = folder / "resolved.yaml"
    path.write_text(resolve(str(ROOT / "recipes/llama3_debug.yaml"), overrides, environment={}).text)
    return read_resolved(path)


def built(recipe: Recipe) -> nn.Module:
    model: nn.Module = recipe.model.builder()(recipe.model, seq_len=32)
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
def test_what_is_compiled_is_what_the_recipe_says(settings: str, compiled: tuple[bool, bool], tmp_path: Path) -> None:
    recipe = resolved(tmp_path, *SMALL, f"compile={settings}")
    model = built(recipe)
    compile_model(recipe, model)
    layers = [is_compiled(layer.forward) for layer in model.get_submodule("layers").children()]
    assert (layers, is_compiled(build_loss(recipe))) == ([compiled[0]] * 3, compiled[1])


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
    compile_layers(model, backend=counter, experts=())  # type: ignore[arg-type]
    assert torch.equal(model(tokens), expected)
    assert (counter.frame_count, list(model.state_dict())) == (1, names)


def test_of_a_layer_with_experts_all_but_the_experts_is_compiled(tmp_path: Path) -> None:
    model = built(resolved(tmp_path, EXPERTS))
    (layer,) = model.get_submodule("layers").children()
    names = {module: name for name, module in layer.named_modules()}
    compiled = sorted(names[part] for part in compiled_whole(layer, moe_layers(model)))
    assert compiled == ["attention", "attention_norm", "ffn_norm", "moe.router", "moe.shared_experts"]
