"""Precision, loss, RoPE and optimizer kernels on a GPU, against float64 and against FSDP."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from titanrun.components.converters.float8_linear import convert as convert_to_float8
from titanrun.components.converters.fp32_lm_head import PRODUCTS
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.distributed.head_loss import HeadLoss, HeadLossOptions, compute_logit_gradients
from titanrun.distributed.head_products import HeadProduct
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.shared.rope import apply_rotary_emb_complex, build_complex_rope_cache
from titanrun.models.shared.rope_config import RopeConfig
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.runners.forward_backward import FullModelForwardBackward
from titanrun.training.update_scalars import set_update_scalars
from titanrun.worker.build.build_model import build_model, materialize_and_init
from titanrun.worker.build.build_parallelism import compile_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
BF16, FP32 = get_precision("float32", "bfloat16"), get_precision("float32", "float32")
FAMILIES = {
    "llama3": "name: llama3, flavor: debugmodel, n_layers: 2",
    "qwen3": "name: qwen3, flavor: debugmodel, n_layers: 2",
    "gpt_oss": "name: gpt_oss, flavor: debugmodel, n_layers: 2, vocab_size: 2048",
    "deepseek_v3": "name: deepseek_v3, flavor: debugmodel, n_layers: 2",
    "llama4": "name: llama4, flavor: debugmodel_irope, n_layers: 4, every_n_layers_nope: 4",
}


def built(folder: Path, family: str, device: torch.device, *, compiles: bool = False) -> nn.Module:
    """A model with the weights of seed 0."""
    (folder / "recipe.yaml").write_text(
        f"version: 1\nmodel: {{{FAMILIES[family]}}}\ntraining: {{dataset: tiny, seq_len: 64}}\n"
        f"compile: {{enable: {'true' if compiles else 'false'}}}\n"
    )
    recipe = resolve_recipe(str(folder / "recipe.yaml"), [], environment={}).run
    model = build_model(recipe, BF16)
    compile_model(recipe, model)
    materialize_and_init(model, device=device, seed=0)
    return model


def passed(model: nn.Module, weights: WorkingWeights, device: torch.device) -> dict[str, Tensor]:
    """Losses of two passes, and the sums of their gradients."""
    passes = FullModelForwardBackward(model, CrossEntropyLoss(CrossEntropyConfig()), weights)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(2):
        rows = torch.randint(2000, (2, 65), generator=generator)
        batch = TokenBatch.from_sequences(rows).to(device)
        losses.append(passes.forward_backward(batch, torch.tensor(256.0, device=device)))
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": torch.stack(losses), **grads}


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_near_those_in_fp32_on_the_cpu(
    family: str, tmp_path: Path, device: torch.device
) -> None:
    exact_model = built(tmp_path, family, torch.device("cpu"))
    exact = passed(exact_model, WorkingWeights(exact_model, FP32), torch.device("cpu"))
    model = built(tmp_path, family, device)
    model.load_state_dict(exact_model.state_dict())
    found = passed(model, WorkingWeights(model, BF16), device)
    torch.testing.assert_close(found["loss"].cpu(), exact["loss"], rtol=1e-2, atol=0)
    assert found["loss"].dtype == torch.float32


def test_the_stream_is_bf16_and_gradients_are_fp32(tmp_path: Path, device: torch.device) -> None:
    model = built(tmp_path, "llama3", device)
    seen: list[torch.dtype] = []
    for name in ("layers.0", "layers.1", "norm"):
        model.get_submodule(name).register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    found = passed(model, WorkingWeights(model, BF16), device)
    assert set(seen) == {torch.bfloat16}
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_compiles_and_computes_the_same(
    family: str, tmp_path: Path, device: torch.device, needs_gpu: None
) -> None:
    torch._dynamo.reset()
    plain, compiled = (
        built(tmp_path, family, device, compiles=compiles) for compiles in (False, True)
    )
    expected = passed(plain, WorkingWeights(plain, BF16), device)
    found = passed(compiled, WorkingWeights(compiled, BF16), device)
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=2e-3, atol=0)


def test_rope_is_that_of_complex_numbers(device: torch.device) -> None:
    config = RopeConfig(theta=10000.0, scaling=None)
    table = build_complex_rope_cache(config, head_dim=64, seq_len=256, device=device)
    rows, x = table[None, :, None], torch.randn(2, 256, 4, 64, device=device)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * rows).flatten(-2)
    torch.testing.assert_close(apply_rotary_emb_complex(x, rows), expected, rtol=1e-6, atol=1e-6)


def head_inputs(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(1024, 64, generator=generator).bfloat16().to(device)
    weight = (0.2 * torch.randn(4096, 64, generator=generator)).bfloat16().to(device)
    return stream, weight, torch.randint(4096, (1024,), generator=generator).to(device)


def test_head_loss_against_float64(device: torch.device) -> None:
    stream, weight, labels = head_inputs(device)
    given = [tensor.clone().requires_grad_() for tensor in (stream, weight)]
    scale = torch.tensor(1 / 1024, device=device)
    options = HeadLossOptions(8, 0.0, 0.0, compute_logit_gradients)
    loss = HeadLoss.apply(*given, labels, torch.ones(1024, device=device), scale, options)
    found = torch.autograd.grad(loss, given)
    exact = [tensor.double().requires_grad_() for tensor in (stream, weight)]
    whole = nn.functional.cross_entropy(exact[0] @ exact[1].T, labels, reduction="sum")
    wanted = torch.autograd.grad(whole / 1024, exact)
    torch.testing.assert_close(loss.double(), whole, rtol=1e-3, atol=0)
    for ours, truth in zip(found, wanted, strict=True):
        assert (ours.double() - truth).norm() <= 4e-3 * truth.norm()


@pytest.mark.parametrize(
    ("products", "limit"), [("ieee", 1e-6), ("tf32", 1e-3), ("bfloat16", 3e-3)]
)
def test_an_fp32_head_is_as_exact_as_its_products(
    products: str, limit: float, device: torch.device
) -> None:
    stream, weight, _ = head_inputs(device)
    # a weight that bf16 and TF32 round
    exact_weight = (weight.float() * 1.0123).requires_grad_()
    stream.requires_grad_()
    logits = HeadProduct.apply(stream, exact_weight, PRODUCTS[products])
    wanted = stream.detach().double() @ exact_weight.detach().double().T
    assert logits.dtype == torch.float32
    assert (logits.detach().double() - wanted).norm() <= limit * wanted.norm()
    slopes = torch.randn_like(logits)
    (found,) = torch.autograd.grad(logits, exact_weight, slopes)
    truth = slopes.double().T @ stream.detach().double()
    assert (found.double() - truth).norm() <= limit * truth.norm()


def test_head_loss_holds_no_whole_logits(device: torch.device, needs_gpu: None) -> None:
    tokens, vocabulary, width = 8192, 32768, 256
    stream = torch.randn(tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocabulary, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(vocabulary, (tokens,), device=device)
    options = HeadLossOptions(16, 0.0, 0.0, compute_logit_gradients)
    ones, scale = torch.ones(tokens, device=device), torch.tensor(1.0, device=device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    HeadLoss.apply(stream, weight, labels, ones, scale, options).backward()
    whole_logits_in_fp32 = tokens * vocabulary * 4
    assert torch.cuda.max_memory_allocated() - before < 0.35 * whole_logits_in_fp32


def test_the_kernel_clips_and_refuses(device: torch.device) -> None:
    def after(*, scale: float, found_inf: float) -> Tensor:
        weight = nn.Parameter(torch.ones(1000, device=device))
        optimizer = torch.optim.AdamW([weight], lr=1e-2, fused=True)
        weight.grad = torch.linspace(1, 2, 1000, device=device)
        with set_update_scalars(
            optimizer,
            grad_scale=torch.tensor(float(scale), device=device),
            found_inf=torch.tensor(float(found_inf), device=device),
        ):
            optimizer.step()
        state = optimizer.state[weight]
        values = (weight.detach().mean(), state["exp_avg"].mean(), state["step"])
        return torch.stack([value.to(device) for value in values])

    plain, halved = after(scale=1, found_inf=0), after(scale=2, found_inf=0)
    refused = after(scale=1, found_inf=1)
    torch.testing.assert_close(halved[1], plain[1] / 2)
    assert refused.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("recipe_name", ["tensorwise", "rowwise"])
def test_float8_trains(
    recipe_name: str, tmp_path: Path, device: torch.device, needs_gpu: None
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        f"version: 1\nmodel: {{{FAMILIES['llama3']}}}\ntraining: {{dataset: tiny, seq_len: 64}}\n"
        f"compile: {{enable: true}}\n"
        f"converters: [{{name: float8_linear, recipe_name: {recipe_name}}}]\n"
    )
    recipe = resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}).run
    model = build_model(recipe, BF16)
    report = convert_to_float8(recipe.converters[0], model=model, shards=1)  # type: ignore[arg-type]
    assert report.converted
    compile_model(recipe, model)
    materialize_and_init(model, device=device, seed=0)
    plain = built(tmp_path, "llama3", device)
    found = passed(model, WorkingWeights(model, BF16), device)
    expected = passed(plain, WorkingWeights(plain, BF16), device)
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=2e-2, atol=0)
