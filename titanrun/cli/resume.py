"""`titanrun resume`: resume a run from its directory; the original recipe is not needed."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from titanrun.cli import train
from titanrun.cli.arguments import OLD_TRUST_FLAG, CommandParser, split_overrides
from titanrun.cli.resume_hints import add_resume_hints
from titanrun.cli.run_argument import find_run
from titanrun.components.checkpoints.spec.manifest import STEP_FOLDER, is_checkpoint
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    is_storage_path,
    parse_storage_path,
)
from titanrun.config.interpolate import escape_references
from titanrun.config.override_parser import parse_overrides
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.launch_env import get_environment, is_in_distributed_job
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.resolving.multi_stage import STAGES_FILE, is_multi_stage_folder
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import (
    fetch_resolved_recipe,
    find_enclosing_run,
    get_checkpoints_by_step,
    missing_folder_error,
    select_checkpoint,
    to_absolute_path,
)
from titanrun.recipe.rundir.late_files import wait_for_files
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.schedule_extension import build_schedule_overrides
from titanrun.recipe.rundir.stage_schedules import build_stage_schedule_overrides
from titanrun.recipe.rundir.started_from import build_moved_overrides
from titanrun.runs.dead_starts import undo_dead_start

EXAMPLES = """  titanrun resume runs/first                     resume from the last checkpoint
  titanrun resume runs/first training.steps=500  extend a finished run
  titanrun resume runs/first --nproc 2           on two processes
  titanrun resume runs/first/checkpoint/step-40  resume from there; later checkpoints are renamed
  titanrun resume /backup/step-40                outside its run: a new run with its full state
  titanrun resume runs/first/checkpoint/step-40 dump_folder=runs/new  the same, for a new folder
  titanrun resume s3://bucket/runs/first         a new run directory that loads and saves there"""


