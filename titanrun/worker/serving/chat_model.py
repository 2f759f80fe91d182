"""A loaded model that continues prompts and answers conversations, one at a time."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.chat_content import Message
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.kv_cache import KeptText
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.training.decoding import generate
from titanrun.training.preference_inputs import disable_adapters
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.commands.generate import check_can_generate, load_job_recipe
from titanrun.worker.serving.reply_stream import ReplyStream
from titanrun.worker.serving.shared_weights import ModelCopies
from titanrun.worker.training_template import find_stop_token_ids
from titanrun.worker.weights.load_model import load_adapted_model, load_end_token_ids, load_model

RUN_TEMPLATE_HELP = (
    "set tokenizer.chat_template in the recipe and train; for the model that a run started from: "
    "titanrun chat RUN --base; without a template: titanrun generate RUN --prompt TEXT"
)


class PromptTooLongError(Exception):
    """A prompt leaves no room for a reply."""


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """How a reply is generated.

    Args:
        sampling: how tokens are chosen.
        max_new_tokens: limit of the reply. None: the default of the model, or what fits.
        stop: texts that end it and are left out of it.
        num_top_logprobs: number of most likely tokens to return of each position.
    """

    sampling: SamplingParams
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A generated reply.

    Args:
        text: its text, without special tokens and stop texts.
        tokens: its tokens, with the end token.
        logprobs: log-probability of each token.
        top_logprobs: most likely tokens of each position with theirs, if they are asked for.
        finish: `stop`, `length`, or `cancelled`.
        end: the end token as text, None if none ended it.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish: str
    end: str | None
    top_logprobs: list[dict[int, float]] = field(default_factory=list)


def ignore_text(_: str) -> None:
    """Do nothing with a piece of text."""


def never() -> bool:
    """Return that nothing is cancelled."""
    return False


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model in evaluation mode with its tokenizer and chat template.

    Args:
        name: name for messages and clients.
        model: a decoder.
        tokenizer: its tokenizer.
        template: its chat template, None if it has none.
        end_ids: tokens that end a text; in a chat also those of `chat_end_ids`.
        chat_end_ids: tokens that end a reply.
        max_length: most tokens of a prompt with its reply.
        default_new_tokens: limit of a reply where the request sets none.
        about: checkpoint and model, for people.
        open_weights: opened with a model while it generates a reply, such as to disable its
            adapters.
        copies: copies of the model for several threads. None: one thread uses the model.
        template_help: what to do without a chat template.
    """

    name: str
    model: Any
    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_ids: frozenset[int]
    chat_end_ids: frozenset[int]
    max_length: int
    default_new_tokens: int = 512
    about: str = ""
    open_weights: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    copies: ModelCopies | None = None
    template_help: str = RUN_TEMPLATE_HELP

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Return the ids of a conversation, up to where the template opens a reply.

        Raises:
            ProblemsFound: If there is no template, or it rejects the messages.
        """
        text = self.render_chat(messages, tools, add_generation_prompt=add_generation_prompt)
        return self.tokenizer.encode(text, add_bos=False, add_eos=False)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of a conversation, up to where the template opens a reply.

        Raises:
            ProblemsFound: If there is no template, or it rejects the messages.
        """
        if self.template is None:
            raise problem_error(
                "data",
                f"{self.name} has no chat template",
                hint=self.template_help,
            )
        template = self.template.with_tools(tools)
        return template.render(messages, add_generation_prompt=add_generation_prompt)

    def reads_tools(self) -> bool:
        """Return whether the chat template shows tools to the model."""
        if self.template is None:
            return False
        talk: list[Message] = [{"role": "user", "content": "x"}]
        tool = {"type": "function", "function": {"name": "xyzzy", "parameters": {}}}
        try:
            return "xyzzy" in self.template.with_tools([tool]).render(talk)
        except ProblemsFound:
            return False

    def reads_role(self, role: str) -> bool:
        """Return whether the chat template writes messages of a role."""
        if self.template is None:
            return False
        try:
            talk = [{"role": role, "content": "xyzzy"}, {"role": "user", "content": "x"}]
            return "xyzzy" in self.template.render(talk)
        except ProblemsFound:
            return False

    def reply(
        self,
        prompt: Sequence[int],
        options: ReplyOptions,
        *,
        is_chat: bool,
        on_text: Callable[[str], None] = ignore_text,
        is_cancelled: Callable[[], bool] = never,
        kept: KeptText | None = None,
    ) -> Reply:
        """Generate a reply.

        Args:
            prompt: its tokens; there is at least one.
            options: how it is generated.
            is_chat: whether the tokens that end a turn end it.
            on_text: called with each new piece of text.
            is_cancelled: called after each token; if it returns True, generation ends.
            kept: what an earlier reply of this model has kept of its conversation.

        Raises:
            PromptTooLongError: the prompt, with the reply that is asked for, is too long.
        """
        limit = self.get_new_token_limit(len(prompt), options.max_new_tokens)
        blank = "" if self.template is None else self.template.blank_before_replies
        stream = ReplyStream(self.tokenizer, options.stop, on_text, is_reply=is_chat, blank=blank)
        was_cancelled = False

        def should_stop(tokens: list[int]) -> bool:
            nonlocal was_cancelled
            was_cancelled = is_cancelled()
            return stream.add(tokens) or was_cancelled

        ends = self.end_ids | self.chat_end_ids if is_chat else self.end_ids
        with self.lend() as model, self.open_weights(model):
            (found,) = generate(
                model,
                [prompt],
                max_new_tokens=limit,
                sampling=options.sampling,
                eos_ids=ends,
                should_stop=should_stop,
                num_top_logprobs=options.num_top_logprobs,
                kept=kept,
            )
        is_ended = found.finish == "stop" and found.tokens[-1] in ends
        stream.close(found.tokens[:-1] if is_ended else found.tokens)
        end = self.find_token_text(found.tokens[-1]) if is_ended else None
        finish = "cancelled" if was_cancelled else str(found.finish)
        return Reply(stream.text, found.tokens, found.logprobs, finish, end, found.top_logprobs)

    def lend(self) -> AbstractContextManager[Any]:
        """Return a block within which no other thread uses the model that it yields."""
        return nullcontext(self.model) if self.copies is None else self.copies.lend()

    def get_new_token_limit(self, prompt_length: int, wanted: int | None) -> int:
        """Return the most tokens of a reply.

        Raises:
            PromptTooLongError: the prompt, with the reply that is asked for, is too long.
        """
        room = self.max_length - prompt_length
        if room < (wanted or 1):
            asked = "" if wanted is None else f" and max_tokens is {wanted:,}"
            raise PromptTooLongError(
                f"the prompt has {prompt_length:,} tokens{asked}, "
                f"the model supports {self.max_length:,} tokens"
            )
        return wanted or min(self.default_new_tokens, room)

    def find_token_text(self, token: int) -> str:
        """Return the text of a token as it stands in the vocabulary."""
        find = getattr(self.tokenizer, "get_token_text", None)
        return str(token) if find is None else str(find(token))


