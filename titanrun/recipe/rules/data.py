"""Rules about datasets, tokenizers and input paths."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import get_vocab_size
from titanrun.config.base import iter_nested_configs
from titanrun.config.near_path import (
    explain_missing_path,
    has_match,
    is_pattern,
    suggest_near_path,
)
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.hub_datasets import find_hub_dataset
from titanrun.recipe.resolving.model_folder import (
    MODEL_FOLDER,
    build_file_problem,
    find_missing_or_run_problem,
)
from titanrun.recipe.resolving.multi_stage import LOADED_WEIGHTS
from titanrun.recipe.rules.initial_adapters import INITIAL_LOAD
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rundir.checkpoint_lookup import needs_initial_weights
from titanrun.recipe.rundir.package_versions import is_installed

EMPTY_TOKENIZER = "remove tokenizer, which is empty: that of model.hf_assets_path is used then"


@rule("text-needs-tokenizer")
def text_needs_tokenizer(run: Recipe) -> Iterator[RuleViolation]:
    """Require a tokenizer for text datasets.

    Set tokenizer, or set model.hf_assets_path to a folder that has one.
    """
    for place, dataset in get_datasets_with_paths(run):
        if run.tokenizer is None and dataset.needs_tokenizer:
            yield RuleViolation(
                f"dataset '{dataset.name}' needs a tokenizer",
                (place, ("tokenizer",), ("model", "hf_assets_path")),
                hint=EMPTY_TOKENIZER
                if run.model.hf_assets_path is not None
                else suggest_tokenizer(dataset),
            )


def suggest_tokenizer(dataset: DatasetConfig) -> str:
    """Return what to write for a dataset of texts or conversations without a tokenizer."""
    hint = (
        "write tokenizer: tiny for a trial, or model.hf_assets_path: FOLDER for a model that "
        "titanrun download OWNER/NAME -o FOLDER fetched"
    )
    if not isinstance(dataset, ConversationsConfig) and not dataset.compares:
        return f"{hint}, or tokenizer: {{name: huggingface, path: FOLDER}}"
    return (
        f"{hint}, or tokenizer: {{name: huggingface, path: FOLDER, chat_template: NAME}} where the "
        "folder has no chat template of its own"
    )


@rule("validation-needs-dataset")
def validation_needs_dataset(run: Recipe) -> Iterator[RuleViolation]:
    """Require validation.dataset or validation.holdout if validation is enabled.

    Validation needs held-out data; only the tiny corpus includes some.
    """
    config = run.validation
    if config.enable and config.dataset is None and config.holdout is None:
        paths = (("validation", "enable"), ("validation", "dataset"))
        yield RuleViolation(
            "validation is enabled, but there is no held-out data",
            paths,
            hint="set validation.dataset, or validation.holdout: 0.05 to hold out 5% of the "
            "training documents",
        )


@rule("held-out-sets-have-names-of-their-own")
def held_out_sets_have_unique_names(run: Recipe) -> Iterator[RuleViolation]:
    """Require unique ids of held-out sets.

    The loss of a held-out set is logged under its id: two sets cannot have the same.
    """
    seen: dict[str, int] = {}
    for number, held_out in enumerate(run.validation.further if run.validation.enable else ()):
        if held_out.id in seen:
            places = tuple(
                ("validation", "further", index, "id") for index in (number, seen[held_out.id])
            )
            yield RuleViolation(
                f"two held-out sets have the id '{held_out.id}'",
                places,
                hint="use unique ids",
            )
        seen.setdefault(held_out.id, number)


@rule("paths-exist", level="environment")
def paths_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require every input path of the recipe to exist before the run starts.

    A run that resumes from a checkpoint with all weights does not need the one that it started
    from, unless it is compared with it.
    """
    begun_from = run.checkpoint.initial_load_path if needs_initial_weights(run) else None
    inputs: list[tuple[DataPath, str | None]] = [
        (MODEL_FOLDER, run.model.hf_assets_path),
        (INITIAL_LOAD, begun_from),
    ]
    hints = {
        (*place, "path"): dataset.missing_path_hint for place, dataset in get_all_datasets(run)
    }
    for name in ("path", "template"):
        inputs += [
            ((*place, name), getattr(dataset, name, None))
            for place, dataset in get_all_datasets(run)
        ]
    for index, task in enumerate(run.evaluation.tasks if run.kind == "eval" else ()):
        place = ("evaluation", "tasks", index)
        inputs += [((*place, "path"), getattr(task, "path", None))]
    for path, written in inputs:
        # remote-path-readable looks at addresses of streams, and the run into stores
        if written is None or is_storage_path(written):
            continue
        if path == MODEL_FOLDER:
            found = find_missing_or_run_problem(written, path)
            if found is not None:
                yield RuleViolation(found.message, (path,), hint=found.hint, code="file")
        elif path == INITIAL_LOAD and Path(written).is_file():
            yield describe_initial_file(run, written)
        elif not matches_existing_path(written):
            code: Literal["data", "file"] = (
                "data" if "dataset" in path or path[0] == "evaluation" else "file"
            )
            noun = "file" if code == "data" else "folder"
            known = hints.get(path)
            near = suggest_near_path(written) if known else None
            repository = find_hub_dataset(written) if "dataset" in path else None
            remote = f"a dataset of the Hub is named by repo: {repository}, in place of path"
            local = known or explain_missing_path(written)
            hint = near or (local if repository is None else remote)
            yield RuleViolation(f"{noun} not found: '{written}'", (path,), hint=hint, code=code)


