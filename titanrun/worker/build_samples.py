"""What writes texts, or draws pictures, while the model is trained, if the recipe asks for some."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from titanrun.components.tokenizers.chat_template import rendered
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import fail
from titanrun.models.shared.family import family_module
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine
from titanrun.training.samples import PictureSamples, Prompt, Samples
from titanrun.worker.build_model import longest_row
from titanrun.worker.generate_pictures import pillow, size_of, write_picture

SAMPLES_FILE, SAMPLES_FOLDER = "samples.jsonl", "samples"
PLACE = ("metrics", "samples")


def build_samples(
    recipe: Recipe, engine: Engine, tokenizer: Tokenizer | None, run_dir: Path, *, is_first: bool
) -> Samples | None:
    """The texts of the recipe. Raises a problem where a prompt has no tokens, or leaves no room for what follows it."""
    config = recipe.metrics.samples
    if not config.prompts:
        return None
    assert tokenizer is not None, "a rule asks for one"
    prompts = []
    for number, text in enumerate(config.prompts):
        ids = tokenizer.encode(in_words(recipe, text), bos=not config.chat, eos=False)
        room = longest_row(recipe) - len(ids)
        if not ids or room < config.max_new_tokens:
            message = f"the prompt has {len(ids)} tokens, and rows of {longest_row(recipe)} have no room for {config.max_new_tokens} more"
            raise fail(
                "data",
                message,
                path=(*PLACE, "prompts", number),
                help="set max_new_tokens lower, or seq_len higher",
            )
        prompts.append(Prompt(text, ids))
    ends = frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})
    file = run_dir / SAMPLES_FILE if is_first else None
    return Samples(
        engine, prompts, config.freq, config.max_new_tokens, ends, tokenizer.decode, file
    )


def build_pictures(
    recipe: Recipe, engine: Engine, batches: Any, run_dir: Path, *, is_first: bool
) -> PictureSamples | None:
    """The pictures of the recipe, drawn with the encoders of `batches`, which makes the run's. Raises a problem without the package that
    writes PNG files."""
    samples = recipe.metrics.samples
    if not samples.prompts:
        return None
    sampling = family_module(type(recipe.model), "sampling")
    said = samples.pictures
    how = sampling.PictureSampling(
        steps=said.steps, size=size_of(recipe, None), seed=said.seed, guidance=said.guidance
    )
    draw = partial(
        sampling.drawn_pictures,
        config=recipe.model,
        prompts=samples.prompts,
        how=how,
        encoders=batches.encoders,
        device=engine.device,
        dtype=torch.float32,
    )
    folder = run_dir / SAMPLES_FOLDER if is_first else None
    return PictureSamples(
        engine, samples.prompts, samples.freq, draw, partial(write_picture, pillow()), folder
    )


def in_words(recipe: Recipe, text: str) -> str:
    """A prompt as it stands, or as what a user says in the tokenizer's chat template."""
    if not recipe.metrics.samples.chat:
        return text
    assert isinstance(recipe.tokenizer, TokenizerConfig)
    return rendered(
        recipe.tokenizer.folder, [{"role": "user", "content": text}], with_reply_opened=True
    )
