"""Rules about conversations: what keeps them apart in a row, and whether template and files fit them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from titanrun.components.data.chat_layouts import LAYOUTS, Message, value_of
from titanrun.components.data.columns import (
    columns_of,
    records_of_csv,
    records_of_json,
    records_of_jsonl,
)
from titanrun.components.data.config import (
    ChatDatasetConfig,
    ConversationsConfig,
    PreferenceDatasetConfig,
)
from titanrun.components.data.pair_layouts import pair_in
from titanrun.components.data.source_files import ending, find_files
from titanrun.components.evaluation.config import ExactMatchTaskConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.vocabulary import chat_template
from titanrun.config.counted import counted
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.attention import FLAVOR, MASK, attention_of
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import sources

Spoken: TypeAlias = ChatDatasetConfig | PreferenceDatasetConfig
# the layouts that each column is read in
IN_LISTS, IN_TWO_COLUMNS = ("messages", "sharegpt"), ("prompt_completion",)
READ_IN = {
    "column": IN_LISTS,
    "turn_weights": IN_LISTS,
    "prompt_column": IN_TWO_COLUMNS,
    "completion_column": IN_TWO_COLUMNS,
}


@rule("packing-needs-document-mask")
def packing_needs_document_mask(run: Recipe) -> Iterator[Finding]:
    """Conversations and documents that share a row must not see each other: packing needs model.attention.mask block_causal."""
    attention = attention_of(run)
    for place, dataset in sources(run):
        shares_rows = dataset.restarts_positions and getattr(dataset, "packing", None) is not None
        if shares_rows and (attention is None or attention.mask != "block_causal"):
            noun = "conversations" if isinstance(dataset, ConversationsConfig) else "documents"
            message = f"packed {noun} would see each other: attention goes back to the beginning of the row"
            help = (
                "set model.attention.mask: block_causal"
                if attention
                else "remove packing: the model attends to whole rows only"
            )
            yield Finding(message, ((*place, "packing"), place, MASK, FLAVOR), help=help)


@rule("sft-needs-conversations")
def sft_needs_conversations(run: Recipe) -> Iterator[Finding]:
    """kind: sft says that conversations are learned: training.dataset must hold some, or kind be pretrain."""
    if run.kind == "sft" and not isinstance(run.training.dataset, ConversationsConfig):
        message = f"kind is sft, and dataset '{run.training.dataset.name}' has no conversations"
        yield Finding(
            message,
            (("kind",), ("training", "dataset")),
            help="take tiny_chat or chat, or kind: pretrain",
        )


@rule("columns-fit-layout")
def columns_fit_layout(run: Recipe) -> Iterator[Finding]:
    """Each layout of conversations reads columns of its own: one that it does not read has no effect."""
    for place, dataset in sources(run):
        if not isinstance(dataset, ChatDatasetConfig):
            continue
        for name, layouts in READ_IN.items():
            if getattr(dataset, name) is not None and dataset.layout not in layouts:
                message = f"{name} has no effect in layout {dataset.layout}"
                places = ((*place, name), (*place, "layout"))
                yield Finding(
                    message,
                    places,
                    help=f"it is read in layout {' and '.join(layouts)}; else remove it",
                    code="no-effect",
                )


@rule("chat-has-template", level="environment")
def chat_has_template(run: Recipe) -> Iterator[Finding]:
    """Conversations, pairs of them too, are put into words by a chat template: the tokenizer's own, or a file that the dataset's template
    names.
    """
    for place, dataset in sources(run):
        named = getattr(dataset, "template", None)
        is_spoken = isinstance(dataset, ConversationsConfig | PreferenceDatasetConfig)
        if not is_spoken or named is not None or not isinstance(run.tokenizer, TokenizerConfig):
            continue
        try:
            chat_template(run.tokenizer.folder)
        except ProblemsFound as error:
            for problem in error.problems:
                elsewhere = (
                    f", or name a file as {path_text((*place, 'template'))}"
                    if hasattr(dataset, "template")
                    else ""
                )
                yield Finding(
                    problem.message,
                    (place, ("tokenizer",)),
                    help=f"{problem.help}{elsewhere}",
                    code="data",
                )


@rule("first-conversation-fits", level="environment")
def first_conversation_fits(run: Recipe) -> Iterator[Finding]:
    """The first record of the first file must be a conversation in the layout that the recipe names, or a pair of them, with the columns
    it names.
    """
    for place, dataset in sources(run):
        if not isinstance(dataset, Spoken):
            continue
        try:
            file = find_files(dataset.path, tuple(RECORDS))[0]
            record = next(RECORDS[ending(file)](file), None)
            if record is not None:
                conversations_in(dataset, record, f"the first record of '{file}'")
            # of what is not read here, the columns are known
            for column, field in wanted(dataset) if ending(file) == ".parquet" else ():
                value_of(
                    dict.fromkeys(columns_of(file) or [column]), column, f"'{file}'", field=field
                )
        except ProblemsFound as error:
            for problem in error.problems:
                if problem.path != ("path",) or "first record" in problem.message:
                    yield Finding(
                        problem.message,
                        ((*place, *problem.path), place),
                        help=problem.help,
                        code="data",
                        section=place,
                    )


@rule("turn-weights-are-there", level="environment")
def turn_weights_are_there(run: Recipe) -> Iterator[Finding]:
    """Some message must have the key that turn_weights names, or the run ends when it has read all: none in the first hundred records of
    the first file is a warning."""
    for place, dataset in sources(run):
        key = getattr(dataset, "turn_weights", None)
        if not isinstance(dataset, ChatDatasetConfig) or key is None:
            continue
        try:
            files = find_files(dataset.path, tuple(RECORDS))
            records = list(islice(RECORDS[ending(files[0])](files[0]), LOOKED_AT))
            messages = [
                message
                for record in records
                for message in conversations_in(dataset, record, "")[0]
            ]
        except ProblemsFound:
            continue  # another rule says so
        if messages and not any(key in message for message in messages):
            names = dict.fromkeys(
                name for message in messages for name in message if name not in ("role", "content")
            )
            close = get_close_matches(key, names, n=1)
            help = (
                f"did you mean '{close[0]}'?"
                if close
                else "name the key that holds weights, or none"
            )
            message = f"of the {counted(len(messages), 'message')} at the beginning of '{files[0]}' none has a '{key}'"
            yield Finding(
                message,
                ((*place, "turn_weights"), place),
                help=help,
                code="data",
                severity="warning",
                section=place,
            )


@rule("template-has-words", level="environment")
def template_has_words(run: Recipe) -> Iterator[Finding]:
    """The chat template must have words for every role in the first hundred records of the first file, and give back what is learned of
    them: take another template, or leave such conversations out.
    """
    for place, dataset in sources(run):
        if not isinstance(dataset, Spoken) or not isinstance(run.tokenizer, TokenizerConfig):
            continue
        asked_only = isinstance(task_at(run, place), ExactMatchTaskConfig)
        for problem in misfits(dataset, run.tokenizer.folder, is_learned=not asked_only):
            places = ((*place, *problem.path), place, ("tokenizer",))
            yield Finding(problem.message, places, help=problem.help, code="data", section=place)


def conversations_in(
    dataset: Spoken, record: Mapping[str, Any], place: str
) -> Sequence[list[Message]]:
    """The conversation of a record, or both of a pair. Raises a data problem."""
    if isinstance(dataset, PreferenceDatasetConfig):
        return pair_in(dataset, record, place)
    return [LAYOUTS[dataset.layout](record, dataset.columns(), place)]


def wanted(dataset: Spoken) -> Sequence[tuple[str, str]]:
    """The columns that every record must have, each with the field that names it."""
    if isinstance(dataset, PreferenceDatasetConfig):
        return (dataset.chosen_column, "chosen_column"), (
            dataset.rejected_column,
            "rejected_column",
        )
    named = dataset.columns()
    if dataset.layout == "alpaca":
        return ("instruction", "layout"), ("output", "layout")
    if dataset.layout == "prompt_completion":
        return (named.prompt, "prompt_column"), (named.completion, "completion_column")
    return ((named.messages, "column"),)


def task_at(run: Recipe, place: DataPath) -> object:
    """The task of `evaluation` whose dataset is at `place`; None where it is no task's."""
    return run.evaluation.tasks[int(place[2])] if place[:2] == ("evaluation", "tasks") else None


