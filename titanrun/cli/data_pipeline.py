"""`titanrun data build --pipeline`: write a recipe's tokenization as a program for datatrove."""

import hashlib
import os
import shlex
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.new_file import write_new_file
from titanrun.cli.pipeline_source import EXECUTORS, READERS, format_pipeline
from titanrun.components.data.config import DocumentsConfig, TextDatasetConfig
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.remote_path import is_remote_path
from titanrun.components.data.spec.tokenizer_digest import name_tokenizer_file
from titanrun.config.nested_problems import nest_problems
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, Problem, ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.config.units import duration_to_seconds
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.validation_levels import attach_recipe_origin

DATASET: DataPath = ("training", "dataset")
MAX_TASKS = 100_000
"""datatrove numbers the files of tasks with five digits, and files are read in sorted order."""
BUILD_PARTS = "use titanrun data build --part on each machine"


def add_pipeline_options(parser: CommandParser) -> None:
    """Add the options of a pipeline."""
    parser.add_argument(
        "--pipeline",
        metavar="FILE",
        help="tokenize nothing; write a new Python file that does it with datatrove",
    )
    parser.add_argument(
        "--executor",
        choices=tuple(EXECUTORS),
        help="what runs the tasks of the pipeline (local)",
    )
    parser.add_argument(
        "--tasks", type=int, metavar="N", help="tasks of the pipeline; each reads whole files (1)"
    )


def check_pipeline_options(options: Namespace) -> None:
    """Raise a usage problem if options of a pipeline stand without it, or beside others."""
    if options.pipeline is None:
        lone = "--executor" if options.executor else "--tasks"
        if options.executor or options.tasks is not None:
            raise problem_error(
                "usage", f"{lone} is an option of a pipeline", hint="add --pipeline out.py"
            )
        return
    others = {
        "--workers": options.workers is not None,
        "--part": options.part is not None,
        "--finish": options.finish,
        "--repair": options.repair,
    }
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise problem_error(
            "usage",
            f"--pipeline tokenizes nothing, so that {given[0]} has no meaning",
            hint=f"omit {given[0]}; --tasks divides the work of a pipeline",
        )
    target = Path(options.pipeline).absolute()
    if target.suffix != ".py":
        raise problem_error(
            "usage", f"'{options.pipeline}' is not a Python file", hint="use a name such as out.py"
        )
    check_pipeline_path(target, options.executor)


def check_pipeline_path(target: Path, executor: str | None) -> None:
    """Raise a usage problem if datatrove would misread the paths beside the pipeline."""
    text = str(target)
    hint = "write it into another folder"
    if not text.isprintable() or "::" in text:
        message = f"datatrove would misread the path {text!r}"
        raise problem_error("usage", message, hint=hint)
    # it writes the path into a batch script, without quotes
    if executor == "slurm" and shlex.quote(text) != text:
        message = f"'{text}' has characters that the batch script of datatrove does not quote"
        raise problem_error("usage", message, hint=hint)


def write_pipeline(
    options: Namespace, resolved: Resolved, query: Callable[[], Mapping[str, Any]]
) -> tuple[Path, Path]:
    """Write the pipeline and the file of its tokenizer, and return both.

    Args:
        options: Options of the command.
        resolved: The recipe.
        query: Returns the tokenizer in the library's JSON, and the tokens that it adds.

    Raises:
        ProblemsFound: The recipe cannot be written as a pipeline, or a file exists.
    """
    recipe, executor = resolved.run, options.executor or "local"
    try:
        files = find_pipeline_files(recipe, executor)
    except ProblemsFound as found:
        raise ProblemsFound(
            [attach_recipe_origin(problem, resolved) for problem in found.problems]
        ) from None
    tasks = 1 if options.tasks is None else options.tasks
    if not 1 <= tasks <= min(len(files), MAX_TASKS):
        raise problem_error(
            "usage",
            f"--tasks is {tasks}, and the dataset has {pluralize(len(files), 'file')}",
            hint=f"use 1 to {min(len(files), MAX_TASKS)}: a task reads whole files",
        )
    target = Path(options.pipeline).absolute()
    if target.exists():
        raise problem_error("file", f"'{options.pipeline}' already exists", hint="use a new file")
    answer = query()
    tokenizer = target.with_name(name_tokenizer_file(target.stem, answer["fingerprint"]))
    content = answer["tokenizer"].encode()
    values = {
        "RECIPE": options.recipe,
        **build_input_values(recipe, files),
        "TOKENIZER": str(tokenizer),
        "TOKENIZER_SHA256": hashlib.sha256(content).hexdigest(),
        "BEGIN": answer["begin"],
        "END": answer["end"],
        "TASKS": tasks,
        **build_output_values(target, recipe, executor),
    }
    if not (tokenizer.is_file() and tokenizer.read_bytes() == content):
        write_new_file(tokenizer, answer["tokenizer"])
    suffix = get_data_suffix(files[0])
    write_new_file(target, format_pipeline(values, suffix=suffix, executor=executor))
    return target, tokenizer


