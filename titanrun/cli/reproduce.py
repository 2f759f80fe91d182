"""`titanrun reproduce`: trains a run once more from its resolved recipe and compares what it says step by step."""

from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from titanrun.cli.arguments import Parser
from titanrun.cli.resume import loudness, setting
from titanrun.cli.voice import note
from titanrun.components.metrics.jsonl import read_metrics
from titanrun.config.counted import counted
from titanrun.config.problems import fail
from titanrun.config.secrets import values_to_hide
from titanrun.launch.again import train_until
from titanrun.launch.ask_worker import machine_here
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.environment import environment, joined_environment, ranks_around
from titanrun.ledger.bundle import unpack
from titanrun.recipe.recorded import Recorded, recorded
from titanrun.recipe.reproduced import GRAD_NORM_FACTOR, TOLERANCE, against_bits, first_difference
from titanrun.recipe.run_dir import METRICS, RUN_JSON, new_folder, read_json
from titanrun.recipe.run_record import environment_record
from titanrun.recipe.surroundings import Here, differences

SUMMARY = (
    "Train a run once more from its resolved recipe, in a new folder, and compare losses and gradient norms step by step. "
    "What differs here from what run.json records is said first: packages, code, commit, data, tokenizer, device, driver.\n\n"
    "A checkpoint is reproduced from the beginning of its run (its first weights, or the checkpoint it was forked from) up to its step. "
    "Numbers are compared bit by bit on the CPU and with debug.deterministic, where device, torch, libraries, threads and ranks are the "
    f"same; else within {TOLERANCE:g} of each other, relatively, gradient norms within {GRAD_NORM_FACTOR * TOLERANCE:g}."
)
EXAMPLES = """  titanrun reproduce runs/first
  titanrun reproduce runs/first --steps 20                    its first 20 steps
  titanrun reproduce runs/first/checkpoint/step-40            up to there
  titanrun reproduce first.zip                                what titanrun bundle wrote
  titanrun reproduce runs/first --tolerance 0                 bit by bit, whatever differs
  titanrun reproduce runs/first --quiet                       exit code: 0 equal, 1 differs, 2 nothing to reproduce"""
EXIT_DIFFERS = 1
EXIT_PREEMPTED = 75


def run(arguments: list[str]) -> int:
    """0: the same numbers; 1: others; 2: nothing to reproduce; the exit code of the training where that ends before."""
    parser = Parser("reproduce", SUMMARY, EXAMPLES)
    parser.add_argument(
        "place",
        metavar="run|checkpoint|bundle",
        help="a run directory, a checkpoint in one, or a bundle of one",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="stop after step N; default: the last one that was logged",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="the new run directory; default: <run>-reproduced-<time>, beside the run",
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="R", help="accept a relative difference of R; 0: none"
    )
    parser.takes_trust()
    options = parser.parse_args(arguments)
    refuse_senseless(parser, options)
    refuse_among_ranks()
    with TemporaryDirectory(prefix="titanrun-") as folder:
        return reproduced(options, Path(folder))


def reproduced(options: Namespace, folder: Path) -> int:
    """Trains again, and compares; a bundle is unpacked into `folder`."""
    place = Path(options.place)
    is_bundle = place.is_file()
    before = recorded(unpack(place, folder) if is_bundle else place, options.steps)
    beside = place.resolve().with_suffix("") if is_bundle else before.folder.resolve()
    out = new_run_directory(beside, options.out)
    note(
        options,
        f"reproducing {place if is_bundle else before.folder} up to step {before.last_step}, in {out}",
    )
    for line in differences(before.starts, here(before)) or [
        "nothing differs here from what is recorded"
    ]:
        print(line, flush=True)
    code = train_until(
        before.last_step,
        [*again(before, out), *loudness(options)],
        folder=working_directory(before),
    )
    return verdict(before, out, code, options)


def refuse_senseless(parser: Parser, options: Namespace) -> None:
    """Stop at numbers that mean nothing."""
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps counts steps, and {options.steps} is none")
    if options.tolerance is not None and not 0 <= options.tolerance < 1:
        parser.error(f"--tolerance is a share from 0 to 1, not {options.tolerance:g}")