def misfits(dataset: Spoken, folder: Path, *, is_learned: bool) -> Sequence[Problem]:
    """What a run would say first of the conversations that are looked at; nothing where another rule says that they cannot be read."""
    # jinja is imported only where there are conversations
    templates, learned = map(
        import_module,
        ("titanrun.components.tokenizers.chat_template", "titanrun.components.data.learned"),
    )
    try:
        template = templates.chosen_template(dataset.template, folder)
        file = find_files(dataset.path, tuple(RECORDS))[0]
    except ProblemsFound as found:
        return [
            problem
            for problem in found.problems
            if problem.path == ("template",) and Path(dataset.template or "").is_file()
        ]
    for number, record in enumerate(islice(RECORDS[ending(file)](file), LOOKED_AT), start=1):
        place = f"record {number} of '{file}'"
        try:
            conversations = conversations_in(dataset, record, place)
        except ProblemsFound as found:
            return found.problems if number > 1 else ()
        try:
            for messages in conversations:
                templates.check_words(template, messages, place)
                if isinstance(dataset, PreferenceDatasetConfig):
                    learned.last_reply(template, messages, place)
                elif is_learned:
                    learned.spoken(dataset, template, messages, place)
        except ProblemsFound as found:
            return found.problems
    return ()


def nothing_read(file: Path) -> Iterator[Mapping[str, Any]]:
    """Nothing: parquet is opened by the run only, through a library that takes long to import."""
    return iter(())


LOOKED_AT = 100
"""Conversations that are put into words before a run."""
RECORDS: dict[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    ".jsonl": records_of_jsonl,
    ".json": records_of_json,
    ".csv": records_of_csv,
    ".parquet": nothing_read,
}
