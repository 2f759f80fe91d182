"""`titanrun resume`: goes on from what lies there; the recipe that began the run is not needed."""

from argparse import Namespace
from pathlib import Path

from titanrun.cli import train
from titanrun.cli.arguments import Parser, split_overrides
from titanrun.config.emit import flow
from titanrun.config.interpolate import escaped
from titanrun.config.problems import fail
from titanrun.recipe.saved import RESOLVED, checkpoint_at, checkpoints_at, run_around

EXAMPLES = """  titanrun resume runs/first                              goes on where it stopped
  titanrun resume runs/first training.steps=500           a finished run goes on with more steps
  titanrun resume runs/first/checkpoint/step-40           goes on from there; later checkpoints are kept under another name
  titanrun resume /backup/step-40                         outside of its run: a new run with everything it holds"""


def run(arguments: list[str]) -> int:
    """Train; the worker's exit code is the command's."""
    overrides, others = split_overrides(arguments)
    parser = Parser("resume", "Go on with a run, from its directory or from one of its checkpoints.", EXAMPLES)
    parser.add_argument("place", metavar="run|checkpoint", help="a run directory, or a checkpoint")
    parser.takes_overrides()
    options = parser.parse_args(others)
    return train.run([*resumed(Path(options.place)), *overrides, *loudness(options)])


def resumed(place: Path) -> list[str]:
    """What `train` is told: which recipe, and where to go on."""
    if not place.is_dir():
        raise fail("file", f"there is no folder '{place}'", help="name a run directory, or a checkpoint")
    if (place / RESOLVED).is_file() and not is_step(place):
        return [str(place / RESOLVED), setting("dump_folder", str(place))]
    checkpoint = checkpoint_at(place)
    run = run_around(checkpoint)
    if run is None:
        state = [setting("checkpoint.initial_load_path", str(checkpoint.resolve())), "checkpoint.initial_load_model_only=false"]
        return [str(checkpoint / RESOLVED), *state, "checkpoint.load_step!", "checkpoint.exclude_from_loading!"]
    newest = list(checkpoints_at(run).values())[-1]
    older = [] if newest.samefile(checkpoint) else [setting("checkpoint.load_step", int(checkpoint.name.partition("-")[2]))]
    return [str(run / RESOLVED), setting("dump_folder", str(run)), *older]


def is_step(place: Path) -> bool:
    """Whether a folder is a checkpoint, which holds a resolved recipe too."""
    return any(path.samefile(place) for path in checkpoints_at(place.resolve().parent).values())


def setting(path: str, value: object) -> str:
    """An override, the value quoted where it must be."""
    return f"{path}={flow(escaped(value))}"


def loudness(options: Namespace) -> list[str]:
    """What was asked about how much to say, for the command that is called."""
    return [f"--{name}" for name in ("quiet", "verbose") if getattr(options, name)]
