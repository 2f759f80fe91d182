"""Rules about conversations: document masks, columns, chat templates and files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from titanrun.components.data.chat_config import (
    ChatDatasetConfig,
    ConversationsConfig,
)
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.chat_formats import (
    Conversation,
    parse_conversation,
)
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.file_columns import (
    iter_valid_csv_records,
    iter_valid_json_records,
    iter_valid_jsonl_records,
)
from titanrun.components.data.spec.preference_formats import parse_replies
from titanrun.components.evaluation.config import ExactMatchTaskConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.base import Config, iter_nested_configs
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.suggest import format_word_list
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.multi_stage import LOADED_WEIGHTS, PRETRAIN_KIND
from titanrun.recipe.rules.attention import FLAVOR, MASK, find_attention_config
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule

ConversationDataset: TypeAlias = ChatDatasetConfig | RepliesConfig
# layouts that read each column
IN_LISTS, IN_TWO_COLUMNS = ("messages", "sharegpt"), ("prompt_completion",)
LAYOUTS_BY_FIELD = {
    "column": IN_LISTS,
    "turn_weights": IN_LISTS,
    "prompt_column": IN_TWO_COLUMNS,
    "completion_column": IN_TWO_COLUMNS,
}


@rule("packing-needs-document-mask")
def packing_needs_document_mask(run: Recipe) -> Iterator[RuleViolation]:
    """Require a document mask for packed sequences.

    Conversations and documents that share a sequence must not attend to each other: packing needs
    model.attention.mask block_causal.
    """
    attention = find_attention_config(run)
    for place, dataset in get_all_datasets(run):
        shares_sequences = (
            dataset.restarts_positions and getattr(dataset, "packing", None) is not None
        )
        if shares_sequences and (attention is None or attention.mask != "block_causal"):
            noun = "conversations" if isinstance(dataset, ConversationsConfig) else "documents"
            message = (
                f"packed {noun} would attend to each other: attention goes back to the "
                "start of the sequence"
            )
            hint = (
                "set model.attention.mask: block_causal"
                if attention
                else "remove packing: the model has no document mask"
            )
            yield RuleViolation(message, ((*place, "packing"), place, MASK, FLAVOR), hint=hint)


@rule("sft-needs-conversations")
def sft_needs_conversations(run: Recipe) -> Iterator[RuleViolation]:
    """Require a conversation dataset if kind is sft.

    kind: sft trains on conversations. Use a training.dataset that has some, perhaps in a mixture,
    or kind: pretrain.
    """
    if run.kind == "sft" and not has_conversations(run.training.dataset):
        message = (
            "kind sft needs a conversation dataset, but dataset "
            f"'{run.training.dataset.name}' has no conversations"
        )
        kind = format_word_list(list_pretrain_settings(run), conjunction="and")
        hint = f"use tiny_chat or chat, or {kind}"
        if run.training.dataset.compares is not None:
            hint = f"set {kind}, for a loss that compares replies"
        yield RuleViolation(message, (("kind",), ("training", "dataset")), hint=hint)


def list_pretrain_settings(run: Recipe) -> list[str]:
    """Return the settings with which a run becomes kind pretrain, with the weights it has now.

    Kind pretrain does not load the weights of the model's folder by itself.
    """
    start = run.checkpoint.initial_load_path
    loads_by_kind = start is not None and start == run.model.hf_assets_path
    return [PRETRAIN_KIND, *([LOADED_WEIGHTS] if loads_by_kind else [])]


def has_conversations(dataset: Config) -> bool:
    """Return whether a dataset, or a source of a mixture, has conversations."""
    return any(isinstance(found, ConversationsConfig) for _, found in iter_nested_configs(dataset))


@rule("columns-fit-layout")
def columns_fit_layout(run: Recipe) -> Iterator[RuleViolation]:
    """Reject column settings that the layout does not read.

    Each layout of conversations reads its own columns: the others have no effect.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ChatDatasetConfig):
            continue
        for name, layouts in LAYOUTS_BY_FIELD.items():
            if getattr(dataset, name) is not None and dataset.layout not in layouts:
                message = f"{name} has no effect in layout {dataset.layout}"
                places = ((*place, name), (*place, "layout"))
                yield RuleViolation(
                    message,
                    places,
                    hint=f"use layout {' or '.join(layouts)}, or remove it",
                    code="no-effect",
                )


