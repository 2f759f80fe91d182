"""Rules about tokenizers: chat templates and the tokens at which generation stops."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.named_templates import (
    TEMPLATE_TOKENS,
    is_template_file,
    suggest_template_names,
)
from titanrun.components.tokenizers.spec.tokenizer_files import load_chat_template_text, load_vocab
from titanrun.config.problems import ProblemsFound
from titanrun.config.suggest import format_word_list
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.model_folder import find_missing_or_run_problem
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule


@rule("chat-has-template", level="environment")
def chat_has_template(run: Recipe) -> Iterator[RuleViolation]:
    """Require a chat template for conversations and preference pairs.

    A chat template turns them into text: the one in the tokenizer's folder, or the one that
    tokenizer.chat_template names. The templates in the hint are those that ship with titanrun and
    whose tokens the tokenizer has, the best guess first.
    """
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, TokenizerConfig):
        return
    if tokenizer.chat_template is not None:
        yield from check_template_file(tokenizer.chat_template)
        return
    is_of_model = tokenizer.folder == Path(run.model.hf_assets_path or "")
    if is_of_model and find_missing_or_run_problem(str(tokenizer.folder)) is not None:
        return  # paths-exist reports it
    if not tokenizer.folder.exists() and run.model.vocab_size is not None:
        return  # tokenizer-fits-vocabulary reports it
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ConversationsConfig) and not dataset.compares:
            continue
        try:
            load_chat_template_text(tokenizer.folder)
        except ProblemsFound as error:
            for problem in error.problems:
                yield RuleViolation(
                    problem.message,
                    (place, ("tokenizer",)),
                    hint=f"{problem.hint}{suggest_template(tokenizer.folder)}",
                    code="data",
                )


def check_template_file(written: str) -> Iterator[RuleViolation]:
    """Yield the problem of a template that is no file; names were checked before."""
    if is_template_file(written) and not Path(written).is_file():
        yield RuleViolation(
            f"file not found: '{written}'",
            (("tokenizer", "chat_template"),),
            hint="name a file with a Jinja template, or one that ships with titanrun: "
            f"{format_word_list(sorted(TEMPLATE_TOKENS))}",
            code="data",
        )


def suggest_template(folder: Path) -> str:
    """Return the end of a hint: templates whose tokens the tokenizer in a folder has."""
    try:
        names = suggest_template_names(load_vocab(folder))
    except ProblemsFound:
        return ""
    others = f" ({format_word_list(names[1:])} fit too)" if names[1:] else ""
    return f", or set tokenizer.chat_template: {names[0]}{others}, or name a file"


@rule("named-template-has-tokens", level="environment")
def named_template_has_tokens(run: Recipe) -> Iterator[RuleViolation]:
    """Require the tokens that a named chat template writes.

    Without them the tokenizer splits the marks of a turn into several tokens, which the model does
    not know, and generation does not stop at them.
    """
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, TokenizerConfig):
        return
    missing = list_missing_tokens(tokenizer)
    if missing:
        known = load_vocab(tokenizer.folder)
        words = format_word_list([f"'{token}'" for token in missing], conjunction="and")
        yield RuleViolation(
            f"the chat template {tokenizer.chat_template} writes {words}, which the tokenizer "
            "does not have",
            (("tokenizer", "chat_template"), ("tokenizer",)),
            hint=suggest_other_template(run, tokenizer, suggest_template_names(known)),
        )


def list_missing_tokens(tokenizer: TokenizerConfig) -> list[str]:
    """Return the tokens that a named chat template writes and the tokenizer does not have."""
    needed = TEMPLATE_TOKENS.get(tokenizer.chat_template or "", ())
    try:
        known = load_vocab(tokenizer.folder) if needed else {}
    except ProblemsFound:
        return []  # another rule reports it
    return [token for token in needed if token not in known]


def suggest_other_template(run: Recipe, tokenizer: TokenizerConfig, names: Sequence[str]) -> str:
    """Return the hint to use the template in a folder, or a named one that its tokens fit."""
    fitting = f"templates that fit: {format_word_list(names)}"
    try:
        load_chat_template_text(tokenizer.folder)
    except ProblemsFound:
        return fitting
    what = "section tokenizer" if has_only_template(run, tokenizer) else "chat_template"
    return f"remove {what}, since the tokenizer's folder has a template of its own; or {fitting}"


def has_only_template(run: Recipe, tokenizer: TokenizerConfig) -> bool:
    """Return whether the section says no more than its template: without that it is empty."""
    decided = ("name", "path", "chat_template")
    return tokenizer.folder == Path(run.model.hf_assets_path or "") and all(
        getattr(tokenizer, name) == field.default
        for name, field in type(tokenizer).model_fields.items()
        if name not in decided
    )


@rule("stop-tokens-are-tokens", level="environment")
def stop_tokens_are_tokens(run: Recipe) -> Iterator[RuleViolation]:
    """Require each of the tokenizer's stop_tokens to be one token.

    Generation compares single tokens: a text of several is never reached.
    """
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, TokenizerConfig) or not tokenizer.stop_tokens:
        return
    try:
        known = load_vocab(tokenizer.folder)
    except ProblemsFound:
        return  # another rule reports it
    for number, token in enumerate(tokenizer.stop_tokens):
        if token not in known:
            yield RuleViolation(
                f"'{token}' is no token of the tokenizer, so generation does not stop there",
                (("tokenizer", "stop_tokens", number), ("tokenizer",)),
                hint="write a token of its vocabulary as it stands there",
            )