def run(arguments: list[str]) -> int:
    """Train and return the worker's exit code."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser(
        "resume", "Resume a run from its directory or from one of its checkpoints.", EXAMPLES
    )
    parser.add_argument("place", metavar="run|checkpoint", help="a run directory, or a checkpoint")
    parser.add_argument("--nproc", type=int, metavar="N", help=train.NPROC_HELP)
    parser.add_moved_option()
    parser.add_trust_option()
    parser.add_reporting_options()
    parser.allow_overrides()
    options = parser.parse_args(others)
    place = find_run(options.place, wants="unfinished")
    if is_in_distributed_job(get_environment()) and not is_storage_path(place):
        wait_for_run(Path(place))
    undo_dead_start(place)
    resumed = build_resume_arguments(
        parse_storage_path(place), in_new_folder=names_new_folder(place, overrides)
    )
    # problems number the overrides: first those that were typed
    words = [
        resumed[0],
        *overrides,
        *resumed[1:],
        *build_length_overrides(resumed[0], overrides),
        *build_moved_overrides(resumed[0]),
        *(["--nproc", str(options.nproc)] if options.nproc is not None else []),
        *get_forwarded_flags(options),
    ]
    try:
        return train.run(words)
    except ProblemsFound as found:
        raise add_resume_hints(found, resumed[0]) from None


def wait_for_run(folder: Path) -> None:
    """Wait until this machine of a job sees what another one has written into a run directory."""
    wait_for_files(
        lambda: (
            (folder / RESOLVED).is_file()
            or is_multi_stage_folder(folder)
            or bool(get_checkpoints_by_step(folder))
        ),
        folder,
        f"the run '{folder}'",
        print_line=log_line,
    )


def build_length_overrides(recipe: str, overrides: Sequence[str]) -> list[str]:
    """Build the overrides by which the schedule of a run, or of each stage, follows its length."""
    has_stages = Path(recipe).name == STAGES_FILE
    build = build_stage_schedule_overrides if has_stages else build_schedule_overrides
    return build(recipe, overrides)


def missing_run_error(named: AnyPath) -> ProblemsFound:
    """Build the problem of what is no folder: a recipe, or a name that is nearly that of a run."""
    if isinstance(named, Path) and named.is_file():
        return problem_error(
            "usage",
            f"'{named}' is a file, not a run directory",
            hint=f"train a recipe with: titanrun train {named}",
        )
    if isinstance(named, Path):
        return missing_folder_error(named, hint="pass a run directory or a checkpoint")
    return problem_error(
        "file", f"folder not found: '{named}'", hint="pass a run directory or a checkpoint"
    )


def names_new_folder(place: str, overrides: Sequence[str]) -> bool:
    """Return whether a checkpoint is to be resumed in another folder than its run's.

    Raises:
        ProblemsFound: A run directory is given another folder.
    """
    folders = [one for one in parse_overrides(overrides) if one.path == ("dump_folder",)]
    if not folders:
        return False
    found = parse_storage_path(place)
    if isinstance(found, Path) and (is_run_directory(found) or is_multi_stage_folder(found)):
        newest = select_checkpoint(found) if is_run_directory(found) else "RUN/checkpoint/step-N"
        raise problem_error(
            "usage",
            f"titanrun resume goes on in {place}, and takes no other dump_folder",
            hint=f"to go on elsewhere with its full state, resume a checkpoint: titanrun resume "
            f"{newest} {folders[0].source.text}",
        )
    return True


def is_run_directory(named: Path) -> bool:
    """Return whether a folder is a run directory, and not one of its checkpoints."""
    return (named / RESOLVED).is_file() and not is_checkpoint(named) and not is_step_folder(named)


def build_resume_arguments(named: AnyPath, *, in_new_folder: bool = False) -> list[str]:
    """Build the arguments of `train`: the recipe, and the checkpoint to resume from.

    Args:
        named: A run directory, a folder of stages or a checkpoint.
        in_new_folder: Whether a checkpoint of a run is the start of another run, with its full
            state, as one outside of its run is.
    """
    if not named.is_dir():
        raise missing_run_error(named)
    if isinstance(named, Path) and is_run_directory(named):
        return [str(named / RESOLVED), format_override("dump_folder", str(named))]
    if isinstance(named, Path) and is_multi_stage_folder(named):
        return [str(named / STAGES_FILE), format_override("dump_folder", str(named))]
    checkpoint = select_checkpoint(named)
    # a renamed (set aside) checkpoint is no longer one of its run's checkpoints
    has_name = STEP_FOLDER.fullmatch(checkpoint.name) is not None
    run = find_enclosing_run(checkpoint) if has_name and not in_new_folder else None
    if run is None and has_name and not in_new_folder and is_own_save_folder(checkpoint):
        return [
            fetch_resolved_recipe(checkpoint),
            *build_load_step_override(checkpoint, get_checkpoints_by_step(checkpoint.parent)),
        ]
    if run is None:
        state = [
            format_override("checkpoint.initial_load_path", to_absolute_path(checkpoint)),
            # its run may have begun with the weights of a Hugging Face folder
            "checkpoint.initial_load_in_hf=false",
            "checkpoint.initial_load_model_only=false",
        ]
        return [
            fetch_resolved_recipe(checkpoint),
            *state,
            "checkpoint.load_step!",
            "checkpoint.exclude_from_loading!",
        ]
    return [
        str(run / RESOLVED),
        format_override("dump_folder", str(run)),
        *build_load_step_override(checkpoint, get_checkpoints_by_step(run)),
    ]


def is_own_save_folder(checkpoint: AnyPath) -> bool:
    """Return whether a checkpoint is at the URL to which its own recipe saves.

    A new run directory resumes from it there.
    """
    folder = load_resolved(Path(fetch_resolved_recipe(checkpoint))).checkpoint.folder
    return is_storage_path(folder) and to_absolute_path(checkpoint.parent) == to_absolute_path(
        parse_storage_path(folder)
    )


def build_load_step_override(checkpoint: AnyPath, found: Mapping[int, AnyPath]) -> list[str]:
    """Return the override to resume from a checkpoint that is not the newest one."""
    is_newest = to_absolute_path(list(found.values())[-1]) == to_absolute_path(checkpoint)
    return (
        []
        if is_newest
        else [format_override("checkpoint.load_step", int(checkpoint.name.partition("-")[2]))]
    )


def is_step_folder(named: Path) -> bool:
    """Return whether a folder is a checkpoint, which also has a resolved recipe."""
    return any(
        to_absolute_path(path) == to_absolute_path(named)
        for path in get_checkpoints_by_step(named.resolve().parent).values()
    )


def format_override(path: str, value: object) -> str:
    """Format an override, with the value quoted if necessary."""
    return f"{path}={to_flow_yaml(escape_references(value))}"


def get_forwarded_flags(options: Namespace) -> list[str]:
    """Return the flags of verbosity and trust to forward to the called command."""
    trust = [
        *([TRUST_FLAG] if options.trust else []),
        *([OLD_TRUST_FLAG] if options.trust_remote_code else []),
    ]
    return [*(f"--{name}" for name in ("quiet", "verbose") if getattr(options, name)), *trust]
