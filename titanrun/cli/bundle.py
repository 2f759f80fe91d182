"""`titanrun bundle`: one file with what a run can be trained again from."""

from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.voice import detail, note
from titanrun.config.problems import fail
from titanrun.ledger.bundle import pack

SUMMARY = (
    "Pack what a run can be trained again from into one zip file: the resolved recipe with its origins, run.json (commit, machine, digests "
    "of data, tokenizer and plug-ins), the logged numbers, a lock of the packages, and the patch of uncommitted changes. Data and weights "
    "are not in it: their digests are. `titanrun reproduce FILE` trains it again and compares."
)
EXAMPLES = """  titanrun bundle runs/first
  titanrun bundle runs/first -o first.zip
  titanrun reproduce first.zip                   trains it again, and compares"""


def run(arguments: list[str]) -> int:
    """0: the bundle is written."""
    parser = Parser("bundle", SUMMARY, EXAMPLES)
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        help="the file; default: <run>.zip, beside the run; nothing is overwritten",
    )
    options = parser.parse_args(arguments)
    folder = Path(options.run)
    if not folder.is_dir():
        raise fail(
            "file", f"there is no folder '{folder}'", help="titanrun runs ls lists what there is"
        )
    out = (
        Path(options.output)
        if options.output
        else folder.resolve().parent / f"{folder.resolve().name}.zip"
    )
    files = pack(folder, out)
    for name, content in sorted(files.items()):
        detail(options, f"{name}: {len(content):,} bytes")
    note(options, f"wrote {out}")
    return 0
