"""`python -m titanrun.worker.generate`: what `titanrun generate` asks for, as a JSON object on stdin."""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.tokenizers.chat_template import rendered
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.render import render_text
from titanrun.config.suggest import listing
from titanrun.distributed.mesh import Meshes
from titanrun.models.shared.config import decided
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.training.generator import Continuation, generate
from titanrun.training.sampling import Sampling
from titanrun.worker.failures import failure_of
from titanrun.worker.generate_pictures import draw, size_of
from titanrun.worker.loaded_model import end_ids
from titanrun.worker.loaded_model import model_with_weights as loaded

Job = Mapping[str, Any]

# options by who reads them
TEXT_ONLY = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "stop",
    "ignore_eos",
    "add_bos",
    "chat",
    "json",
)
PICTURES_ONLY = ("output", "steps", "guidance", "size")


def main() -> int:
    """Does the job. Returns the exit code."""
    job = json.load(sys.stdin)
    if job["nproc"] > 1:
        code: int = import_module("titanrun.worker.among_ranks").as_rank(
            lambda is_first: answer(job, prints=is_first)
        )
        return code
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


def answer(job: Job, *, prints: bool = True) -> None:
    """Prints what follows each prompt, or draws a picture for it. Of several processes, which say the same, one prints."""
    recipe = recipe_in(job["resolved"])
    refuse_other_kind(recipe, job)
    if recipe.model.takes == "images":
        size = size_of(recipe, job["size"])
        refuse_silent(recipe)
        draw(recipe, loaded(recipe, job, row_length=recipe.model.row_length(size)), job, size=size)
        return
    assert recipe.tokenizer != "auto"
    if recipe.tokenizer is None:
        raise fail(
            "data",
            "the run has no tokenizer: it was trained on token ids",
            help="name a Hugging Face export that has one",
        )
    tokenizer: Tokenizer = recipe.tokenizer.builder()(recipe.tokenizer)
    prompts = [encoded(text, tokenizer, recipe, job) for text in job["prompt"]]
    row_length = max(map(len, prompts)) + job["max_new_tokens"]
    refuse_too_long(recipe, row_length)
    refuse_silent(recipe)
    sampling = Sampling(job["temperature"], job["top_k"], job["top_p"], job["seed"])
    with ranks_of(recipe, job) as meshes:
        found = generate(
            loaded(recipe, job, row_length=row_length, meshes=meshes),
            prompts,
            max_new_tokens=job["max_new_tokens"],
            sampling=sampling,
            end_ids=frozenset() if job["ignore_eos"] else end_ids(tokenizer, job),
            stops=lambda tokens: any(stop in tokenizer.decode(tokens) for stop in job["stop"]),
        )
    for prompt, continuation in zip(job["prompt"], found, strict=True) if prints else ():
        show(prompt, continuation, tokenizer, job)


@contextmanager
def ranks_of(recipe: Recipe, job: Job) -> Iterator[Meshes | None]:
    """Within the block the ranks that split the model; None for one process alone."""
    if job["nproc"] == 1:
        yield None
        return
    with import_module("titanrun.worker.among_ranks").tensor_ranks(recipe) as meshes:
        yield meshes


def refuse_other_kind(recipe: Recipe, job: Job) -> None:
    """Raises a usage problem for options that a model of this kind does not read, and for pictures without a place."""
    of_pictures = recipe.model.takes == "images"
    unread = [
        f"--{word.replace('_', '-')}"
        for word in (TEXT_ONLY if of_pictures else PICTURES_ONLY)
        if word in job["written"]
    ]
    if unread:
        what = "draws pictures" if of_pictures else "writes text"
        raise fail(
            "usage",
            f"{recipe.model.name} {what}, and does not read {listing(unread, last='and')}",
            help="leave it out",
        )
    if of_pictures and job["output"] is None:
        raise fail(
            "usage",
            f"{recipe.model.name} draws pictures, and --output does not say where",
            help="add -o picture.png",
        )


def recipe_in(text: str) -> Recipe:
    """The recipe that a resolved text holds."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "resolved.yaml"
        file.write_text(text, encoding="utf-8")
        return read_resolved(file)


def encoded(text: str, tokenizer: Tokenizer, recipe: Recipe, job: Job) -> list[int]:
    """The ids of a prompt. Raises a problem where there are none."""
    if job["chat"]:
        text = rendered(
            recipe.tokenizer.folder, [{"role": "user", "content": text}], with_reply_opened=True
        )  # type: ignore[union-attr]
    ids = tokenizer.encode(text, bos=job["add_bos"], eos=False)
    if not ids:
        raise fail(
            "usage",
            f"the prompt '{text}' has no tokens to continue",
            help="write a longer one, or use --add-bos",
        )
    return ids


def refuse_too_long(recipe: Recipe, row_length: int) -> None:
    """Raises a usage problem where a prompt and its continuation are longer than the model's rows."""
    longest = decided(recipe.model.max_seq_len)
    if row_length > longest:
        message = f"the longest prompt and --max-new-tokens are {row_length} tokens, and the model's rows have {longest} at most"
        raise fail("usage", message, help="ask for fewer new tokens")


def refuse_silent(recipe: Recipe) -> None:
    """Raises a usage problem for a model that says nothing here."""
    if "text generation" in recipe.model.lacks:
        help = "export the checkpoint, and let transformers generate: titanrun checkpoint export"
        raise fail(
            "usage", f"titanrun does not generate with a {recipe.model.name} model", help=help
        )


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
