"""`titanrun runs tag|rm|archive`: tag, remove and archive runs."""

import shutil
import time
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_note
from titanrun.cli.run_argument import find_archived_run, find_run
from titanrun.cli.run_groups import check_no_groups
from titanrun.recipe.resolving.multi_stage import is_multi_stage_folder
from titanrun.recipe.rundir.run_files import TAGS
from titanrun.runs.run_archive import archive_run_folders, check_runs_not_in_use, list_runs_within
from titanrun.runs.run_comparison import get_run_folder
from titanrun.runs.run_index import ARCHIVE
from titanrun.runs.run_tags import change_tags

EXAMPLES = """  titanrun runs tag runs/first baseline paper
  titanrun runs tag runs/first paper --remove
  titanrun runs tag runs/first  print its tags
  titanrun runs rm runs/first   list what would be removed
  titanrun runs rm runs/first runs/second --yes
  titanrun runs archive runs/first
  titanrun runs archive runs/.archive/first --restore"""
MIB = 1024**2


def tag_run(arguments: list[str]) -> int:
    """Add or remove tags of a run, and print its tags."""
    parser = CommandParser(
        "runs tag",
        f"Add tags to a run, or remove them with --remove; they are stored in its {TAGS}.",
        EXAMPLES,
    )
    parser.add_argument("run", help="a run directory, or the folder of stages")
    parser.add_argument(
        "tags",
        metavar="tag",
        nargs="*",
        help="letters, digits and ._:/+-; without tags: only print them",
    )
    parser.add_argument("--remove", action="store_true", help="remove the tags")
    options = parser.parse_intermixed_args(arguments)
    check_no_groups("runs tag", [options.run], takes_stages=True)
    folders = list_runs_within(find_managed_folder(find_run(options.run, wants="change")))
    for folder in folders:
        changes = {"remove" if options.remove else "add": options.tags}
        for word in change_tags(folder, **changes):
            print(word if len(folders) == 1 else f"{folder}  {word}")
    return 0


def remove_runs(arguments: list[str]) -> int:
    """Remove run directories; without --yes only list them."""
    parser = CommandParser(
        "runs rm",
        "Remove run directories with their checkpoints permanently. Running runs are rejected.",
        EXAMPLES,
    )
    parser.add_argument(
        "runs", metavar="run", nargs="+", help="run directories, or folders of stages"
    )
    parser.add_argument(
        "--yes", action="store_true", help="remove them; without this they are only listed"
    )
    options = parser.parse_args(arguments)
    check_no_groups("runs rm", options.runs, takes_many=True, takes_stages=True)
    named = dict.fromkeys(find_run(word, wants="change") for word in options.runs)
    folders = [find_managed_folder(word) for word in named]
    check_runs_not_in_use(folders)
    for folder in folders:
        print(f"{folder}  {compute_folder_bytes(folder) / MIB:.1f} MiB")
        if options.yes:
            remove_run_folder(folder)
    if not options.yes:
        print_note(options, "nothing was removed; use --yes to remove")
    return 0


def archive_runs(arguments: list[str]) -> int:
    """Move run directories into the archive, or back."""
    summary = (
        f"Move run directories into the folder {ARCHIVE} next to them, which runs ls skips unless "
        "--archived is given. They can be resumed, exported and compared there as before. "
        "Running runs are rejected."
    )
    parser = CommandParser("runs archive", summary, EXAMPLES)
    parser.add_argument(
        "runs", metavar="run", nargs="+", help=f"run directories; with --restore those in {ARCHIVE}"
    )
    parser.add_argument(
        "--restore", action="store_true", help="move them back to their original folder"
    )
    options = parser.parse_args(arguments)
    if not options.restore:
        check_no_groups("runs archive", options.runs, takes_many=True, takes_stages=True)
    named = dict.fromkeys(
        find_archived_run(word) if options.restore else find_run(word, wants="change")
        for word in options.runs
    )
    folders = [find_managed_folder(word).resolve() for word in named]
    for target in archive_run_folders(folders, is_restored=options.restore):
        print(target)
    return 0


def find_managed_folder(named: str) -> Path:
    """Return a run directory, or the folder of the stages of a recipe, which stay together.

    Raises:
        ProblemsFound: it is neither.
    """
    folder = Path(named)
    return folder if is_multi_stage_folder(folder) else get_run_folder(named)


def remove_run_folder(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that an interruption leaves no partial run."""
    if folder.is_symlink():
        folder.unlink()
        return
    whole = folder.resolve()
    doomed = whole.with_name(f".{whole.name}.removed-{time.time_ns()}")
    whole.rename(doomed)
    shutil.rmtree(doomed)


def compute_folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
