"""`titanrun resume`: goes on from what lies there; the recipe that began the run is not needed."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from titanrun.cli import train
from titanrun.cli.arguments import TRUST_FLAG, Parser, split_overrides
from titanrun.components.checkpoints.addresses import Place, is_address, place
from titanrun.components.checkpoints.manifest import STEP_FOLDER, is_checkpoint
from titanrun.config.emit import flow
from titanrun.config.interpolate import escaped
from titanrun.config.problems import fail
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.saved import (
    RESOLVED,
    absolute,
    checkpoint_at,
    checkpoints_at,
    resolved_file,
    run_around,
)
from titanrun.recipe.stages import STAGES_FILE, is_folder_of_stages

EXAMPLES = """  titanrun resume runs/first                              goes on where it stopped
  titanrun resume runs/first training.steps=500 lr_scheduler.total_steps=500     a finished run goes on, and so does its schedule
  titanrun resume runs/first/checkpoint/step-40           goes on from there; later checkpoints are kept under another name
  titanrun resume /backup/step-40                         outside of its run: a new run with everything it holds
  titanrun resume s3://bucket/runs/first                  a new run directory that goes on there, and saves there"""


def run(arguments: list[str]) -> int:
    """Train; the worker's exit code is the command's."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "resume", "Go on with a run, from its directory or from one of its checkpoints.", EXAMPLES
    )
    parser.add_argument("place", metavar="run|checkpoint", help="a run directory, or a checkpoint")
    parser.takes_trust()
    parser.takes_reporting()
    parser.takes_overrides()
    options = parser.parse_args(others)
    return train.run([*resumed(place(options.place)), *overrides, *loudness(options)])


def resumed(named: Place) -> list[str]:
    """What `train` is told: which recipe, and where to go on."""
    if not named.is_dir():
        raise fail(
            "file", f"there is no folder '{named}'", help="name a run directory, or a checkpoint"
        )
    if (
        isinstance(named, Path)
        and (named / RESOLVED).is_file()
        and not is_checkpoint(named)
        and not is_step(named)
    ):
        return [str(named / RESOLVED), setting("dump_folder", str(named))]
    if isinstance(named, Path) and is_folder_of_stages(named):
        return [str(named / STAGES_FILE), setting("dump_folder", str(named))]
    checkpoint = checkpoint_at(named)
    # one that was set aside has lost its name: its run does not count it among its own any more
    has_name = STEP_FOLDER.fullmatch(checkpoint.name) is not None
    run = run_around(checkpoint) if has_name else None
    if run is None and has_name and is_where_it_saves(checkpoint):
        return [resolved_file(checkpoint), *older(checkpoint, checkpoints_at(checkpoint.parent))]
    if run is None:
        state = [
            setting("checkpoint.initial_load_path", absolute(checkpoint)),
            "checkpoint.initial_load_model_only=false",
        ]
        return [
            resolved_file(checkpoint),
            *state,
            "checkpoint.load_step!",
            "checkpoint.exclude_from_loading!",
        ]
    return [
        str(run / RESOLVED),
        setting("dump_folder", str(run)),
        *older(checkpoint, checkpoints_at(run)),
    ]


def is_where_it_saves(checkpoint: Place) -> bool:
    """Whether a checkpoint lies in the address that its own recipe saves to: a new run directory goes on from it there."""
    folder = read_resolved(Path(resolved_file(checkpoint))).checkpoint.folder
    return is_address(folder) and absolute(checkpoint.parent) == absolute(place(folder))


def older(checkpoint: Place, found: Mapping[int, Place]) -> list[str]:
    """How a run is told to go on from a checkpoint that is not its newest one."""
    is_newest = absolute(list(found.values())[-1]) == absolute(checkpoint)
    return (
        []
        if is_newest
        else [setting("checkpoint.load_step", int(checkpoint.name.partition("-")[2]))]
    )


def is_step(named: Path) -> bool:
    """Whether a folder is a checkpoint, which holds a resolved recipe too."""
    return any(
        absolute(path) == absolute(named)
        for path in checkpoints_at(named.resolve().parent).values()
    )


def setting(path: str, value: object) -> str:
    """An override, the value quoted where it must be."""
    return f"{path}={flow(escaped(value))}"


def loudness(options: Namespace) -> list[str]:
    """What was asked about how much to say, and of code that comes with weights, for the command that is called."""
    trust = [TRUST_FLAG] if options.trust_remote_code else []
    return [*(f"--{name}" for name in ("quiet", "verbose") if getattr(options, name)), *trust]