def iter_pipeline_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each setting that a pipeline cannot express."""
    config = recipe.training.dataset
    if not isinstance(config, TextDatasetConfig):
        yield Problem(
            "usage",
            f"a pipeline reads files of text, not dataset '{config.name}'",
            DATASET,
            hint="write a pipeline of each text dataset, and mix their tokens"
            if config.name == "mixture"
            else "use titanrun data build without --pipeline",
        )
        return
    if is_remote_path(config.path):
        yield Problem(
            "usage",
            f"a pipeline reads local files, not '{config.path}'",
            (*DATASET, "path"),
            hint="fetch the files, or mount them",
        )
    yield from iter_document_problems(config)
    if recipe.validation.holdout is not None:
        yield Problem(
            "usage",
            "a pipeline cannot hold out documents",
            ("validation", "holdout"),
            hint="remove it, and set validation.dataset for the run",
        )


def iter_document_problems(config: DocumentsConfig) -> Iterator[Problem]:
    """Yield a problem for each choice of documents that a pipeline cannot express."""
    for name, is_set, what in (
        ("format", config.format is not None, "combine columns"),
        ("filters", bool(config.filters), "apply the recipe's filters"),
        ("max_documents", config.max_documents is not None, "count documents over all tasks"),
        ("bad_records", config.bad_records == "skip", "count skipped records over all tasks"),
    ):
        if is_set:
            yield Problem("usage", f"a pipeline cannot {what}", (*DATASET, name), hint=BUILD_PARTS)


def iter_executor_problems(recipe: Recipe, executor: str) -> Iterator[Problem]:
    """Yield what the recipe does not say and the executor needs."""
    if executor != "slurm":
        return
    launch = recipe.launch
    if not isinstance(launch, SlurmLaunchConfig):
        yield Problem(
            "usage",
            f"--executor slurm needs the partition, and launch is '{launch.name}'",
            ("launch",),
            hint="add launch.name=slurm launch.partition=NAME launch.time_limit=12h",
        )
        return
    for name, value in (("partition", launch.partition), ("time_limit", launch.time_limit)):
        if value is None:
            hint = f"add launch.{name}"
            message = f"--executor slurm needs launch.{name}"
            yield Problem("usage", message, ("launch", name), hint=hint)


def find_pipeline_files(recipe: Recipe, executor: str) -> list[Path]:
    """Return the files of the dataset, absolute, as the recipe orders them.

    Raises:
        ProblemsFound: The recipe cannot be written as a pipeline.
    """
    problems = [*iter_pipeline_problems(recipe), *iter_executor_problems(recipe, executor)]
    if problems:
        raise ProblemsFound(problems)
    config = recipe.training.dataset
    assert isinstance(config, TextDatasetConfig), "checked above"
    with nest_problems(DATASET):
        files = [file.absolute() for file in resolve_data_files(config.path)]
        check_pipeline_files(files, config.path)
    return files


def check_pipeline_files(files: Sequence[Path], path: str) -> None:
    """Raise a usage problem if datatrove cannot read the files at `path` together."""
    suffixes = sorted({get_data_suffix(file) for file in files})
    if len(suffixes) > 1:
        found = format_word_list(suffixes, conjunction="and")
        raise problem_error(
            "usage",
            f"'{path}' has files of several formats: {found}",
            path=("path",),
            hint="write a pipeline of each format",
        )
    if suffixes[0] not in READERS:
        raise problem_error(
            "usage",
            f"a pipeline does not read {suffixes[0]} files",
            path=("path",),
            hint=f"convert them to {format_word_list(sorted(READERS), conjunction='or')}",
        )
    if any("::" in str(file) for file in files):
        raise problem_error(
            "usage",
            f"'{path}' has '::' in its path, which datatrove misreads",
            path=("path",),
            hint="rename it",
        )


def build_input_values(recipe: Recipe, files: list[Path]) -> dict[str, Any]:
    """Return the folder of all files, their names in it, and the column of their texts."""
    config = recipe.training.dataset
    assert isinstance(config, TextDatasetConfig), "checked before"
    folder = Path(os.path.commonpath([file.parent for file in files]))
    return {
        "FOLDER": str(folder),
        "FILES": [file.relative_to(folder).as_posix() for file in files],
        "COLUMN": config.column,
    }


def build_output_values(target: Path, recipe: Recipe, executor: str) -> dict[str, Any]:
    """Return where the tasks write, and what datatrove asks of Slurm jobs."""
    values = {
        "OUTPUT": str(target.with_name(f"{target.stem}_tokens")),
        "LOGS": str(target.with_name(f"{target.stem}_logs")),
        "SEED": recipe.debug.seed,
    }
    if executor != "slurm":
        return values
    launch = recipe.launch
    assert isinstance(launch, SlurmLaunchConfig) and launch.time_limit is not None, "checked before"
    minutes = -int(-duration_to_seconds(launch.time_limit) // 60)
    return {
        **values,
        "PARTITION": launch.partition,
        "TIME": f"{minutes // 60:02}:{minutes % 60:02}:00",
        "QOS": launch.qos,
        "SBATCH_ARGS": {} if launch.account is None else {"account": launch.account},
    }
