"""Rule about the first records of files of conversations, and about files of several layouts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.spec.chat_formats import get_column_value, text_for_messages_error
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.file_columns import find_file_columns
from titanrun.components.evaluation.config import ExactMatchTaskConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.base import change_fields, dump_config
from titanrun.config.near_path import join_in_braces
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.registry import validate_choice
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.type_introspection import find_value
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference.data_columns import read_columns
from titanrun.recipe.reference.data_settings import (
    guess_changes,
    suggest_columns,
    suggest_for_text_files,
)
from titanrun.recipe.reference.file_layouts import (
    OF_MIXTURE,
    Layout,
    build_layout_datasets,
    group_by_layout,
)
from titanrun.recipe.reference.source_weights import weigh_sources
from titanrun.recipe.rules.chat import (
    RECORD_READERS,
    ConversationDataset,
    find_task,
    get_conversation_columns,
    parse_conversations,
)
from titanrun.recipe.rules.data import get_all_datasets, matches_existing_path
from titanrun.recipe.rules.epoch_length import count_training_sequences
from titanrun.recipe.rules.holdout import TRAINING_DATASET, advise_equal_share
from titanrun.recipe.rules.registry import RuleViolation, rule

MAX_FILES_CHECKED = 20
"""Files of a dataset whose first record is read before a run, the first ones."""
MAX_SOURCES_WRITTEN = 6
"""Sources that a hint writes in full."""
ONE_LAYOUT = "write the records of all files with the same columns, or name files of one layout"


@rule("first-conversation-fits", level="environment")
def first_conversation_fits(run: Recipe) -> Iterator[RuleViolation]:
    """Require the first record of each of the first files to match the layout.

    It must be a conversation, a pair of them or one with a label, in the layout that the recipe
    names and with the columns it names. Files of several layouts are sources of a mixture.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ConversationDataset) or dataset.path is None:
            continue
        try:
            files = resolve_data_files(dataset.path, tuple(RECORD_READERS))
        except ProblemsFound as found:
            yield from find_file_violations(run, place, dataset, found.problems)
            continue
        failing = [file for file in files[:MAX_FILES_CHECKED] if find_problems(dataset, file)]
        if not failing:
            continue
        layouts = {file: find_layout(dataset, file) for file in files}
        told = next((file for file in failing if layouts[file] is None), failing[0])
        hint = suggest_for_layouts(run, place, dataset, layouts, told)
        for problem in find_problems(dataset, told):
            yield RuleViolation(
                problem.message,
                ((*place, *problem.path), place),
                hint=hint or improve_column_hint(problem, dataset, told),
                code="data",
                section=place,
            )


def find_file_violations(
    run: Recipe, place: DataPath, dataset: ConversationDataset, problems: Sequence[Problem]
) -> Iterator[RuleViolation]:
    """Yield why no file of an existing path is read, with what reads such files."""
    named = str(dataset.path)
    if not matches_existing_path(named):
        return  # paths-exist reports it
    for problem in problems:
        yield RuleViolation(
            problem.message,
            ((*place, *problem.path), place),
            hint=suggest_for_text_files(named, run.model.hf_assets_path) or problem.hint,
            code="data",
            section=place,
        )


def find_problems(dataset: ConversationDataset, file: Path) -> Sequence[Problem]:
    """Return why the first record of a file does not match the layout, nothing if it does."""
    try:
        check_first_record(dataset, file)
    except ProblemsFound as found:
        return found.problems
    return ()


def check_first_record(dataset: ConversationDataset, file: Path) -> None:
    """Raise ProblemsFound if the first record of a file does not match the layout.

    Only the columns of parquet files are checked: their records are not read here.
    """
    record = next(RECORD_READERS[get_data_suffix(file)](file), None)
    if record is not None:
        parse_conversations(dataset, record, f"the first record of '{file}'")
    if get_data_suffix(file) != ".parquet":
        return
    for column, field in get_conversation_columns(dataset):
        known = dict.fromkeys(find_file_columns(file) or [column])
        get_column_value(known, column, f"'{file}'", field=field)
        content = read_columns(file).get(column)
        if field == "column" and content is not None and content.is_text:
            raise text_for_messages_error(f"'{file}'", column)