def refuse_among_ranks() -> None:
    """Stop where torchrun or srun started several of this: what is trained here would join them."""
    _, ranks = ranks_around(joined_environment())
    if ranks > 1:
        message = f"this is one of {ranks} ranks that torchrun or srun started, and reproduce starts the ranks itself"
        raise fail("usage", message, help="start it once, without them")


def new_run_directory(run: Path, asked: str | None) -> Path:
    """Where the run is trained again. Raises ProblemsFound where something is already."""
    if asked is None:
        return new_folder(run.parent, f"{run.name}-reproduced", datetime.now())
    out = Path(asked).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise fail("file", f"'{asked}' exists already", help="name an empty or a new folder")
    return out


def here(before: Recorded) -> Here:
    """This machine, and the run's working directory."""
    hidden = values_to_hide(environment(), before.run)
    record, _ = environment_record(before.run, working_directory(before), hidden)
    ranks, launch = ranks_of(before), before.run.launch
    is_launched = ranks is not None and (ranks > 1 or getattr(launch, "max_restarts", 0) > 0)
    return Here(record, machine_here(before.run.device, workers=ranks if is_launched else None))


def ranks_of(before: Recorded) -> int | None:
    """How many ranks trained the run in the end; None where that is not recorded."""
    return before.starts[-1].get("decided", {}).get("ranks") if before.starts else None


def working_directory(before: Recorded) -> Path:
    """Where relative paths of the recipe begin: where the run was started, if that is still there."""
    recorded_as = Path(before.starts[-1].get("cwd", "")) if before.starts else Path()
    return recorded_as if recorded_as.is_absolute() and recorded_as.is_dir() else Path.cwd()


def again(before: Recorded, out: Path) -> list[str]:
    """What `train` is told: the same from the beginning, every step logged, and nobody else told of it."""
    quietly = [
        "metrics.log_freq=1",
        "metrics.trackers=[]",
        "checkpoint.load_step!",
        "checkpoint.create_seed_checkpoint=false",
    ]
    ranks = ranks_of(before)
    on_this_machine = [] if isinstance(before.run.launch, LocalLaunchConfig) else ["launch=local"]
    as_many = [*on_this_machine, *([] if ranks is None else [f"launch.nproc_per_node={ranks}"])]
    return [str(before.resolved.resolve()), setting("dump_folder", str(out)), *quietly, *as_many]


def verdict(before: Recorded, out: Path, code: int, options: Namespace) -> int:
    """Says how the two runs compare. Returns the exit code."""
    found = read_metrics(out / METRICS) if (out / METRICS).is_file() else []
    if not found:
        return code or EXIT_DIFFERS
    reasons = against_bits(before.starts, last_start(out), before.run)
    tolerance = (
        options.tolerance if options.tolerance is not None else TOLERANCE if reasons else None
    )
    unequal = first_difference(before.lines, found, tolerance or None)
    missing = {line["step"] for line in before.lines} - {line["step"] for line in found}
    how = (
        f"within {tolerance:g}, gradient norms within {GRAD_NORM_FACTOR * tolerance:g}"
        if tolerance
        else "bit by bit"
    )
    why = f" ({', '.join(reasons)})" if reasons and tolerance else ""
    if unequal is not None:
        print(f"different at {unequal}; compared {how}{why}")
        return EXIT_DIFFERS
    if missing:
        print(f"ended before step {min(missing)} with exit code {code}; equal so far, {how}{why}")
        return code or EXIT_DIFFERS
    if code not in (0, EXIT_PREEMPTED):
        note(
            options,
            f"the training ended with exit code {code} after the last step that is compared",
        )
    print(
        f"equal: {counted(len(before.lines), 'logged step')}, up to step {before.last_step}, {how}{why}"
    )
    return 0


def last_start(out: Path) -> Mapping[str, Any]:
    """How the run was started that has just ended."""
    starts: list[Mapping[str, Any]] = read_json(out / RUN_JSON).get("starts", [{}])
    return starts[-1]