def describe_initial_file(run: Recipe, named: str) -> RuleViolation:
    """Return the violation of a file of weights in the place of the folder that holds it."""
    found = build_file_problem(Path(named), INITIAL_LOAD)
    loads = "" if run.checkpoint.initial_load_in_hf else f", and set {LOADED_WEIGHTS}"
    return RuleViolation(found.message, (INITIAL_LOAD,), hint=f"{found.hint}{loads}", code="file")


@rule("tokenizer-fits-vocabulary", level="environment")
def tokenizer_fits_vocabulary(run: Recipe) -> Iterator[RuleViolation]:
    """Require the tokenizer to have at most model.vocab_size entries.

    Every token id needs a row of the embedding.
    """
    if not isinstance(run.tokenizer, TokenizerConfig) or run.model.vocab_size is None:
        return
    folder, assets = run.tokenizer.folder, run.model.hf_assets_path
    places: tuple[DataPath, ...] = (
        ("tokenizer", "path"),
        *([("model", "hf_assets_path")] if str(folder) == assets else []),
    )
    if len(places) > 1 and find_missing_or_run_problem(str(folder)) is not None:
        return  # paths-exist reports this
    try:
        entries = get_vocab_size(folder)
    except ProblemsFound as error:
        for problem in error.problems:
            yield RuleViolation(problem.message, places, hint=problem.hint, code="data")
        return
    if entries > int(run.model.vocab_size):
        yield RuleViolation(
            f"the tokenizer has {entries:,} entries, "
            f"but model.vocab_size is {run.model.vocab_size:,}",
            (("tokenizer",), ("model", "vocab_size")),
            hint=f"set model.vocab_size to at least {entries}, or use the model's tokenizer",
        )


@rule("extras-installed", level="environment")
def extras_installed(run: Recipe) -> Iterator[RuleViolation]:
    """Require the packages that components need to be installed.

    Some components need a package that titanrun does not install by default.
    """
    for path, config in iter_nested_configs(run):
        extra = getattr(config, "extra", None)
        package = getattr(config, "package", None) or extra
        if package is not None and not is_installed(package):
            message = f"{format_path(path)} needs the package '{package}', which is not installed"
            hint = getattr(config, "missing_wheel", None) or f'pip install "titanrun[{extra}]"'
            yield RuleViolation(message, (path,), hint=hint, code="usage")


def get_section_datasets(run: Recipe) -> list[tuple[str, DatasetConfig]]:
    """Return the sections that read data, each with its dataset."""
    found: list[tuple[str, DatasetConfig]] = [("training", run.training.dataset)]
    if run.validation.enable and isinstance(run.validation.dataset, DatasetConfig):
        found.append(("validation", run.validation.dataset))
    return found


def get_datasets_with_paths(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Return the datasets of the sections and of further held-out sets, with their paths."""
    further = run.validation.further if run.validation.enable else ()
    return [
        *(((section, "dataset"), dataset) for section, dataset in get_section_datasets(run)),
        *(
            (("validation", "further", number, "dataset"), held_out.dataset)
            for number, held_out in enumerate(further)
        ),
    ]


def get_evaluation_datasets(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Return the datasets that a run of kind eval evaluates, with their paths.

    The path is where the dataset is written: a task that uses validation.dataset has that path.
    """
    held_out: tuple[DataPath, object] = (("validation", "dataset"), run.validation.dataset)
    tasks = enumerate(run.evaluation.tasks)
    placed = [
        (("evaluation", "tasks", number, "dataset"), getattr(task, "dataset", None))
        for number, task in tasks
    ]
    measured = [
        held_out if dataset == held_out[1] else (place, dataset) for place, dataset in placed
    ] or [held_out]
    return [
        (place, dataset)
        for place, dataset in measured
        if run.kind == "eval" and isinstance(dataset, DatasetConfig)
    ]


def get_all_datasets(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Return every dataset that is read, with its path, including the sources of mixtures."""
    return [
        (path, config)
        for place, dataset in dict(
            [*get_datasets_with_paths(run), *get_evaluation_datasets(run)]
        ).items()
        for path, config in iter_nested_configs(dataset, place)
        if isinstance(config, DatasetConfig)
    ]


def matches_existing_path(written: str) -> bool:
    """Return whether a path or a glob pattern matches an existing file or folder."""
    return Path(written).exists() or (is_pattern(written) and has_match(written))