@rule("turn-weights-are-there", level="environment")
def turn_weights_are_there(run: Recipe) -> Iterator[RuleViolation]:
    """Require a message with the key that turn_weights names.

    Without one the run ends after reading all records. A warning is shown if the first hundred
    records of the first file have none.
    """
    for place, dataset in get_all_datasets(run):
        key = getattr(dataset, "turn_weights", None)
        if not isinstance(dataset, ChatDatasetConfig) or key is None or dataset.path is None:
            continue
        try:
            files = resolve_data_files(dataset.path, tuple(RECORD_READERS))
            records = list(
                islice(RECORD_READERS[get_data_suffix(files[0])](files[0]), NUM_RECORDS_CHECKED)
            )
            messages = [
                message
                for record in records
                for message in parse_conversations(dataset, record, "")[0].messages
            ]
        except ProblemsFound:
            continue  # another rule reports this
        if messages and not any(key in message for message in messages):
            names = dict.fromkeys(
                name for message in messages for name in message if name not in ("role", "content")
            )
            close = get_close_matches(key, names, n=1)
            hint = (
                f"did you mean '{close[0]}'?"
                if close
                else "use the key that holds weights, or null"
            )
            message = (
                f"the first {pluralize(len(messages), 'message')} of '{files[0]}' have no '{key}'"
            )
            yield RuleViolation(
                message,
                ((*place, "turn_weights"), place),
                hint=hint,
                code="data",
                severity="warning",
                section=place,
            )


@rule("template-has-words", level="environment")
def template_has_words(run: Recipe) -> Iterator[RuleViolation]:
    """Require the chat template to render the first hundred records of the first file.

    It must write text for every role, and reproduce the trained part of the messages. Use another
    template, or remove such conversations.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ConversationDataset) or not isinstance(
            run.tokenizer, TokenizerConfig
        ):
            continue
        is_prompt_only = isinstance(find_task(run, place), ExactMatchTaskConfig)
        for problem in find_template_problems(
            dataset, run.tokenizer, is_learned=not is_prompt_only
        ):
            nested = problem.path if problem.is_absolute else (*place, *problem.path)
            places = (nested, place, ("tokenizer",))
            yield RuleViolation(
                problem.message, places, hint=problem.hint, code="data", section=place
            )


def parse_conversations(
    dataset: ConversationDataset, record: Mapping[str, Any], place: str
) -> Sequence[Conversation]:
    """Return the conversation of a record, or both conversations of a pair.

    Raises:
        ProblemsFound: With code `data` if the record does not match the layout.
    """
    if isinstance(dataset, RepliesConfig):
        return parse_replies(dataset, record, place)
    return [parse_conversation(dataset.layout, record, dataset.get_columns(), place)]


def get_conversation_columns(dataset: ConversationDataset) -> Sequence[tuple[str, str]]:
    """Return the columns that every record must have, each with the field that names it."""
    if isinstance(dataset, RepliesConfig):
        return dataset.get_reply_columns()
    named = dataset.get_columns()
    if dataset.layout == "alpaca":
        return ("instruction", "layout"), ("output", "layout")
    if dataset.layout == "prompt_completion":
        return (named.prompt, "prompt_column"), (named.completion, "completion_column")
    return ((named.messages, "column"),)


def find_task(run: Recipe, place: DataPath) -> object:
    """Return the evaluation task whose dataset is at `place`, None if there is no such task."""
    return run.evaluation.tasks[int(place[2])] if place[:2] == ("evaluation", "tasks") else None


def find_template_problems(
    dataset: ConversationDataset, tokenizer: TokenizerConfig, *, is_learned: bool
) -> Sequence[Problem]:
    """Return the problems a run would report first for the checked conversations.

    Return nothing if another rule reports that they cannot be read.
    """
    if dataset.path is None:
        return ()  # only the run reads the Hub
    # jinja is imported only if there are conversations
    templates, fitting, learned = map(
        import_module,
        (
            "titanrun.components.tokenizers.chat_template",
            "titanrun.components.tokenizers.fitting_template",
            "titanrun.components.data.loss_mask",
        ),
    )
    try:
        template = templates.load_chat_template(tokenizer)
        file = resolve_data_files(dataset.path, tuple(RECORD_READERS))[0]
    except ProblemsFound as found:
        return [
            problem
            for problem in found.problems
            if problem.is_absolute and tokenizer.chat_template is not None
        ]
    for number, record in enumerate(
        islice(RECORD_READERS[get_data_suffix(file)](file), NUM_RECORDS_CHECKED), start=1
    ):
        place = f"record {number} of '{file}'"
        try:
            conversations = parse_conversations(dataset, record, place)
        except ProblemsFound:
            return ()
        try:
            for conversation in conversations:
                bound, messages = template.with_tools(conversation.tools), conversation.messages
                fitting.check_template_or_suggest(
                    bound, conversation, place, folder=tokenizer.folder
                )
                if isinstance(dataset, RepliesConfig):
                    learned.mask_all_but_last_reply(bound, messages, place)
                elif is_learned:
                    masked = learned.build_loss_mask(dataset, bound, conversation, place)
                    if not masked.spans:
                        raise learned.nothing_learned_error(masked)
        except ProblemsFound as found:
            return found.problems
    return ()


def iter_no_records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Return no records.

    Only the run opens parquet files, through a library that takes long to import.
    """
    return iter(())


NUM_RECORDS_CHECKED = 100
"""Number of records that are rendered with the chat template before a run."""
RECORD_READERS: dict[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    ".jsonl": iter_valid_jsonl_records,
    ".json": iter_valid_json_records,
    ".csv": iter_valid_csv_records,
    ".parquet": iter_no_records,
}
