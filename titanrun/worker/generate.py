"""`python -m titanrun.worker.generate`: what `titanrun generate` asks for, as a JSON object on stdin."""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.addresses import place
from titanrun.components.checkpoints.checkpoint import Checkpoint
from titanrun.components.checkpoints.quantization import quantization_of
from titanrun.components.tokenizers.chat_template import rendered
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.render import render_text
from titanrun.config.suggest import listing
from titanrun.distributed.device import find_device
from titanrun.distributed.meta_device import allocate, on_meta_device
from titanrun.models.shared.config import decided
from titanrun.models.shared.family import family_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.training.generator import Continuation, generate
from titanrun.training.sampling import Sampling
from titanrun.worker.checkpoint import good_weights
from titanrun.worker.failures import failure_of
from titanrun.worker.generate_pictures import draw, size_of
from titanrun.worker.replacements import replace_parts
from titanrun.worker.weights import GENERATION_FILE, read_plain

Job = Mapping[str, Any]

# options by who reads them
TEXT_ONLY = ("max_new_tokens", "temperature", "top_k", "top_p", "stop", "ignore_eos", "add_bos", "chat", "json")
PICTURES_ONLY = ("output", "steps", "guidance", "size")


def main() -> int:
    """Does the job. Returns the exit code."""
    job = json.load(sys.stdin)
    try:
        answer(job)
    except ProblemsFound as error:
        sys.stderr.write(render_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError) as error:
        failure = failure_of(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    return 0


def answer(job: Job) -> None:
    """Prints what follows each prompt, or draws a picture for it."""
    recipe = recipe_in(job["resolved"])
    refuse_other_kind(recipe, job)
    if recipe.model.takes == "images":
        size = size_of(recipe, job["size"])
        draw(recipe, model_with_weights(recipe, job, row_length=recipe.model.row_length(size)), job, size=size)
        return
    assert recipe.tokenizer != "auto"
    if recipe.tokenizer is None:
        raise fail("data", "the run has no tokenizer: it was trained on token ids", help="name a Hugging Face export that has one")
    tokenizer: Tokenizer = recipe.tokenizer.builder()(recipe.tokenizer)
    prompts = [encoded(text, tokenizer, recipe, job) for text in job["prompt"]]
    row_length = max(map(len, prompts)) + job["max_new_tokens"]
    refuse_too_long(recipe, row_length)
    model = model_with_weights(recipe, job, row_length=row_length)
    sampling = Sampling(job["temperature"], job["top_k"], job["top_p"], job["seed"])
    found = generate(
        model,
        prompts,
        max_new_tokens=job["max_new_tokens"],
        sampling=sampling,
        end_ids=frozenset() if job["ignore_eos"] else end_ids(tokenizer, job),
        stops=lambda tokens: any(stop in tokenizer.decode(tokens) for stop in job["stop"]),
    )
    for prompt, continuation in zip(job["prompt"], found, strict=True):
        show(prompt, continuation, tokenizer, job)


def refuse_other_kind(recipe: Recipe, job: Job) -> None:
    """Raises a usage problem for options that a model of this kind does not read, and for pictures without a place."""
    of_pictures = recipe.model.takes == "images"
    unread = [f"--{word.replace('_', '-')}" for word in (TEXT_ONLY if of_pictures else PICTURES_ONLY) if word in job["written"]]
    if unread:
        what = "draws pictures" if of_pictures else "writes text"
        raise fail("usage", f"{recipe.model.name} {what}, and does not read {listing(unread, last='and')}", help="leave it out")
    if of_pictures and job["output"] is None:
        raise fail("usage", f"{recipe.model.name} draws pictures, and --output does not say where", help="add -o picture.png")


def recipe_in(text: str) -> Recipe:
    """The recipe that a resolved text holds."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "resolved.yaml"
        file.write_text(text, encoding="utf-8")
        return read_resolved(file)


def encoded(text: str, tokenizer: Tokenizer, recipe: Recipe, job: Job) -> list[int]:
    """The ids of a prompt. Raises a problem where there are none."""
    if job["chat"]:
        text = rendered(recipe.tokenizer.folder, [{"role": "user", "content": text}], with_reply_opened=True)  # type: ignore[union-attr]
    ids = tokenizer.encode(text, bos=job["add_bos"], eos=False)
    if not ids:
        raise fail("usage", f"the prompt '{text}' has no tokens to continue", help="write a longer one, or use --add-bos")
    return ids


def refuse_too_long(recipe: Recipe, row_length: int) -> None:
    """Raises a usage problem where a prompt and its continuation are longer than the model's rows."""
    longest = decided(recipe.model.max_seq_len)
    if row_length > longest:
        message = f"the longest prompt and --max-new-tokens are {row_length} tokens, and the model's rows have {longest} at most"
        raise fail("usage", message, help="ask for fewer new tokens")


def model_with_weights(recipe: Recipe, job: Job, *, row_length: int) -> torch.nn.Module:
    """The model in evaluation mode, in fp32 on a CPU and in bf16 on an accelerator."""
    if "text generation" in recipe.model.lacks:
        help = "export the checkpoint, and let transformers generate: titanrun checkpoint export"
        raise fail("usage", f"titanrun does not generate with a {recipe.model.name} model", help=help)
    device = find_device(recipe.device)
    with on_meta_device():
        model: torch.nn.Module = recipe.model.builder()(recipe.model, seq_len=row_length)
        replace_parts(recipe, model)
    model.to(torch.float32 if device.type == "cpu" else torch.bfloat16)
    allocate(model, device)
    model.init_weights()  # type: ignore[operator]
    model.load_state_dict(weights(recipe, job))
    return model.eval()


def weights(recipe: Recipe, job: Job) -> dict[str, Tensor]:
    """The weights by the model's names, from a checkpoint or a Hugging Face folder."""
    if "checkpoint" in job:
        return good_weights(Checkpoint(place(job["checkpoint"])))
    folder = place(job["huggingface"])
    plain = read_plain(folder, is_quantized=quantization_of(folder) is not None)
    own: dict[str, Tensor] = family_module(type(recipe.model), "huggingface").from_huggingface(recipe.model, plain)
    return own


def end_ids(tokenizer: Tokenizer, job: Job) -> frozenset[int]:
    """The tokens that end a text: the tokenizer's, and those of a Hugging Face folder's generation_config.json."""
    found = set() if tokenizer.eos_id is None else {tokenizer.eos_id}
    file = Path(job.get("huggingface", "")) / GENERATION_FILE
    if "huggingface" in job and file.is_file():
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        found |= set(named if isinstance(named, list) else [] if named is None else [named])
    return frozenset(found)


def show(prompt: str, continuation: Continuation, tokenizer: Tokenizer, job: Job) -> None:
    """Prints a continuation: as JSON, or behind its prompt."""
    text = tokenizer.decode(continuation.tokens)
    for stop in job["stop"]:
        text = text.partition(stop)[0]
    if job["json"]:
        print(json.dumps({"text": text, "token_ids": continuation.tokens}, ensure_ascii=False))
    else:
        print(text if job["chat"] else prompt + text)


if __name__ == "__main__":
    sys.exit(main())
