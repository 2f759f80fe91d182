"""Rules about the token that ends a turn of the assistant."""

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

from titanrun.components.data.chat_config import (
    ChatDatasetConfig,
    ConversationsConfig,
)
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.chat_formats import Conversation
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.named_templates import suggest_template_names
from titanrun.components.tokenizers.spec.stop_tokens import load_special_token_texts
from titanrun.components.tokenizers.spec.tokenizer_files import load_vocab
from titanrun.config.problems import ProblemsFound
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.chat import (
    NUM_RECORDS_CHECKED,
    RECORD_READERS,
    ConversationDataset,
    parse_conversations,
)
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.tokenizer import list_missing_tokens

TRAIN_LAST = "set train_on: last_reply, or render each reply as a conversation of its own"
USE_AN_END = "use a template that ends replies with a special token of the tokenizer"
MAX_SHOWN_CHARACTERS = 40
MAX_END_CHARACTERS = 20


@rule("end-of-turn-not-trained", level="environment")
def end_of_turn_not_trained(run: Recipe) -> Iterator[RuleViolation]:
    """Warn if the loss does not contain the token that ends a reply.

    A model that does not learn this token does not stop. It counts in the loss if the template
    writes it inside its {% generation %} block, or with train_end_of_turn. A test conversation and
    the first hundred records of the first file are rendered.
    """
    for place, dataset in get_all_datasets(run):
        trained = dataset.to_chat_config() if isinstance(dataset, ConversationsConfig) else dataset
        if (
            place[0] != "training"
            or not isinstance(trained, ChatDatasetConfig | RepliesConfig)
            or not isinstance(run.tokenizer, TokenizerConfig)
            or not learns_replies(trained)
            # named-template-has-tokens reports it
            or list_missing_tokens(run.tokenizer)
        ):
            continue
        found = find_untrained_end(trained, run.tokenizer)
        if found is not None:
            message, hint = found
            if hint == USE_AN_END:
                hint = name_fitting_templates(run.tokenizer)
            elif hint != TRAIN_LAST and trained is dataset:
                hint = f"set {format_path((*place, 'train_end_of_turn'))}: true, or {hint}"
            yield RuleViolation(
                message,
                (("tokenizer", "chat_template"), place, ("tokenizer",)),
                hint=hint,
                severity="warning",
                section=place,
            )


def name_fitting_templates(tokenizer: TokenizerConfig) -> str:
    """Return the hint to use another template, with the names of those that the tokenizer fits."""
    try:
        names = suggest_template_names(load_vocab(tokenizer.folder))
    except ProblemsFound:
        return USE_AN_END
    others = [name for name in names if name != tokenizer.chat_template]
    return f"{USE_AN_END}: {format_word_list(others)}" if others else USE_AN_END


def learns_replies(dataset: ConversationDataset) -> bool:
    """Return whether the loss is over what the template marks as replies, and no more."""
    if dataset.train_end_of_turn:
        return False
    if isinstance(dataset, RepliesConfig):
        return True
    if dataset.train_on == "roles":
        return dataset.role_weights.assistant is not None
    return dataset.train_on != "all"


def find_untrained_end(
    dataset: ConversationDataset, tokenizer: TokenizerConfig
) -> tuple[str, str] | None:
    """Return why the end of some turn is not in the loss, and what to do.

    Return None if it is in the loss, or another rule reports that replies cannot be rendered.
    """
    # jinja is imported only if there are conversations
    templates, ends = map(
        import_module,
        (
            "titanrun.components.tokenizers.chat_template",
            "titanrun.components.tokenizers.end_of_turn",
        ),
    )
    try:
        template = templates.load_chat_template(tokenizer)
        found = ends.find_turn_end(template, load_special_token_texts(tokenizer.folder))
        if found is None or found.is_marked:
            ends_found = ends.find_end_tokens(template, tokenizer)
            return find_reply_without_end(dataset, template, ends_found)
    except ProblemsFound:
        return None
    if found.token is not None:
        return describe_outer_end("replies end", found.token)
    text = found.text.split("\n")[0][:MAX_SHOWN_CHARACTERS]
    if not text:
        message = "the chat template writes nothing after a reply that could end a turn"
        return f"{message}: the model does not learn when to stop", USE_AN_END
    message = f"the chat template writes '{text}' after a reply, which is no special token"
    return f"{message} of the tokenizer: generation does not stop there", USE_AN_END


def describe_outer_end(subject: str, token: str) -> tuple[str, str]:
    """Return the message and the hint for an end-of-turn token outside of the loss."""
    message = f"{subject} with '{token}', which is not in the loss: the model does not learn"
    return f"{message} to end its turn", f"put '{token}' inside {{% generation %}} in the template"


def find_reply_without_end(
    dataset: ConversationDataset, template: Any, end_tokens: frozenset[str]
) -> tuple[str, str] | None:
    """Return the message and the hint for the first reply whose end is not in the loss."""
    spans = import_module("titanrun.components.tokenizers.reply_spans")
    is_last_only = getattr(dataset, "train_on", "last_reply") == "last_reply"
    for place, conversation in iter_first_conversations(dataset):
        bound = template.with_tools(conversation.tools)
        text, replies = spans.render_with_replies(bound, conversation.messages, place)
        for span in replies[-1:] if is_last_only else replies:
            start, end = spans.extend_to_turn_end(text, span, end_tokens)
            if (start, end) != span:
                token = text[span[1] : end].strip()
                return describe_outer_end(f"a reply in {place} ends", token)
            if not spans.ends_with_token(text[start:end], end_tokens):
                is_last_ended = spans.ends_with_token(text[slice(*replies[-1])], end_tokens)
                shown = text[start:end].rstrip()[-MAX_END_CHARACTERS:]
                return (
                    f"a reply in {place} ends with '{shown}', at which generation does not stop: "
                    "the model learns to go on there",
                    TRAIN_LAST if is_last_ended else USE_AN_END,
                )
    return None


def iter_first_conversations(dataset: ConversationDataset) -> Iterator[tuple[str, Conversation]]:
    """Yield the conversations of the first records of the first file, each with its location.

    Raises:
        ProblemsFound: A data problem at the first record that cannot be read.
    """
    if dataset.path is None:
        return  # only the run reads the Hub
    file = resolve_data_files(dataset.path, tuple(RECORD_READERS))[0]
    records = RECORD_READERS[get_data_suffix(file)](file)
    for number, record in enumerate(islice(records, NUM_RECORDS_CHECKED), start=1):
        place = f"record {number} of '{file}'"
        for conversation in parse_conversations(dataset, record, place):
            yield place, conversation
