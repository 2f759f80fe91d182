"""Rules about data and tokenizer, and what must exist before a run starts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from titanrun.components.checkpoints.addresses import is_address
from titanrun.components.data.config import DatasetConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.vocabulary import vocabulary_size
from titanrun.config.base import nested
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.tree import path_text
from titanrun.recipe.installed import is_installed
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("text-needs-tokenizer")
def text_needs_tokenizer(run: Recipe) -> Iterator[Finding]:
    """A dataset of text needs a tokenizer: name one, or set model.hf_assets_path to a folder that has one."""
    for place, dataset in placed_datasets(run):
        if run.tokenizer is None and dataset.needs_tokenizer:
            yield Finding(
                f"dataset '{dataset.name}' is text and there is no tokenizer",
                (place, ("tokenizer",), ("model", "hf_assets_path")),
                help="set tokenizer: {name: huggingface, path: ...}, or model.hf_assets_path",
            )


@rule("validation-needs-dataset")
def validation_needs_dataset(run: Recipe) -> Iterator[Finding]:
    """Validation needs held-out data of its own; only the tiny corpus brings it along."""
    if run.validation.enable and run.validation.dataset is None:
        paths = (("validation", "enable"), ("validation", "dataset"))
        yield Finding("validation is on and has no dataset", paths, help="set validation.dataset")


@rule("held-out-sets-have-names-of-their-own")
def held_out_sets_have_names_of_their_own(run: Recipe) -> Iterator[Finding]:
    """The loss of a held-out set is logged under its id: two sets cannot have the same."""
    seen: dict[str, int] = {}
    for number, held_out in enumerate(run.validation.further if run.validation.enable else ()):
        if held_out.id in seen:
            places = tuple(
                ("validation", "further", index, "id") for index in (number, seen[held_out.id])
            )
            yield Finding(
                f"two held-out sets are called '{held_out.id}'",
                places,
                help="give each an id of its own",
            )
        seen.setdefault(held_out.id, number)


@rule("paths-exist", level="environment")
def paths_exist(run: Recipe) -> Iterator[Finding]:
    """Every input that a recipe names by path must be there before the run starts."""
    inputs: list[tuple[DataPath, str | None]] = [
        (("model", "hf_assets_path"), run.model.hf_assets_path),
        (("checkpoint", "initial_load_path"), run.checkpoint.initial_load_path),
    ]
    for name in ("path", "template"):
        inputs += [
            ((*place, name), getattr(dataset, name, None)) for place, dataset in sources(run)
        ]
    for index, task in enumerate(run.evaluation.tasks if run.kind == "eval" else ()):
        place = ("evaluation", "tasks", index)
        inputs += [((*place, "path"), getattr(task, "path", None))]
    for path, written in inputs:
        # whether a store has it, only the run asks: validate needs no network
        if written is not None and not is_address(written) and not exists(written):
            code: Literal["data", "file"] = (
                "data" if "dataset" in path or path[0] == "evaluation" else "file"
            )
            yield Finding(
                f"there is no '{written}'",
                (path,),
                help=f"paths are relative to {Path.cwd()}",
                code=code,
            )


@rule("tokenizer-fits-vocabulary", level="environment")
def tokenizer_fits_vocabulary(run: Recipe) -> Iterator[Finding]:
    """Every token id needs a row of the embedding: the tokenizer may not have more entries than model.vocab_size."""
    if not isinstance(run.tokenizer, TokenizerConfig) or run.model.vocab_size is None:
        return
    folder, assets = run.tokenizer.folder, run.model.hf_assets_path
    places: tuple[DataPath, ...] = (
        ("tokenizer", "path"),
        *([("model", "hf_assets_path")] if str(folder) == assets else []),
    )
    if len(places) > 1 and not folder.exists():
        return  # paths-exist says so
    try:
        entries = vocabulary_size(folder)
    except ProblemsFound as error:
        for problem in error.problems:
            yield Finding(problem.message, places, help=problem.help, code="data")
        return
    if entries > int(run.model.vocab_size):
        yield Finding(
            f"the tokenizer has {entries} entries, the model's vocabulary {run.model.vocab_size}",
            (("tokenizer",), ("model", "vocab_size")),
            help=f"set model.vocab_size to at least {entries}, or take the model's own tokenizer",
        )


@rule("extras-installed", level="environment")
def extras_installed(run: Recipe) -> Iterator[Finding]:
    """Some components need a package that titanrun does not install by itself."""
    for path, config in nested(run):
        extra = getattr(config, "extra", None)
        package = getattr(config, "package", None) or extra
        if package is not None and not is_installed(package):
            message = f"{path_text(path)} needs the package '{package}', which is not installed"
            yield Finding(message, (path,), help=f'pip install "titanrun[{extra}]"', code="usage")


def datasets(run: Recipe) -> list[tuple[str, DatasetConfig]]:
    """The sections that read data, each with its dataset."""
    found: list[tuple[str, DatasetConfig]] = [("training", run.training.dataset)]
    if run.validation.enable and isinstance(run.validation.dataset, DatasetConfig):
        found.append(("validation", run.validation.dataset))
    return found


def placed_datasets(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Every dataset that gives rows, with its place: those of the sections, and further held-out ones."""
    further = run.validation.further if run.validation.enable else ()
    return [
        *(((section, "dataset"), dataset) for section, dataset in datasets(run)),
        *(
            (("validation", "further", number, "dataset"), held_out.dataset)
            for number, held_out in enumerate(further)
        ),
    ]


def measured_datasets(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """What a run of kind eval measures by, with its place; of data that its tasks take over, the place where they are written."""
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


def sources(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Every dataset that is read, with its place: what mixtures are made of as well."""
    return [
        (path, config)
        for place, dataset in dict([*placed_datasets(run), *measured_datasets(run)]).items()
        for path, config in nested(dataset, place)
        if isinstance(config, DatasetConfig)
    ]


def exists(written: str) -> bool:
    """Whether a path or a glob names something."""
    if Path(written).exists():
        return True
    pattern = Path(written)
    anchor = Path(pattern.anchor) if pattern.anchor else Path()
    return any(character in written for character in "*?[") and any(
        True for _ in anchor.glob(str(pattern.relative_to(pattern.anchor)))
    )