def improve_column_hint(problem: Problem, dataset: ConversationDataset, file: Path) -> str | None:
    """Return the hint of a problem, of one about a layout that with the settings for the file.

    Misspellings of columns have hints of their own.
    """
    hint = problem.hint or ""
    if problem.path == ("path",) or hint.startswith("did you mean"):
        return problem.hint
    return suggest_columns(dataset, file) or problem.hint


def find_layout(dataset: ConversationDataset, file: Path) -> Layout | None:
    """Return the settings to change for a dataset to read a file, None if none let it."""
    return guess_changes(dataset, file) if find_problems(dataset, file) else {}


def suggest_for_layouts(
    run: Recipe,
    place: DataPath,
    dataset: ConversationDataset,
    layouts: Mapping[Path, Layout | None],
    told: Path,
) -> str | None:
    """Return what to do with files of several layouts, None if all have the same.

    Args:
        run: Recipe.
        place: Path of the dataset.
        dataset: Dataset that reads the files.
        layouts: Settings to change for each file, None for files that the dataset cannot read.
        told: File that the message is about.
    """
    known = {file: layout for file, layout in layouts.items() if layout is not None}
    if not known:
        return None
    groups = group_by_layout(known)
    if len(groups) == 1:
        return suggest_fitting_files(*groups[0], told) if len(known) < len(layouts) else None
    if not isinstance(dataset, ChatDatasetConfig) or isinstance(
        find_task(run, place), ExactMatchTaskConfig
    ):
        return ONE_LAYOUT
    return suggest_layout_mixture(run, place, dataset, known)


def suggest_fitting_files(files: Sequence[Path], layout: Layout, told: Path) -> str:
    """Return how to name only the files that a dataset can read."""
    changes = "".join(f", and set {name}: {to_flow_yaml(value)}" for name, value in layout.items())
    written = join_in_braces(list(map(str, files)))
    if written is None:
        return f"move '{told}' and others like it to another folder{changes}"
    return f"write path: {to_flow_yaml(written)}, which leaves out others{changes}"


def suggest_layout_mixture(
    run: Recipe, place: DataPath, dataset: ChatDatasetConfig, layouts: Mapping[Path, Layout]
) -> str:
    """Return the mixture that reads files of several layouts, or the sources of that around it."""
    datasets = build_layout_datasets(dataset, layouts)
    weights = weigh_datasets(run, datasets)
    is_source = place[-3:-2] == ("sources",)
    scale = get_source_weight(run, place) / sum(weights) if is_source else 1
    sources = [
        {"dataset": one, "weight": float(f"{scale * weight:.3g}") if is_source else weight}
        for one, weight in zip(datasets, weights, strict=True)
    ]
    if is_source:
        shown = ", ".join(map(to_flow_yaml, sources))
        return f"the files have several layouts: write the source as {shown}"
    outer = {name: getattr(dataset, name) for name in OF_MIXTURE if not getattr(dataset, name)}
    mixture = {"name": "mixture", **outer, "sources": sources}
    if len(sources) > MAX_SOURCES_WRITTEN:
        shown = to_flow_yaml({"dataset": datasets[0]})
        return (
            "move the files of each layout to a folder of their own, and make each folder a source "
            f"of a mixture, as in {{name: mixture, sources: [{shown}, ...]}}"
        )
    hint = f"the files have several layouts: write the dataset as {to_flow_yaml(mixture)}"
    held = run.validation.holdout
    if place != TRAINING_DATASET or held is None or held < 1:
        return hint
    mixed = change_fields(run.training, dataset=validate_choice(DatasetConfig, mixture))
    return f"{hint}, and {advise_equal_share(change_fields(run, training=mixed), int(held))}"


def get_source_weight(run: Recipe, place: DataPath) -> float:
    """Return the weight of the source of a mixture whose dataset is at a path."""
    sources = find_value(dump_config(run), place[:-2])
    return float(sources[place[-2]]["weight"])


def weigh_datasets(run: Recipe, datasets: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return weights of sources by size: sequences of small files, else sizes or records."""
    if isinstance(run.tokenizer, TokenizerConfig):
        with suppress(ProblemsFound, OSError, ValueError):
            # other rules and the run name what is wrong with the data
            length = run.training.seq_len + 1
            counts = [
                count_training_sequences(
                    ChatDatasetConfig(**one), run.tokenizer, sample_length=length
                )
                for one in datasets
            ]
            known = [count for count in counts if count]
            if len(known) == len(counts):
                return known
    weights, _ = weigh_sources([{"dataset": one} for one in datasets])
    return weights or [1] * len(datasets)
