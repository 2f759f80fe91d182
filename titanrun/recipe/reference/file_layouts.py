"""Files of one path whose records have several layouts, as sources of a mixture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.spec.data_files import find_data_files, resolve_data_files
from titanrun.components.data.validators_config import find_common_glob
from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.data_settings import build_data_settings, list_suffixes

MAX_COMPARED_FILES = 20
"""Files of a path that are looked at first: the others too if these have several layouts."""
OF_MIXTURE = ("shuffle", "repeat")
"""Settings of a mixture itself."""
ONE_DATASET = (
    "replies that are compared come from one dataset, not from a mixture: write the records of all "
    "datasets, with the same columns, to files of one folder, and name it in training.dataset.path"
)

Layout = Mapping[str, Any]
"""Settings of a dataset with which it reads a file."""


def split_layouts(dataset: str, data: str) -> list[str]:
    """Return the files of each layout where those of a path have several, else the path.

    Args:
        dataset: Name of the dataset.
        data: File, folder or glob, or a dataset of the Hub.
    """
    try:
        files = resolve_data_files(data, list_suffixes(dataset))
        for looked_at in (files[:MAX_COMPARED_FILES], files):
            layouts = {
                file: build_data_settings(dataset, str(file))[0] | {"path": ""}
                for file in looked_at
            }
            groups = group_by_layout(layouts)
            if len(groups) == 1:
                return [data]
    except ProblemsFound:
        return [data]  # what is wrong is told with the recipe
    return [name for files, _ in groups for name in join_file_names(files)]


def group_by_layout(layouts: Mapping[Path, Layout]) -> list[tuple[list[Path], Layout]]:
    """Return the files of each layout, in their order."""
    groups: list[tuple[list[Path], Layout]] = []
    for file, layout in layouts.items():
        same = next((files for files, of_files in groups if of_files == layout), None)
        if same is None:
            groups.append(([file], layout))
        else:
            same.append(file)
    return groups


def join_file_names(files: Sequence[str | Path]) -> list[str]:
    """Return one glob in place of several files that it alone matches, else their names."""
    named = list(map(str, files))
    pattern = find_common_glob(named)
    if pattern is not None and {*find_data_files(Path(pattern))} == {*map(Path, named)}:
        return [pattern]
    return list(dict.fromkeys(named))


def build_layout_datasets(
    dataset: ChatDatasetConfig, layouts: Mapping[Path, Layout]
) -> list[dict[str, Any]]:
    """Return the settings of a dataset for each layout of its files, as sources of a mixture.

    Args:
        dataset: Dataset of all files.
        layouts: Settings to change for each file.
    """
    return [
        {"name": dataset.name, "path": name, **list_changed_settings(dataset, layout)}
        for files, layout in group_by_layout(layouts)
        for name in join_file_names(files)
    ]


def list_changed_settings(dataset: ChatDatasetConfig, layout: Layout) -> dict[str, Any]:
    """Return the settings of a source with a layout that are not the default."""
    defaults = dump_config(ChatDatasetConfig(path=dataset.path))
    return {
        name: value
        for name, value in {**dump_config(dataset), **layout}.items()
        if value not in (None, defaults[name]) and name not in OF_MIXTURE
    }
