"""Search of a folder for files, also behind links to folders."""

from collections.abc import Callable, Iterator
from pathlib import Path


def iter_folder_files(folder: Path, is_searched: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield the files at any depth of a folder, and links that lead nowhere.

    Links to folders are followed after all other folders, and a folder that several lead to is
    searched once: no file has two names, and a link to a folder around it does not go on forever.
    A folder that cannot be read is taken for an empty one.

    Args:
        folder: Where to search.
        is_searched: Returns whether a file or folder is included. May raise.
    """
    folders, links = [folder], list[Path]()
    searched: set[Path] = set()
    while folders or links:
        place = folders.pop() if folders else links.pop(0)
        if place.resolve() in searched:
            continue
        searched.add(place.resolve())
        for entry in filter(is_searched, list_by_name(place)):
            if is_file_or_dangling(entry):
                yield entry
            elif entry.is_dir():
                (links if entry.is_symlink() else folders).append(entry)


def list_by_name(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except PermissionError:
        return []


def is_file_or_dangling(path: Path) -> bool:
    """Return whether a path is a file, or a link that leads nowhere."""
    return path.is_file() or (path.is_symlink() and not path.exists())
