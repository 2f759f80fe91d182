"""`python -m titanrun.worker.commands.generate`: generate texts or images for prompts.

It serves `titanrun generate`, with a JSON object on stdin.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.control_characters import escape_lines
from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.lazy_module import LazyModule
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.models.shared.config import unwrap_auto
from titanrun.recipe.recipe import Recipe, is_reward_model
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.decoding import Continuation, generate
from titanrun.training.stop_texts import StopTexts
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.image_generation import generate_images, get_image_size
from titanrun.worker.training_template import find_stop_token_ids, load_training_template
from titanrun.worker.weights.load_model import load_end_token_ids
from titanrun.worker.weights.load_model import load_model as loaded
from titanrun.worker.weights.saved_tokenizer import use_saved_tokenizer
from titanrun.worker.worker_failures import classify_failure

if TYPE_CHECKING:
    from titanrun.worker import command_ranks
else:
    # only needed with several processes
    command_ranks = LazyModule("titanrun.worker.command_ranks")

GenerateCommandRequest = Mapping[str, Any]

# options by modality
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
IMAGES_ONLY = ("output", "steps", "guidance", "size")


def main() -> int:
    """Generate for the requested prompts and return the exit code."""
    job = json.load(sys.stdin)
    if job["nproc"] > 1:
        return command_ranks.run_as_rank(
            lambda is_first: generate_and_print(job, should_print=is_first)
        )
    try:
        generate_and_print(job)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError) as error:
        failure = classify_failure(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    return 0


def generate_and_print(job: GenerateCommandRequest, *, should_print: bool = True) -> None:
    """Print a continuation of each prompt, or write an image for it.

    With several processes, which generate the same, only one prints.
    """
    recipe = load_job_recipe(job)
    check_modality_options(recipe, job)
    if recipe.model.modality == "images":
        size = get_image_size(recipe, job["size"])
        check_can_generate(recipe)
        generate_images(
            recipe, loaded(recipe, job, seq_len=recipe.model.image_seq_len(size)), job, size=size
        )
        return
    assert recipe.tokenizer != "auto"
    if recipe.tokenizer is None:
        raise problem_error(
            "data",
            "the run has no tokenizer, it was trained on token ids",
            hint="use a Hugging Face export with a tokenizer",
        )
    with nest_problems(("tokenizer",)):
        tokenizer: Tokenizer = recipe.tokenizer.load_builder()(recipe.tokenizer)
    prompts = [encode_prompt(text, tokenizer, recipe, job) for text in job["prompt"]]
    longest = max(map(len, prompts))
    seq_len = longest + job["max_new_tokens"]
    check_generation_length(recipe, longest, job["max_new_tokens"])
    check_can_generate(recipe)
    sampling = SamplingParams(job["temperature"], job["top_k"], job["top_p"], job["seed"])
    with maybe_init_tensor_parallel(recipe, job) as meshes:
        found = generate(
            loaded(recipe, job, seq_len=seq_len, meshes=meshes),
            prompts,
            max_new_tokens=job["max_new_tokens"],
            sampling=sampling,
            eos_ids=frozenset() if job["ignore_eos"] else find_stop_ids(tokenizer, recipe, job),
            should_stop=StopTexts(tokenizer, job["stop"], is_reply=job["chat"]).is_reached,
        )
    blank = load_training_template(recipe).blank_before_replies if job["chat"] else ""
    for prompt, continuation in zip(job["prompt"], found, strict=True) if should_print else ():
        print_continuation(prompt, continuation, tokenizer, job, blank=blank)


@contextmanager
def maybe_init_tensor_parallel(
    recipe: Recipe, job: GenerateCommandRequest
) -> Iterator[ParallelMeshes | None]:
    """Yield the meshes of the ranks that split the model, None for a single process."""
    if job["nproc"] == 1:
        yield None
        return
    with command_ranks.init_tensor_parallel(recipe) as meshes:
        yield meshes


def check_modality_options(recipe: Recipe, job: GenerateCommandRequest) -> None:
    """Check that the model's modality supports all options, and that images have an output.

    Raises:
        ProblemsFound: an option is not supported, or --output is missing.
    """
    is_image_model = recipe.model.modality == "images"
    unread = [
        f"--{word.replace('_', '-')}"
        for word in (TEXT_ONLY if is_image_model else IMAGES_ONLY)
        if word in job["written"]
    ]
    if unread:
        what = "generates images" if is_image_model else "generates text"
        raise problem_error(
            "usage",
            f"{recipe.model.name} {what} and does not support "
            f"{format_word_list(unread, conjunction='and')}",
            hint="remove the option",
        )
    if is_image_model and job["output"] is None:
        raise problem_error(
            "usage",
            f"{recipe.model.name} generates images, but --output is not set",
            hint="add -o image.png",
        )


def parse_resolved_recipe(resolved_text: str) -> Recipe:
    """Parse the text of a resolved recipe."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "resolved.yaml"
        file.write_text(resolved_text, encoding="utf-8")
        return load_resolved(file)


