"""`titanrun bundle`: pack a run into one reproducible archive."""

from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_detail, print_note
from titanrun.cli.run_argument import find_run
from titanrun.config.problems import problem_error
from titanrun.runs.run_bundle import pack_bundle

SUMMARY = (
    "Pack everything needed to train a run again into one zip file. It holds the resolved recipe "
    "with its origins, run.json (commit, machine, digests of data, tokenizer and plug-ins), the "
    "logged metrics, a lock of the packages, and the patch of uncommitted changes. Data and "
    "weights are not included, only their digests. `titanrun reproduce FILE` trains it again and "
    "compares."
)
EXAMPLES = """  titanrun bundle runs/first
  titanrun bundle runs/first -o first.zip
  titanrun reproduce first.zip  train it again and compare"""


def run(arguments: list[str]) -> int:
    """Write the bundle and return 0."""
    parser = CommandParser("bundle", SUMMARY, EXAMPLES)
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        help="the archive; default: <run>.zip next to the run; never overwritten",
    )
    options = parser.parse_args(arguments)
    folder = Path(find_run(options.run))
    if not folder.is_dir():
        raise problem_error(
            "file", f"folder not found: '{folder}'", hint="run titanrun runs ls to list the runs"
        )
    out = (
        Path(options.output)
        if options.output
        else folder.resolve().parent / f"{folder.resolve().name}.zip"
    )
    files = pack_bundle(folder, out)
    for name, content in sorted(files.items()):
        print_detail(options, f"{name}: {len(content):,} bytes")
    print_note(options, f"wrote {out}")
    return 0
