"""Rule about the text with which a chat template opens a reply."""

from collections.abc import Iterator
from importlib import import_module

from titanrun.components.data.chat_config import ChatDatasetConfig, ConversationsConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import LIBRARY_TOKENIZERS
from titanrun.recipe.rules.tokenizer import list_missing_tokens

ASKED, REPLY = {"role": "user", "content": "word"}, {"role": "assistant", "content": "word"}
MAX_SHOWN_CHARACTERS = 20


@rule("reply-opening-has-its-tokens", level="environment")
def reply_opening_has_its_tokens(run: Recipe) -> Iterator[RuleViolation]:
    """Warn if a reply begins within a token that the opening of replies ends with.

    Generation begins with what the chat template writes for add_generation_prompt. If it ends with
    a space, most tokenizers join that with the first word of a reply in training, and a model is
    asked to go on after tokens that it never saw. Write the space into the reply's part of the
    template instead.
    """
    for place, dataset in get_all_datasets(run):
        tokenizer = run.tokenizer
        if (
            place[0] != "training"
            or not isinstance(dataset, ConversationsConfig | ChatDatasetConfig | RepliesConfig)
            or not isinstance(tokenizer, TokenizerConfig)
            or not str(type(tokenizer).builds).startswith(LIBRARY_TOKENIZERS)
            # named-template-has-tokens reports it
            or list_missing_tokens(tokenizer)
        ):
            continue
        try:
            opening = find_joined_opening(tokenizer)
        except (ProblemsFound, OSError, ValueError):
            continue  # other rules report it
        if opening is not None:
            yield RuleViolation(
                f"the chat template opens a reply with '{opening[-MAX_SHOWN_CHARACTERS:]}', whose "
                "end is part of the reply's first token in training: generation goes on after "
                "other tokens",
                (("tokenizer", "chat_template"), place, ("tokenizer",)),
                hint="end add_generation_prompt without white space, and write it before the "
                "content of replies",
                severity="warning",
                section=place,
            )


def find_joined_opening(tokenizer: TokenizerConfig) -> str | None:
    """Return the last line of the opening of a reply if its tokens are others in training.

    Return None if they are the same, or if a conversation does not begin with the opening.
    """
    # jinja and the library are imported only if there are conversations
    templates = import_module("titanrun.components.tokenizers.chat_template")
    template = templates.load_chat_template(tokenizer)
    opening = template.render([ASKED], add_generation_prompt=True)
    whole = template.render([ASKED, REPLY])
    if not whole.startswith(opening):
        return None
    encoder = import_module(LIBRARY_TOKENIZERS).open_tokenizer(tokenizer)
    asked, trained = encoder.encode_batch([opening, whole], add_bos=False, add_eos=False)
    if list(trained[: len(asked)]) == list(asked):
        return None
    return str(opening.splitlines()[-1])
