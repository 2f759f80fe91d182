"""Builders of sample texts and images generated during training."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.problems import problem_error
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine
from titanrun.training.generation_samples import ImageSampler, SamplePrompt, TextSampler
from titanrun.worker.build.build_model import get_max_seq_len
from titanrun.worker.image_generation import get_image_size, import_pillow, write_image
from titanrun.worker.training_template import load_training_template

SAMPLES_FILE, SAMPLES_FOLDER = "samples.jsonl", "samples"
SAMPLES_PATH = ("metrics", "samples")


def build_text_sampler(
    recipe: Recipe,
    engine: Engine,
    tokenizer: Tokenizer | None,
    run_dir: Path,
    *,
    is_main_rank: bool,
) -> TextSampler | None:
    """Build the sampler of texts, or return None if the recipe has no sample prompts.

    Raises:
        ProblemsFound: a prompt has no tokens, or is too long for the new tokens.
    """
    config = recipe.metrics.samples
    if not config.prompts:
        return None
    assert tokenizer is not None, "a rule requires a tokenizer"
    prompts = []
    for number, text in enumerate(config.prompts):
        ids = tokenizer.encode(
            render_sample_prompt(recipe, text), add_bos=not config.chat, add_eos=False
        )
        room = get_max_seq_len(recipe) - len(ids)
        if not ids or room < config.max_new_tokens:
            message = (
                f"the prompt has {len(ids):,} tokens, but only {max(room, 0):,} of the "
                f"{config.max_new_tokens} new tokens fit into seq_len {get_max_seq_len(recipe):,}"
            )
            raise problem_error(
                "data",
                message,
                path=(*SAMPLES_PATH, "prompts", number),
                hint="lower max_new_tokens or raise seq_len",
            )
        prompts.append(SamplePrompt(text, ids))
    ends = find_sample_end_ids(recipe, tokenizer)
    file = run_dir / SAMPLES_FILE if is_main_rank else None
    return TextSampler(
        engine, prompts, config.freq, config.max_new_tokens, ends, tokenizer.decode, file
    )


def build_image_sampler(
    recipe: Recipe, engine: Engine, collator: Any, run_dir: Path, *, is_main_rank: bool
) -> ImageSampler | None:
    """Build the sampler of images, or return None if the recipe has no sample prompts.

    The images are generated with the encoders of the run's collator.

    Raises:
        ProblemsFound: the package that writes PNG files is missing.
    """
    samples = recipe.metrics.samples
    if not samples.prompts:
        return None
    sampling = load_family_module(type(recipe.model), "image_sampling")
    settings = samples.pictures
    how = sampling.ImageSampling(
        steps=settings.steps,
        size=get_image_size(recipe, None),
        seed=settings.seed,
        guidance=settings.guidance,
    )
    draw = partial(
        sampling.sample_images_with,
        config=recipe.model,
        prompts=samples.prompts,
        sampling=how,
        encoders=collator.encoders,
        device=engine.device,
        dtype=torch.float32,
    )
    folder = run_dir / SAMPLES_FOLDER if is_main_rank else None
    return ImageSampler(
        engine, samples.prompts, samples.freq, draw, partial(write_image, import_pillow()), folder
    )


def render_sample_prompt(recipe: Recipe, text: str) -> str:
    """Return a prompt as is, or as a user message in the tokenizer's chat template."""
    if not recipe.metrics.samples.chat:
        return text
    return load_training_template(recipe).render(
        [{"role": "user", "content": text}], add_generation_prompt=True
    )


def find_sample_end_ids(recipe: Recipe, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids at which a sample ends; in a chat also those that end a reply."""
    if recipe.metrics.samples.chat and isinstance(tokenizer, ChatTokenizer):
        return find_end_ids(load_training_template(recipe), tokenizer)
    return frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})