def load_job_recipe(job: GenerateCommandRequest) -> Recipe:
    """Return the recipe of the weights, with the tokenizer that the checkpoint holds."""
    recipe = parse_resolved_recipe(job["resolved"])
    if "checkpoint" not in job:
        return recipe
    return use_saved_tokenizer(recipe, parse_storage_path(job["checkpoint"]))


def encode_prompt(
    text: str, tokenizer: Tokenizer, recipe: Recipe, job: GenerateCommandRequest
) -> list[int]:
    """Encode a prompt.

    Raises:
        ProblemsFound: the prompt has no tokens.
    """
    if job["chat"]:
        text = load_training_template(recipe).render(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
    ids = tokenizer.encode(text, add_bos=job["add_bos"], add_eos=False)
    if not ids:
        raise problem_error(
            "usage",
            f"the prompt '{text}' has no tokens to continue",
            hint="write a longer one, or use --add-bos",
        )
    return ids


def find_stop_ids(
    tokenizer: Tokenizer, recipe: Recipe, job: GenerateCommandRequest
) -> frozenset[int]:
    """Return the ids at which generation stops; in a chat also those that end a reply."""
    assert isinstance(recipe.tokenizer, TokenizerConfig)
    found = load_end_token_ids(tokenizer, job) | find_stop_token_ids(recipe.tokenizer)
    if job["chat"] and isinstance(tokenizer, ChatTokenizer):
        found |= find_end_ids(load_training_template(recipe), tokenizer)
    return found


def check_generation_length(recipe: Recipe, prompt_len: int, max_new_tokens: int) -> None:
    """Check that the longest prompt with its continuation fits the model.

    Raises:
        ProblemsFound: it does not.
    """
    supported = unwrap_auto(recipe.model.max_seq_len)
    if prompt_len >= supported:
        message = f"the longest prompt has {prompt_len:,} tokens, which leaves no room for new ones"
        hint = f"shorten it: the model supports {supported:,} tokens in all"
        raise problem_error("usage", message, hint=hint)
    if prompt_len + max_new_tokens > supported:
        message = (
            f"the longest prompt and --max-new-tokens are {prompt_len + max_new_tokens:,} tokens, "
            f"but the model supports at most {supported:,}"
        )
        hint = f"lower --max-new-tokens: {supported - prompt_len:,} are left"
        raise problem_error("usage", message, hint=hint)


def check_can_generate(recipe: Recipe) -> None:
    """Check that the model supports text generation.

    Raises:
        ProblemsFound: it does not.
    """
    if is_reward_model(recipe):
        raise problem_error(
            "usage",
            "a reward model gives scores, not replies",
            hint="use it in rl.rewards: [{name: model, path: RUN}]",
        )
    if "text generation" in recipe.model.unsupported_features:
        hint = "export the checkpoint and generate with transformers: titanrun checkpoint export"
        raise problem_error(
            "usage", f"model '{recipe.model.name}' does not support text generation", hint=hint
        )


def print_continuation(
    prompt: str,
    continuation: Continuation,
    tokenizer: Tokenizer,
    job: GenerateCommandRequest,
    *,
    blank: str,
) -> None:
    """Print a continuation, as JSON or after its prompt; a reply without the blank before it."""
    stops = StopTexts(tokenizer, job["stop"], is_reply=job["chat"], blank=blank)
    text = stops.decode_before_stop(continuation.tokens)
    if job["json"]:
        print(json.dumps({"text": text, "token_ids": continuation.tokens}, ensure_ascii=False))
    else:
        said = text if job["chat"] else prompt + text
        # a program gets what the model wrote, a terminal does not obey it
        print(escape_lines(said) if sys.stdout.isatty() else said)


if __name__ == "__main__":
    sys.exit(main())
