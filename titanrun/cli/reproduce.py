"""`titanrun reproduce`: rerun a run from its resolved recipe and compare it step by step."""

from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_note
from titanrun.cli.resume import format_override, get_forwarded_flags
from titanrun.cli.run_argument import find_run
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.exit_codes import EXIT_DIFFERS, EXIT_PREEMPTED
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error
from titanrun.config.secrets import get_secret_values
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.launch_env import (
    build_rank_environment,
    get_environment,
    get_rank_and_world_size,
)
from titanrun.launch.rerun import rerun_until
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_query import query_machine
from titanrun.recipe.comparing.environment_diff import CurrentEnvironment, diff_starts
from titanrun.recipe.comparing.metric_comparison import (
    GRAD_NORM_FACTOR,
    TOLERANCE,
    find_first_mismatch,
    find_nondeterminism_causes,
)
from titanrun.recipe.rundir.run_directory import choose_new_folder
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RUN_JSON,
    get_starts,
    read_json_or_empty,
)
from titanrun.recipe.rundir.run_history import RunHistory, load_run_history
from titanrun.recipe.rundir.run_metadata import build_environment_record
from titanrun.runs.run_bundle import unpack_bundle

SUMMARY = (
    "Rerun a run from its resolved recipe, in a new folder, and compare losses and gradient "
    "norms step by step. Differences from the environment in run.json are printed first: "
    "packages, code, commit, data, tokenizer, device, driver.\n\nA checkpoint is reproduced from "
    "the beginning of its run (its first weights, or the checkpoint it was forked from) up to "
    "its step. Numbers are compared bit by bit on the CPU and with debug.deterministic, if "
    "device, torch, libraries, threads and ranks are the same; else within a relative difference "
    f"of {TOLERANCE:g}, for gradient norms {GRAD_NORM_FACTOR * TOLERANCE:g}."
)
EXAMPLES = """  titanrun reproduce runs/first
  titanrun reproduce runs/first --steps 20          its first 20 steps
  titanrun reproduce runs/first/checkpoint/step-40  up to there
  titanrun reproduce first.zip                      a file of titanrun bundle
  titanrun reproduce runs/first --tolerance 0       bit by bit in any environment
  titanrun reproduce runs/first --quiet  exit code: 0 equal, 1 differs, 2 nothing to reproduce"""


def run(arguments: list[str]) -> int:
    """Return 0 for equal numbers, 1 for different ones, 2 if there is nothing to reproduce.

    Return the exit code of the training if that ends early.
    """
    parser = CommandParser("reproduce", SUMMARY, EXAMPLES)
    parser.add_argument(
        "place",
        metavar="run|checkpoint|bundle",
        help="a run directory, a checkpoint in one, or a bundle of one",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="stop after step N; default: the last logged step",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="the new run directory; default: <run>-reproduced-<time>, next to the run",
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="R", help="accept a relative difference of R; 0: none"
    )
    parser.add_trust_option()
    options = parser.parse_args(arguments)
    require_torch()
    check_reproduce_options(parser, options)
    check_not_among_ranks()
    with TemporaryDirectory(prefix="titanrun-") as folder:
        return rerun_and_compare(options, Path(folder))


def rerun_and_compare(options: Namespace, folder: Path) -> int:
    """Train again and compare; a bundle is unpacked into `folder`."""
    place = Path(find_run(options.place))
    is_bundle = place.is_file()
    before = load_run_history(unpack_bundle(place, folder) if is_bundle else place, options.steps)
    beside = place.resolve().with_suffix("") if is_bundle else before.folder.resolve()
    out = choose_rerun_folder(beside, options.out)
    print_note(
        options,
        f"reproducing {place if is_bundle else before.folder} up to step {before.last_step}, in "
        f"{out}",
    )
    for line in diff_starts(before.starts, get_current_environment(before)) or [
        "the environment equals the recorded one"
    ]:
        print(line, flush=True)
    code = rerun_until(
        before.last_step,
        [*build_rerun_arguments(before, out), *get_forwarded_flags(options)],
        folder=get_working_directory(before),
    )
    return report_comparison(before, out, code, options)


