"""What a request asks a model to write."""

import secrets
from dataclasses import dataclass
from typing import Any

from titanrun.worker.serving.chat_model import ChatModel, ReplyOptions
from titanrun.worker.serving.openai_requests import (
    MAX_SEED,
    ApiError,
    CompletionRequest,
    RequestFields,
)


@dataclass(frozen=True, slots=True)
class ReplyJob:
    """Prompts of one request, and how each is continued.

    Args:
        model: what continues them.
        prompts: tokens of each prompt, in the order of the answer's choices.
        options: how each is continued.
        is_chat: whether they are conversations.
    """

    model: ChatModel
    prompts: list[list[int]]
    options: list[ReplyOptions]
    is_chat: bool


def encode_prompts(model: ChatModel, asked: CompletionRequest) -> list[list[int]]:
    """Return the tokens of each prompt: of a text, ids, or lists of either.

    Raises:
        ApiError: A prompt has no tokens, or a token that the model does not have.
    """
    written = asked.prompt
    parts: list[Any] = written if isinstance(written, list) else [written]
    if parts and all(isinstance(part, int) for part in parts):
        parts = [parts]
    prompts = [
        model.tokenizer.encode(part, add_bos=False, add_eos=False)
        if isinstance(part, str)
        else list(part)
        for part in parts
    ]
    size = model.tokenizer.vocab_size
    if not prompts or not all(prompts):
        raise ApiError(400, "a prompt without tokens cannot be continued", "prompt")
    if not all(0 <= token < size for prompt in prompts for token in prompt):
        raise ApiError(400, f"token ids are 0 to {size - 1}", "prompt")
    return prompts


def plan_replies(
    model: ChatModel, asked: RequestFields, prompts: list[list[int]], *, is_chat: bool
) -> ReplyJob:
    """Return the replies to generate: `n` for each prompt.

    Raises:
        PromptTooLongError: A prompt is too long.
    """
    base = asked.get_options(0, lambda: secrets.randbelow(MAX_SEED))
    repeated = [prompt for prompt in prompts for _ in range(asked.n or 1)]
    for prompt in repeated:
        model.get_new_token_limit(len(prompt), base.max_new_tokens)
    seed = base.sampling.seed
    options = [asked.get_options(index, lambda: seed) for index in range(asked.n or 1)]
    return ReplyJob(model, repeated, options * len(prompts), is_chat)
