"""Trains the stages of a recipe one after the other, each in a folder of its own below that of the whole."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath

from titanrun.cli.guard import print_problems
from titanrun.cli.voice import note
from titanrun.components.checkpoints.addresses import is_address
from titanrun.components.checkpoints.manifest import is_checkpoint
from titanrun.config.arguments import parse_overrides
from titanrun.config.counted import counted
from titanrun.config.emit import flow
from titanrun.config.interpolate import escaped
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.config.suggest import listing
from titanrun.config.tree import find
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.environment import environment, ranks_around
from titanrun.launch.local import wait_for_workers
from titanrun.recipe.reading import stage_ids
from titanrun.recipe.resolve import Resolved
from titanrun.recipe.run_dir import (
    RESOLVED,
    RUNS,
    RunDirectory,
    find_run_directory,
    new_folder,
    write_run,
)
from titanrun.recipe.run_files import RUN_JSON, read_json, write_atomically
from titanrun.recipe.saved import checkpoints_at
from titanrun.recipe.staged import (
    Stage,
    before_of,
    problems_between,
    stages_in_order,
    start_of,
    whole_text,
)
from titanrun.recipe.stages import STAGES_FILE, HasStages, is_folder_of_stages, split_stage

HANDED_OVER = (
    "initial_load_path",
    "initial_load_model_only",
    "initial_load_in_hf",
    "initial_load_in_hf_quantized",
)
"""Keys of `checkpoint` by which a stage is told what it starts from."""
Resolve = Callable[[str, list[str], bool], Resolved]
"""A file with overrides as this machine is to train it, its inputs looked at or not."""


def train_stages(
    options: Namespace,
    staged: HasStages,
    changes: list[str],
    arguments: list[str],
    around: Mapping[str, str],
    *,
    resolve: Resolve,
) -> int:
    """Trains what is left of the stages. Returns 0, or the exit code of the first stage that does not come to its end.

    Args:
        options: of the command line; `recipe` is the recipe with the stages.
        staged: the stages.
        changes: overrides, for all stages or for one.
        arguments: the command line, for the record of each run.
        around: the environment.
        resolve: see Resolve.
    """
    if ranks_around(around)[1] > 1:
        help = "start titanrun train without torchrun or srun: it starts the processes of each stage itself"
        raise fail(
            "usage",
            "stages are trained one after the other, and the ranks around this process train one run",
            help=help,
        )
    now = datetime.now().astimezone()
    stages = read_stages(options.recipe, staged, changes, resolve, folder=None)
    folder = folder_of(stages, options.recipe, staged, now)
    stages = read_stages(options.recipe, staged, changes, resolve, folder=folder)
    directories = [find_run_directory(stage.run, now) for stage in stages]
    warnings = {
        (problem.label, problem.message, str(problem.origin)): problem
        for stage in stages
        for problem in stage.run.warnings
    }
    if warnings and not options.quiet:
        print_problems(list(warnings.values()))
    if all(directory.state == "finished" for directory in directories):
        refuse_older_starts(stages, folder)
        note(
            options,
            f"nothing to do: stages {listing(staged.ids, last='and')} are finished in {folder}",
        )
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / STAGES_FILE, whole_text(name_of(options.recipe, staged), stages))
    return train_in_order(options, stages, folder, arguments)


def train_in_order(
    options: Namespace, stages: Sequence[Stage], folder: Path, arguments: list[str]
) -> int:
    """Trains each stage that is not finished."""
    for number, stage in enumerate(stages, start=1):
        now = datetime.now().astimezone()
        refuse_older_start(stages, stage, folder)
        directory = find_run_directory(stage.run, now)
        title = f"stage {stage.id} ({number} of {len(stages)})"
        if directory.state == "finished":
            note(options, f"{title}: {done_words(directory)} in {directory.path}")
            continue
        write_run(
            directory, stage.run, ["titanrun", "train", *arguments], now, environment=environment()
        )
        note(
            options,
            f"{title}: {'going on in' if directory.state == 'unfinished' else 'run directory'} {directory.path}",
        )
        code = trained(stage, directory)
        if code != 0:
            return code
    return 0


def done_words(directory: RunDirectory) -> str:
    """How far a finished stage is."""
    return f"finished after {counted(directory.done, 'step')}" if directory.done else "finished"


def trained(stage: Stage, directory: RunDirectory) -> int:
    """The exit code of one stage's workers."""
    launch = stage.run.run.launch
    assert isinstance(launch, LocalLaunchConfig) and stage.run.ranks is not None
    processes = stage.run.ranks if stage.run.run.comm.mode == "default" else 1
    return wait_for_workers(launch, resolved=directory.path / RESOLVED, processes=processes)