def check_reproduce_options(parser: CommandParser, options: Namespace) -> None:
    """Raise a problem for invalid numbers."""
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps {options.steps} is below 1")
    if options.tolerance is not None and not 0 <= options.tolerance < 1:
        parser.error(f"--tolerance {options.tolerance:g} is not in [0, 1]")


def check_not_among_ranks() -> None:
    """Raise a problem if torchrun or srun started several of this process.

    The training started here would join them.
    """
    _, ranks = get_rank_and_world_size(build_rank_environment())
    if ranks > 1:
        message = (
            f"torchrun or srun started {ranks} ranks of this process, but reproduce starts the "
            "ranks itself"
        )
        raise problem_error("usage", message, hint="run it once, without them")


def choose_rerun_folder(run: Path, asked: str | None) -> Path:
    """Return the folder of the new run. Raise ProblemsFound if it exists."""
    if asked is None:
        return choose_new_folder(run.parent, f"{run.name}-reproduced", datetime.now())
    out = Path(asked).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise problem_error(
            "file", f"'{asked}' already exists", hint="use an empty or a new folder"
        )
    return out


def get_current_environment(before: RunHistory) -> CurrentEnvironment:
    """Return this machine, and the run's working directory."""
    hidden = get_secret_values(get_environment(), before.run)
    record, _ = build_environment_record(before.run, get_working_directory(before), hidden)
    ranks, launch = get_recorded_ranks(before), before.run.launch
    is_launched = ranks is not None and (ranks > 1 or getattr(launch, "max_restarts", 0) > 0)
    return CurrentEnvironment(
        record, query_machine(before.run.device, num_workers=ranks if is_launched else None)
    )


def get_recorded_ranks(before: RunHistory) -> int | None:
    """Return the number of ranks of the run's last start, or None if it is not recorded."""
    return before.starts[-1].get("decided", {}).get("ranks") if before.starts else None


def get_working_directory(before: RunHistory) -> Path:
    """Return the base of relative paths in the recipe.

    It is the folder in which the run was started, if that still exists.
    """
    recorded_as = Path(before.starts[-1].get("cwd", "")) if before.starts else Path()
    return recorded_as if recorded_as.is_absolute() and recorded_as.is_dir() else Path.cwd()


def build_rerun_arguments(before: RunHistory, out: Path) -> list[str]:
    """Build the arguments of `train`: from the beginning, every step logged, no notifications."""
    quietly = [
        "metrics.log_freq=1",
        "metrics.trackers=[]",
        "checkpoint.load_step!",
        "checkpoint.create_seed_checkpoint=false",
    ]
    ranks = get_recorded_ranks(before)
    on_this_machine = [] if isinstance(before.run.launch, LocalLaunchConfig) else ["launch=local"]
    as_many = [*on_this_machine, *([] if ranks is None else [f"launch.nproc_per_node={ranks}"])]
    return [
        str(before.resolved_path.resolve()),
        format_override("dump_folder", str(out)),
        *quietly,
        *as_many,
    ]


def report_comparison(before: RunHistory, out: Path, code: int, options: Namespace) -> int:
    """Print how the two runs compare and return the exit code."""
    found = read_metrics(out / METRICS) if (out / METRICS).is_file() else []
    if not found:
        return code or EXIT_DIFFERS
    reasons = find_nondeterminism_causes(before.starts, load_last_start(out), before.run)
    tolerance = (
        options.tolerance if options.tolerance is not None else TOLERANCE if reasons else None
    )
    unequal = find_first_mismatch(before.logged_steps, found, tolerance or None)
    missing = {line["step"] for line in before.logged_steps} - {line["step"] for line in found}
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
        print_note(
            options,
            f"the training ended with exit code {code} after the last compared step",
        )
    print(
        f"equal: {pluralize(len(before.logged_steps), 'logged step')}, up to step "
        f"{before.last_step}, {how}{why}"
    )
    return 0


def load_last_start(out: Path) -> Mapping[str, Any]:
    """Load the record of the start of the run that has just ended."""
    starts = get_starts(read_json_or_empty(out / RUN_JSON))
    return starts[-1] if starts else {}
