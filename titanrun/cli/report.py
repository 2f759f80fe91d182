"""`titanrun report`: write an HTML report of runs as one shareable page."""

from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_note
from titanrun.cli.run_groups import find_single_runs
from titanrun.config.problems import problem_error
from titanrun.recipe.rundir.run_files import RUN_JSON
from titanrun.report.run_report import build_run_report

SUMMARY = (
    "Write an HTML report of a run: its results, curves, settings with their sources, checkpoints, "
    "lineage and the logged problems. Several runs share their charts, with what differs between "
    "them first. The page needs no network and no scripts. It leaves out absolute paths, host "
    "names and the list of packages."
)
EXAMPLES = """  titanrun report runs/first  writes runs/first/report.html
  titanrun report runs/first runs/second -o both.html"""
REPORT = "report.html"


def run(arguments: list[str]) -> int:
    """Write the page."""
    parser = CommandParser("report", SUMMARY, EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"output file; default: {REPORT} in the directory of the run, or for several in the "
        "working directory",
    )
    parser.add_argument(
        "--with-paths", action="store_true", help="include absolute paths, hosts and packages"
    )
    parser.add_argument("--with-log", action="store_true", help="include the logs")
    options = parser.parse_args(arguments)
    found = find_single_runs("report", list(dict.fromkeys(options.runs)), takes_many=True)
    folders = list(map(check_run_folder, found))
    out = Path(options.output or (folders[0] / REPORT if len(folders) == 1 else REPORT))
    text = build_run_report(folders, has_paths=options.with_paths, has_log=options.with_log)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise problem_error(
            "file",
            f"cannot write '{out}': {(error.strerror or str(error)).lower()}",
            hint="set the file with -o",
        ) from None
    print_note(options, f"wrote {out}")
    return 0


def check_run_folder(found: str) -> Path:
    """Return the path of a run directory. Raise ProblemsFound if it is not one."""
    folder = Path(found)
    if not (folder / RUN_JSON).is_file():
        raise problem_error(
            "file",
            f"'{folder}' is not a run directory: it has no {RUN_JSON}",
            hint="pass a folder written by titanrun train",
        )
    return folder
