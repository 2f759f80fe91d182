"""Compiled layers and float8: with inductor on a GPU, with aot_eager and emulated on the CPU."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.gpu.models import BF16, FAMILIES, built, compiled_for, draw_batches, passed
from titanrun.components.converters.config import Float8LinearConfig
from titanrun.components.converters.float8_linear import convert
from titanrun.components.data.document_ids import attach_document_starts
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.training.runners.forward_backward import FullModelForwardBackward

# what the CPU warns about; on a GPU no warning is an error
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]
SCALES = ["tensorwise", "rowwise"]
DOCUMENTS = "attention: {backend: %s, mask: block_causal, documents: eos}"


def compute(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    return passed(model, WorkingWeights(model, BF16), device)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_compiles_whole(family: str, tmp_path: Path, device: torch.device) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = built(tmp_path, FAMILIES[family], device, compiled_for(device))
    found = compute(model, device)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"], dict(counters["graph_break"])
    assert all(tensor.isfinite().all() for tensor in found.values())
    # every weight that a token reached has a gradient
    assert len(found) == 1 + sum(weight.requires_grad for weight in model.parameters())


def test_compiled_loss_equals_eager(tmp_path: Path, device: torch.device) -> None:
    torch._dynamo.reset()
    plain = compute(built(tmp_path, FAMILIES["llama3"], device), device)
    compiled = compute(built(tmp_path, FAMILIES["llama3"], device, compiled_for(device)), device)
    torch.testing.assert_close(compiled["loss"], plain["loss"], rtol=1e-3, atol=0)
    for name in ("layers.0.attention.wo.weight", "output.weight"):
        assert (compiled[name] - plain[name]).norm() <= 3e-2 * plain[name].norm(), name


def divide_into_documents(batch: TokenBatch, number: int, device: torch.device) -> TokenBatch:
    """The batch of a step, with other documents in each."""
    generator = torch.Generator().manual_seed(number)
    ends = torch.rand(batch.tokens.shape, generator=generator) < 0.02 * (1 + number)
    numbered = replace(batch, document_ids=ends.cumsum(1))
    return attach_document_starts(numbered).to(device)


@pytest.mark.parametrize("backend", ["sdpa", "flex", "varlen"])
def test_no_recompiles_with_new_documents(
    backend: str, tmp_path: Path, device: torch.device
) -> None:
    torch._dynamo.reset()
    model = f"{FAMILIES['llama3']}, {DOCUMENTS % backend}"
    layers = built(tmp_path, model, device, compiled_for(device))
    weights = WorkingWeights(layers, BF16)
    passes = FullModelForwardBackward(layers, CrossEntropyLoss(CrossEntropyConfig()), weights)
    config = import_module("torch._dynamo.config")
    (batch, _) = draw_batches(torch.device("cpu"))
    divisor = torch.tensor(128.0, device=device)
    losses = []
    for step in range(5):
        divided = divide_into_documents(batch, step, device)
        # a second number of documents makes that number a variable, once
        with config.patch(error_on_recompile=step >= 2):
            losses.append(passes.forward_backward(divided, divisor))
    # they do divide
    assert len({float(loss) for loss in losses}) == 5


@pytest.mark.parametrize("recipe_name", SCALES)
def test_float8_tensorwise_and_rowwise_train(
    recipe_name: str, tmp_path: Path, device: torch.device
) -> None:
    torch._dynamo.reset()
    emulates = str(device.type == "cpu").lower()
    converter = (
        f"converters: [{{name: float8_linear, recipe_name: {recipe_name}, "
        f"filter_fqns: [output], emulate: {emulates}}}]"
    )
    model = built(tmp_path, FAMILIES["llama3"], device, compiled_for(device), converter)
    plain = built(tmp_path, FAMILIES["llama3"], device)
    expected = compute(plain, device)
    weights = WorkingWeights(model, BF16)
    found = passed(model, weights, device)
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=2e-2, atol=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(4):
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        weights.mark_stale()
        last = passed(model, weights, device)
    assert (last["loss"] < 0.97 * found["loss"]).all()


@pytest.mark.parametrize("recipe_name", SCALES)
def test_float8_error_is_that_of_emulation(recipe_name: str, device: torch.device) -> None:
    on_hardware = device.type != "cpu"
    errors = {}
    for emulates in (True, not on_hardware):
        generator = torch.Generator().manual_seed(0)
        linear = nn.Linear(256, 512, bias=False)
        nn.init.normal_(linear.weight, std=0.02, generator=generator)
        model = nn.ModuleDict({"linear": linear}).bfloat16().to(device)
        config = Float8LinearConfig(recipe_name=recipe_name, emulate=emulates)  # type: ignore[arg-type]
        assert convert(config, model=model, shards=1).converted == ("linear",)
        x = torch.randn(1024, 256, generator=generator).bfloat16().to(device).requires_grad_()
        slope = torch.randn(1024, 512, generator=generator).bfloat16().to(device)
        weight = model["linear"].weight
        out = model["linear"](x)
        found = [out, *torch.autograd.grad(out, (x, weight), slope)]
        wide_x, wide_weight = x.detach().double(), weight.detach().double()
        exact = [wide_x @ wide_weight.T, slope.double() @ wide_weight, slope.double().T @ wide_x]
        errors[emulates] = [
            (ours.detach().double() - truth) / truth.norm()
            for ours, truth in zip(found, exact, strict=True)
        ]
    for ours, emulated in zip(errors[not on_hardware], errors[True], strict=True):
        # e4m3 and e5m2 have 3 and 2 bits of fraction
        assert 1e-2 < emulated.norm() < 8e-2
        # the products' own sums are exact beside that
        assert (ours - emulated).norm() <= 0.2 * emulated.norm()