def load_chat_model(job: Mapping[str, Any], *, name: str) -> ChatModel:
    """Load the model of a job, as `titanrun generate` does.

    Raises:
        ProblemsFound: If it cannot generate text.
    """
    recipe = load_chat_recipe(job)
    length = get_max_length(recipe, job.get("max_seq_len"))
    return build_chat_model(job, recipe, load_model(recipe, job, seq_len=length), name, length)


def load_chat_model_and_base(job: Mapping[str, Any], *, names: Sequence[str]) -> list[ChatModel]:
    """Load the model of a run and the one that it started from.

    Both share their weights if the run trained only low-rank adapters, which the second one leaves
    out.

    Raises:
        ProblemsFound: If they cannot generate text, or the weights at the start were drawn.
    """
    recipe = load_chat_recipe(job)
    length = get_max_length(recipe, job.get("max_seq_len"))
    model = load_adapted_model(recipe, job, seq_len=length)
    if model is None:
        sources = (job, {**job, "is_base": True})
        return [load_chat_model(one, name=name) for one, name in zip(sources, names, strict=True)]
    trained, base = (build_chat_model(job, recipe, model, name, length) for name in names)
    about = describe_weights({**job, "is_base": True}, recipe)
    return [trained, replace(base, open_weights=disable_adapters, about=about)]


