"""Tokenization of a recipe's text files in units, by several processes or machines."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from titanrun.components.data.config import DatasetConfig, FilesConfig, MixtureDatasetConfig
from titanrun.components.data.document_split import HeldOutDataTooSmall, Holdout
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.data.token_units import UnitBuild
from titanrun.components.data.unit_process import UnitTask
from titanrun.components.data.unit_processes import build_units
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.base import iter_nested_configs
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath, problem_error
from titanrun.recipe.recipe import Recipe
from titanrun.worker.build.build_data import (
    get_cache_folder,
    get_holdout,
    list_held_out_sets,
    move_holdout_problems,
)

TRAINING: DataPath = ("training", "dataset")


@dataclass(frozen=True, slots=True)
class Part:
    """Part of the units: those whose index modulo `count` is that of `number`."""

    number: int = 1
    count: int = 1

    def has(self, unit: int) -> bool:
        """Return whether the unit with this index is in the part."""
        return unit % self.count == self.number % self.count


def tokenize_units(
    recipe: Recipe, tokenizer: Tokenizer | None, part: Part, *, num_workers: int
) -> int:
    """Tokenize the units of a part, and return how many it has."""
    if tokenizer is None:
        return 0
    tasks, number = [], 0
    for path, build in iter_unit_builds(recipe):
        with nest_problems(path):
            spans = build.list_spans()
        # an index that one process built has no units, but they have numbers
        is_complete = build.is_complete(tokenizer)
        for span in spans:
            if part.has(number) and not is_complete:
                tasks.append(UnitTask(path, build, span))
            number += 1
    with move_holdout_problems():
        build_units(tasks, tokenizer, num_workers=num_workers)
    return len(tasks)


def list_streamed_sections(recipe: Recipe) -> list[str]:
    """Return the sections whose data is a stream, which has no units."""
    held_out = list_held_out_sets(recipe) if recipe.validation.enable else []
    sections = [("training", recipe.training.dataset)]
    sections += [(one.section, one.dataset) for one in held_out]
    return [section for section, dataset in sections if dataset.is_streamed]


def finish_units(recipe: Recipe, tokenizer: Tokenizer | None) -> None:
    """Write the indexes of all datasets that are tokenized in units.

    Raises:
        ProblemsFound: A data problem if units are missing.
    """
    if tokenizer is None:
        return
    for path, build in iter_unit_builds(recipe):
        if build.is_complete(tokenizer):
            continue
        with move_holdout_problems(), nest_problems(path):
            try:
                build.finish(tokenizer)
            except HeldOutDataTooSmall:
                # whether a source of a mixture needs held-out documents is known when it is opened
                if build.holdout is None or not build.holdout.is_part:
                    raise


def iter_unit_builds(recipe: Recipe) -> Iterator[tuple[DataPath, UnitBuild]]:
    """Yield the datasets that are tokenized in units: text files that are not streamed.

    Raises:
        ProblemsFound: A conflict if a number of documents is held out, not a share.
    """
    folder = get_cache_folder(recipe, Path())
    for root, root_path, holdout in list_data_sides(recipe):
        for path, config in iter_nested_configs(root, root_path):
            if not isinstance(config, FilesConfig) or config.is_streamed:
                continue
            if config.load_builder() is not build_text_dataset:
                continue
            if holdout is not None and holdout.size >= 1:
                raise problem_error(
                    "conflict",
                    f"validation.holdout {holdout.size:g} is a number of documents, which only a "
                    "single process counts",
                    path=("validation", "holdout"),
                    hint="set a share, such as 0.001, or leave --workers and --part out",
                )
            is_part = isinstance(root, MixtureDatasetConfig)
            side = None if holdout is None else replace(holdout, is_part=is_part)
            yield path, UnitBuild(config, side, folder)


def list_data_sides(recipe: Recipe) -> list[tuple[DatasetConfig, DataPath, Holdout | None]]:
    """Return the datasets that a run reads, with their paths and sides of the split."""
    held_out = list_held_out_sets(recipe) if recipe.validation.enable else []
    return [
        (recipe.training.dataset, TRAINING, get_holdout(recipe)),
        *((one.dataset, one.path, one.holdout) for one in held_out),
    ]
