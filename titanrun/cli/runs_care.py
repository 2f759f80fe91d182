"""`titanrun runs tag|rm|archive`: mark runs, remove them, and move them out of sight."""

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.voice import note
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.ledger.entry import read_entry, read_tags
from titanrun.ledger.index import ARCHIVE
from titanrun.ledger.live import ACTIVE, here_now, live_state
from titanrun.ledger.side_by_side import run_folder
from titanrun.recipe.run_files import TAGS, write_json

EXAMPLES = """  titanrun runs tag runs/first baseline paper
  titanrun runs tag runs/first paper --remove
  titanrun runs tag runs/first                              which it has
  titanrun runs rm runs/first                               what would be removed
  titanrun runs rm runs/first runs/second --yes
  titanrun runs archive runs/first
  titanrun runs archive runs/.archive/first --restore"""
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]*")
MIB = 1024**2


def tag(arguments: list[str]) -> int:
    """Add tags to a run, or take them away, and print those it has."""
    parser = Parser(
        "runs tag",
        f"Add tags to a run, or with --remove take them away; they stand in its {TAGS}.",
        EXAMPLES,
    )
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "tags", metavar="tag", nargs="*", help="letters, digits and ._:/+-; none: only print them"
    )
    parser.add_argument("--remove", action="store_true", help="take the tags away")
    options = parser.parse_intermixed_args(arguments)
    folder = run_folder(options.run)
    for word in options.tags:
        if not TAG.fullmatch(word):
            raise fail(
                "usage",
                f"'{word}' is no tag",
                help="use letters, digits and ._:/+-, a letter or a digit first",
            )
    before = read_tags(folder)
    kept = [word for word in before if word not in options.tags]
    after = (
        kept
        if options.remove
        else [*before, *(word for word in dict.fromkeys(options.tags) if word not in before)]
    )
    missing = [word for word in options.tags if options.remove and word not in before]
    if missing:
        raise fail(
            "usage",
            f"'{options.run}' has no tag '{missing[0]}'",
            help=f"it has {', '.join(before) or 'none'}",
        )
    if tuple(after) != before:
        write_json(folder / TAGS, {"tags": after})
    for word in after:
        print(word)
    return 0


def remove(arguments: list[str]) -> int:
    """Remove run directories; without --yes only say what would go."""
    parser = Parser(
        "runs rm",
        "Remove run directories with their checkpoints, for ever. Runs that are running are refused.",
        EXAMPLES,
    )
    parser.add_argument("runs", metavar="run", nargs="+", help="run directories")
    parser.add_argument(
        "--yes", action="store_true", help="do it; without it only what would be removed is listed"
    )
    options = parser.parse_args(arguments)
    folders = [run_folder(named) for named in dict.fromkeys(options.runs)]
    refuse_in_use(folders)
    for folder in folders:
        print(f"{folder}  {size_of(folder) / MIB:.1f} MiB")
        if options.yes:
            put_away(folder)
    if not options.yes:
        note(options, "nothing was removed; --yes does it")
    return 0


def archive(arguments: list[str]) -> int:
    """Move run directories out of sight, or back."""
    summary = (
        f"Move run directories into the folder {ARCHIVE} beside them, where runs ls does not look unless --archived is given. They can be "
        "resumed, exported and compared there as before. Runs that are running are refused."
    )
    parser = Parser("runs archive", summary, EXAMPLES)
    parser.add_argument(
        "runs", metavar="run", nargs="+", help=f"run directories; with --restore those in {ARCHIVE}"
    )
    parser.add_argument("--restore", action="store_true", help="move them back to where they were")
    options = parser.parse_args(arguments)
    folders = [run_folder(named).resolve() for named in dict.fromkeys(options.runs)]
    refuse_in_use(folders)
    targets = [place_for(folder, is_restored=options.restore) for folder in folders]
    for folder, target in zip(folders, targets, strict=True):
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        print(target)
    return 0


def place_for(folder: Path, *, is_restored: bool) -> Path:
    """Where a run is moved to. Raises ProblemsFound where it is there already, or something else is."""
    if is_restored == (folder.parent.name != ARCHIVE):
        raise fail(
            "usage",
            f"'{folder}' is {'not ' if is_restored else ''}in the archive",
            help="titanrun runs ls --archived lists what is",
        )
    target = (
        folder.parent.parent / folder.name if is_restored else folder.parent / ARCHIVE / folder.name
    )
    if target.exists():
        raise fail(
            "file", f"'{target}' exists and is never written over", help="rename one of the two"
        )
    return target


def refuse_in_use(folders: Sequence[Path]) -> None:
    """Raises where one of them may be running: nothing is done to the others then; a stale one may be alive on another machine."""
    here = here_now()
    states = [live_state(read_entry(folder), here) for folder in folders]
    alive = [
        Problem("conflict", f"'{folder}' is {state}", rule="run-in-use", help="stop it first")
        for folder, state in zip(folders, states, strict=True)
        if state in (*ACTIVE, "stale")
    ]
    if alive:
        raise ProblemsFound(alive)


def put_away(folder: Path) -> None:
    """Remove a folder; it has another name first, so that an interruption leaves no half of a run."""
    if folder.is_symlink():
        folder.unlink()
        return
    whole = folder.resolve()
    doomed = whole.with_name(f".{whole.name}.removed-{time.time_ns()}")
    whole.rename(doomed)
    shutil.rmtree(doomed)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
