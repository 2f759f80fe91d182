"""Small models of every family, and passes through them."""

from pathlib import Path

import torch
from torch import Tensor, nn

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.runners.forward_backward import FullModelForwardBackward
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.build.build_model import build_model, materialize_and_init
from titanrun.worker.build.build_parallelism import compile_model

BF16, FP32 = get_precision("float32", "bfloat16"), get_precision("float32", "float32")
# of width 256
FAMILIES = {
    "llama3": "name: llama3, flavor: debugmodel, n_layers: 2",
    "qwen3": "name: qwen3, flavor: debugmodel, n_layers: 2, vocab_size: 2048",
    "gpt_oss": "name: gpt_oss, flavor: debugmodel, n_layers: 2, vocab_size: 2048",
    "deepseek_v3": "name: deepseek_v3, flavor: debugmodel, n_layers: 2",
    "llama4": "name: llama4, flavor: debugmodel_irope, n_layers: 4, every_n_layers_nope: 4",
}
ROWS, TOKENS, PASSES = 2, 64, 2


def resolve(folder: Path, model: str, *lines: str) -> Recipe:
    """The recipe of a model, with further lines."""
    text = "\n".join(
        [
            "version: 1",
            f"model: {{{model}}}",
            f"training: {{dataset: tiny, seq_len: {TOKENS}}}",
            *lines,
        ]
    )
    (folder / "recipe.yaml").write_text(f"{text}\n")
    return resolve_recipe(str(folder / "recipe.yaml"), [], environment={}).run


def compiled_for(device: torch.device) -> str:
    """The line that compiles: with inductor on a GPU, where it writes Triton."""
    backend = "aot_eager" if device.type == "cpu" else "inductor"
    return f"compile: {{enable: true, backend: {backend}}}"


def built(folder: Path, model: str, device: torch.device, *lines: str) -> nn.Module:
    """A model with the weights of seed 0, converted and compiled as the lines say."""
    recipe = resolve(folder, model, *lines)
    whole = build_model(recipe, BF16)
    convert_model(recipe, whole, meshes=None)
    compile_model(recipe, whole)
    materialize_and_init(whole, device=device, seed=0)
    return whole


def draw_batches(device: torch.device) -> list[TokenBatch]:
    """The batches of the passes, the same on every device."""
    generator = torch.Generator().manual_seed(1)
    return [
        TokenBatch.from_sequences(torch.randint(2000, (ROWS, TOKENS + 1), generator=generator)).to(
            device
        )
        for _ in range(PASSES)
    ]


def passed(model: nn.Module, weights: WorkingWeights, device: torch.device) -> dict[str, Tensor]:
    """Losses of two passes, and the sums of their gradients."""
    passes = FullModelForwardBackward(model, CrossEntropyLoss(CrossEntropyConfig()), weights)
    divisor = torch.tensor(float(PASSES * ROWS * TOKENS), device=device)
    losses = [passes.forward_backward(batch, divisor) for batch in draw_batches(device)]
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": torch.stack(losses), **grads}