def load_chat_models(
    sources: Sequence[Mapping[str, Any]], *, num_threads: int = 1
) -> list[ChatModel]:
    """Load one model or two, for several threads at once.

    Args:
        sources: where the weights of each are, with its `name`. The second one with `is_base` is
            the model that the run of the first one started from.
        num_threads: how many replies are generated at a time.

    Raises:
        ProblemsFound: one of them cannot be loaded.
    """
    names = [source["name"] for source in sources]
    if sources[-1].get("is_base"):
        found = load_chat_model_and_base(sources[0], names=names)
    else:
        found = [load_chat_model(one, name=name) for one, name in zip(sources, names, strict=True)]
    # two models may be one with and without adapters
    copies = {id(one.model): ModelCopies(one.model, num_threads) for one in found}
    return [replace(one, copies=copies[id(one.model)]) for one in found]


def load_chat_recipe(job: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a model that generates text.

    Raises:
        ProblemsFound: If it does not.
    """
    recipe = load_job_recipe(job)
    if recipe.model.modality != "tokens":
        raise problem_error("usage", f"{recipe.model.name} does not generate text")
    if not isinstance(recipe.tokenizer, TokenizerConfig):
        raise problem_error(
            "data",
            "the run has no tokenizer, it was trained on token ids",
            hint="use a Hugging Face export with a tokenizer",
        )
    check_can_generate(recipe)
    return recipe


def build_chat_model(
    job: Mapping[str, Any], recipe: Recipe, model: Any, name: str, length: int
) -> ChatModel:
    """Build what answers with a model, for texts of up to `length` tokens.

    Raises:
        ProblemsFound: If the chat template cannot be read.
    """
    assert isinstance(recipe.tokenizer, TokenizerConfig), "load_chat_recipe checks it"
    with nest_problems(("tokenizer",)):
        tokenizer: Tokenizer = recipe.tokenizer.load_builder()(recipe.tokenizer)
    template = find_template(tokenizer)
    folder = job.get("huggingface")
    ends = load_end_token_ids(tokenizer, job) | find_stop_token_ids(recipe.tokenizer)
    chat_ends = (
        frozenset[int]()
        if template is None or not isinstance(tokenizer, ChatTokenizer)
        else find_end_ids(template, tokenizer)
    )
    return ChatModel(
        name,
        model,
        tokenizer,
        template,
        ends,
        chat_ends,
        length,
        about=describe_weights(job, recipe),
        template_help=RUN_TEMPLATE_HELP
        if folder is None
        else f"put chat_template.jinja into {folder}, or continue texts without a template: "
        f"titanrun generate {folder} --prompt TEXT",
    )


def describe_weights(job: Mapping[str, Any], recipe: Recipe) -> str:
    """Describe checkpoint and model, such as `step-500, qwen3 0.6B + lora`."""
    lora = find_lora_converter(recipe)
    words = (recipe.model.name, getattr(recipe.model, "flavor", None), lora and f"+ {lora.name}")
    model = " ".join(str(word) for word in words if word)
    if "checkpoint" not in job:
        return model
    place = "the start of the run" if job.get("is_base") else Path(job["checkpoint"]).name
    return f"{place}, {model}"


def find_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the chat template of a tokenizer, None if it has none.

    Raises:
        ProblemsFound: If the template that its config names cannot be read.
    """
    if not isinstance(tokenizer, ChatTokenizer):
        return None
    try:
        return load_chat_template(tokenizer)
    except ProblemsFound:
        if tokenizer.chat_template is not None:
            raise
        return None


def get_max_length(recipe: Recipe, wanted: int | None) -> int:
    """Return the most tokens of a prompt with its reply.

    Raises:
        ProblemsFound: More are wanted than the model supports.
    """
    longest = unwrap_auto(recipe.model.max_seq_len)
    if wanted is not None and wanted > longest:
        raise problem_error(
            "usage",
            f"--max-seq-len is {wanted:,}, but the model supports at most {longest:,} tokens",
            hint=f"use --max-seq-len {longest} or less",
        )
    return wanted or longest