def read_stages(
    file: str, staged: HasStages, changes: list[str], resolve: Resolve, *, folder: Path | None
) -> list[Stage]:
    """The stages, resolved: as written, their inputs looked at, or with a folder, each for its own place in it and with what it starts
    from, which need not be there yet.

    Raises ProblemsFound with what is wrong with any of them, once where several share it.
    """
    runs: list[Resolved] = []
    found: list[Problem] = []
    for index, id in enumerate(staged.ids):
        before = before_of(index, staged.ids, runs, staged.tree)
        try:
            if folder is not None:
                given = without_places(changes, is_first=before is None)
                start = (
                    None
                    if before is None
                    else start_of(folder / staged.ids[before], runs[before], folder / id)
                )
                places = handed_over(folder / id, start)
                runs.append(resolve(f"{file}#{id}", [*given, *places], False))
            else:
                runs.append(resolve(f"{file}#{id}", changes, True))
        except ProblemsFound as error:
            found += error.problems
            if folder is not None:
                raise
    if not found:
        stages = stages_in_order(staged.ids, runs, staged.tree)
        found = [*problems_between(stages), *not_trained_here(stages)]
    if found:
        raise ProblemsFound(
            {
                (problem.label, problem.message, str(problem.origin)): problem for problem in found
            }.values()
        )
    return stages


def without_places(changes: Sequence[str], *, is_first: bool) -> list[str]:
    """The overrides less the folder of the whole; what a recipe starts from is for a stage that starts from none."""
    gone = {("dump_folder",)} | (
        set() if is_first else {("checkpoint", key) for key in HANDED_OVER}
    )
    return [
        override.source.text for override in parse_overrides(changes) if override.path not in gone
    ]


def handed_over(folder: Path, start: str | None) -> list[str]:
    """Overrides that say where a stage lies, and whose weights it starts from."""
    place = f"dump_folder={flow(escaped(str(folder)))}"
    if start is None:
        return [place]
    return [
        place,
        f"checkpoint.{HANDED_OVER[0]}={flow(escaped(start))}",
        *(f"checkpoint.{key}!" for key in HANDED_OVER[1:]),
    ]


def not_trained_here(stages: Sequence[Stage]) -> list[Problem]:
    """The stages whose workers are not started, and waited for, on this machine alone."""
    found = []
    for stage in stages:
        launch = stage.run.run.launch
        if not isinstance(launch, LocalLaunchConfig) or launch.nodes > 1:
            node = find(stage.run.tree, ("launch",))
            message = f"stage '{stage.id}' is launched elsewhere or on several machines, and stages are trained on this one"
            help = f"train one stage at a time, as RECIPE#{stage.id}, with checkpoint.initial_load_path"
            found.append(
                Problem(
                    "conflict",
                    message,
                    ("launch",),
                    node.origin if node else None,
                    rule="stages-train-here",
                    help=help,
                )
            )
    return found


def folder_of(stages: Sequence[Stage], file: str, staged: HasStages, now: datetime) -> Path:
    """The folder of all stages. Raises a problem where another run lives there."""
    named = stages[0].run.recipe.dump_folder
    if named is None:
        return new_folder(Path(RUNS), name_of(file, staged), now)
    path = Path(named)
    node = find(stages[0].run.tree, ("dump_folder",))
    if path.exists() and not path.is_dir():
        raise fail(
            "file",
            f"'{path}' is a file, not a folder",
            path=("dump_folder",),
            origin=node.origin if node else None,
        )
    if path.is_dir() and any(path.iterdir()) and not is_folder_of_stages(path):
        message, help = (
            f"'{path}' is not empty and holds no stages",
            "name an empty or a new folder",
        )
        raise fail(
            "file", message, path=("dump_folder",), origin=node.origin if node else None, help=help
        )
    return path


def name_of(file: str, staged: HasStages) -> str:
    """The name of the whole: the recipe's, else the file's."""
    node = find(staged.tree, ("name",))
    return node.value if node is not None and isinstance(node.value, str) else PurePath(file).stem


def refuse_older_starts(stages: Sequence[Stage], folder: Path) -> None:
    """The same for all stages."""
    for stage in stages:
        refuse_older_start(stages, stage, folder)


def refuse_older_start(stages: Sequence[Stage], stage: Stage, folder: Path) -> None:
    """Raises a problem where a stage began from a checkpoint after which the stage before it has trained on."""
    if stage.before is None or is_address(stages[stage.before].run.run.checkpoint.folder):
        return
    before = stages[stage.before].id
    began = (read_json(folder / stage.id / RUN_JSON).get("parent") or {}).get("step")
    saved = [step for step, path in checkpoints_at(folder / before).items() if is_checkpoint(path)]
    if began is not None and saved and saved[-1] != began:
        message = f"stage '{stage.id}' started from step {began} of stage '{before}', which is at step {saved[-1]} now"
        raise fail(
            "conflict",
            message,
            help=f"move {folder / stage.id} away to train it again, or name another dump_folder",
        )


def refuse_stage_without_start(file: str, resolved: Resolved) -> None:
    """Raises a problem where a stage that starts from another is to be trained alone, and nothing says from what."""
    path, stage = split_stage(file)
    section = resolved.run.checkpoint
    if stage is None or section.initial_load_path is not None or section.initial_load_in_hf:
        return
    ids = stage_ids(path)
    if stage != ids[0]:
        message = f"stage '{stage}' starts from stage '{ids[ids.index(stage) - 1]}', which is not trained with it"
        raise fail(
            "usage",
            message,
            help=f"train {path} whole, or say what the stage starts from: checkpoint.initial_load_path",
        )
