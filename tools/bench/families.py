"""Each family's debug recipe against a bare loop over the class that others wrote for it.

Also experts against dense layers. All in CPU seconds.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import bare_loop
from compare import Comparison, compare, same_rows
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.huggingface import to_huggingface_config as diffusers_config
from titanrun.models.flux.model import Flux, compute_timestep_features, get_image_positions
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.loop import TrainLoop

RECIPES = Path(__file__).parents[2] / "recipes"
OF_TEXT = ("llama3", "qwen3", "qwen3_moe", "deepseek_v3", "llama4", "gpt_oss")
WITH_EXPERTS = ("qwen3_moe", "deepseek_v3", "llama4", "gpt_oss")
# 512 tokens a step, as most of them have
SETTINGS = (
    "device=cpu",
    "training.local_batch_size=4",
    "training.seq_len=128",
    "lr_scheduler.warmup_steps=1",
)
# keys of config.json that say what the class and the numbers are, which the call says here
NO_SIZES = ("model_type", "architectures", "torch_dtype")
SAMPLES, PICTURE_SIDE, TEXT_LENGTH = 4, 8, 64


class LogitsOf(nn.Module):
    """A class of transformers called as titanrun's models are: token ids to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        logits_BTV: Tensor = self.model(input_ids=tokens_BT, use_cache=False).logits
        return logits_BTV


def families_report(blocks: int, steps: int) -> None:
    """Print both ratios of each family, with the spread of the blocks."""
    for family in OF_TEXT:
        found = against(family, bare_steps_of_transformers, blocks, steps)
        tell(
            f"{family} against transformers",
            [other / ours for ours, other in pairs(found)],
            "at least 0.97",
        )
    tell("flux against diffusers", flux_ratios(blocks, steps), "at least 0.97")
    for family in WITH_EXPERTS:
        found = against(family, bare_steps_without_experts, blocks, steps)
        tell(
            f"{family}, seconds beside dense layers'",
            [ours / other for ours, other in pairs(found)],
            "at most 1.3",
        )


def tell(what: str, ratios: list[float], target: str) -> None:
    """Median and spread."""
    print(
        f"{what:<42} {statistics.median(ratios):.3f} (blocks {min(ratios):.3f} to "
        f"{max(ratios):.3f}; target {target})",
        flush=True,
    )


def pairs(found: Comparison) -> list[tuple[float, float]]:
    """CPU seconds of a step of titanrun and of the bare loop, block by block."""
    return list(zip(found.titanrun_cpu, found.bare_cpu, strict=True))


def against(
    family: str,
    bare: Callable[[Recipe, TrainLoop], Iterator[tuple[float, float]]],
    blocks: int,
    steps: int,
) -> Comparison:
    """Compare titanrun's trainer with a bare loop, on one thread."""
    recipe = str(RECIPES / f"{family}_debug.yaml")
    return compare(
        recipe, list(SETTINGS), blocks=blocks, steps_per_block=steps, threads=1, bare=bare
    )


def bare_steps_of_transformers(recipe: Recipe, trainer: TrainLoop) -> Iterator[tuple[float, float]]:
    """Run the bare loop over transformers' class of the same sizes, on the same rows."""
    mapping = load_family_module(type(recipe.model), "huggingface").to_huggingface_config(
        recipe.model, "float32"
    )
    sizes = {key: value for key, value in mapping.items() if key not in NO_SIZES}
    # by name, as diffusers below: importing it takes seconds, which the other benchmarks need not
    # wait for
    library = import_module("transformers")
    config = library.AutoConfig.for_model(mapping["model_type"], **sizes)
    model = LogitsOf(library.AutoModelForCausalLM.from_config(config, dtype=torch.float32)).train()
    ours = trainer.engine.model
    assert parameter_count(model) == parameter_count(ours), "another size"
    return train(model, recipe, trainer)


def bare_steps_without_experts(recipe: Recipe, trainer: TrainLoop) -> Iterator[tuple[float, float]]:
    """Run the bare loop over titanrun's own model with dense layers instead of experts.

    The width of a dense layer is the joint width of the experts that a token meets.
    """
    model = recipe.model.load_builder()(recipe.model, seq_len=recipe.training.seq_len)
    moe = recipe.model.find_moe_config()
    width = (moe.top_k + moe.num_shared_experts) * moe.hidden_dim
    for layer in model.layers.children():
        if layer.has_experts:
            del layer.moe
            layer.feed_forward, layer.has_experts = (
                FeedForward(dim=recipe.model.dim, hidden_dim=width),
                False,
            )
    model.init_weights()
    return train(model, recipe, trainer)


def train(model: nn.Module, recipe: Recipe, trainer: TrainLoop) -> Iterator[tuple[float, float]]:
    """Run the bare loop on the trainer's rows."""
    max_norm = recipe.training.max_norm
    assert max_norm is not None
    rows = same_rows(recipe, trainer)
    return bare_loop.train(
        model,
        rows,
        lr=recipe.optimizer.lr,
        max_norm=max_norm,
        device=torch.device("cpu"),
        bfloat16=False,
    )


def parameter_count(model: nn.Module) -> int:
    """Numbers in the weights, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def flux_ratios(blocks: int, steps: int) -> list[float]:
    """Run both transformers in the same loop on the same latents.

    Encoders and pictures are the same for both, so they are left out.
    """
    torch.set_num_threads(1)
    config = resolve_recipe(
        str(RECIPES / "flux_debug.yaml"), ["device=cpu"], environment={}, ranks=1
    ).run.model
    assert isinstance(config, FluxConfig)
    mapping = diffusers_config(config, "float32")
    ours, theirs = (
        Flux(config, seq_len=SAMPLES),
        import_module("diffusers").FluxTransformer2DModel.from_config(mapping),
    )
    ours.init_weights()
    assert parameter_count(ours) == parameter_count(theirs), "another size"
    latents, text, pooled = (
        torch.randn(SAMPLES, *shape)
        for shape in (
            (PICTURE_SIDE**2, config.in_channels),
            (TEXT_LENGTH, config.context_in_dim),
            (config.vec_in_dim,),
        )
    )
    times, places = torch.rand(SAMPLES), get_image_positions(PICTURE_SIDE, PICTURE_SIDE)
    ids, no_ids = nn.functional.pad(places, (1, 0)).float(), torch.zeros(TEXT_LENGTH, 3)
    given = {
        "hidden_states": latents,
        "encoder_hidden_states": text,
        "pooled_projections": pooled,
        "timestep": times,
    }
    run_ours = stepper(
        ours, lambda: ours(latents, compute_timestep_features(times), text, pooled, places), latents
    )
    run_theirs = stepper(
        theirs, lambda: theirs(**given, img_ids=ids, txt_ids=no_ids).sample, latents
    )
    cpu_seconds(run_ours, steps), cpu_seconds(run_theirs, steps)
    found = [(cpu_seconds(run_ours, steps), cpu_seconds(run_theirs, steps)) for _ in range(blocks)]
    return [other / own for own, other in found]


def stepper(model: nn.Module, velocity: Callable[[], Tensor], wanted: Tensor) -> Callable[[], None]:
    """One optimizer step towards a velocity."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        mse_loss(velocity(), wanted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def cpu_seconds(step: Callable[[], None], steps: int) -> float:
    """CPU seconds of so many steps."""
    start = time.process_time()
    for _ in range(steps):
        step()
    return time.process_time() - start
