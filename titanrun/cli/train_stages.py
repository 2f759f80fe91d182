"""Training of the stages of a recipe in order, each in a subfolder of the whole."""

import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath

from titanrun.cli.consent import request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note
from titanrun.cli.run_argument import check_not_archived
from titanrun.cli.stage_starts import (
    check_stage_start,
    check_stage_starts,
    check_started_stages_keep_their_start,
    select_stage_directory,
)
from titanrun.config.interpolate import escape_references
from titanrun.config.override_parser import parse_overrides
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import find_node
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.group_launcher import start_replica_groups
from titanrun.launch.launch_env import get_environment, get_rank_and_world_size
from titanrun.launch.local_launcher import supervise_workers
from titanrun.recipe.resolving.multi_stage import (
    STAGES_FILE,
    StageRequiredError,
    is_multi_stage_folder,
    split_stage,
)
from titanrun.recipe.resolving.read_recipe import read_stage_ids
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.stage_sequence import (
    RecipeStage,
    build_stage_sequence,
    find_parent_stage,
    find_stage_problems,
    format_multi_stage_recipe,
    get_initial_load_path,
)
from titanrun.recipe.rundir.plugin_copies import copy_plugin_files
from titanrun.recipe.rundir.run_directory import (
    PRIVATE_FOLDER_MODE,
    RunDirectory,
    check_last_checkpoint,
    choose_new_folder,
    write_run_directory,
)
from titanrun.recipe.rundir.run_files import (
    RESOLVED,
    RUNS,
    write_text_atomically,
)
from titanrun.recipe.rundir.start_undo import undo_start
from titanrun.runs.dead_starts import undo_dead_start

STAGE_START_KEYS = (
    "initial_load_path",
    "initial_load_model_only",
    "initial_load_in_hf",
    "initial_load_in_hf_quantized",
)
"""Keys of `checkpoint` that define the start of a stage."""
ResolveFn = Callable[[str, list[str], bool], Resolved]
"""Resolves a file with overrides for this machine, with or without checking its inputs."""


def train_stages(
    options: Namespace,
    staged: StageRequiredError,
    changes: list[str],
    arguments: list[str],
    around: Mapping[str, str],
    *,
    resolve: ResolveFn,
) -> int:
    """Train the remaining stages.

    Return 0, or the exit code of the first stage that does not finish.

    Args:
        options: Options of the command line; `recipe` is the recipe with the stages.
        staged: The stages.
        changes: Overrides for all stages or for one.
        arguments: The command line, for the record of each run.
        around: The environment.
        resolve: See ResolveFn.
    """
    check_single_process(around)
    now = datetime.now().astimezone()
    stages = resolve_stages(options.recipe, staged, changes, resolve, folder=None)
    check_one_machine(stages)
    folder = choose_stages_folder(stages, options.recipe, staged, now)
    for stage in stages:
        check_not_archived(str(folder / stage.id))
    stages = resolve_stages(options.recipe, staged, changes, resolve, folder=folder)
    request_consent([stage.resolved for stage in stages], options, ["train", *arguments])
    check_stage_starts(stages, folder)
    directories = [select_stage_directory(stage, now) for stage in stages]
    if not options.quiet:
        print_stage_warnings(stages)
    if all(directory.state == "finished" for directory in directories):
        # the checkpoints of the other stages only served to start the next one
        check_last_checkpoint(directories[-1], stages[-1].resolved.run)
        names = format_word_list(staged.stage_ids, conjunction="and")
        print_note(options, f"nothing to do: stages {names} are finished in {folder}")
        print_note(options, format_longer_stage(stages[-1], folder))
        return 0
    check_started_stages_keep_their_start(stages, directories)
    folder.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
    write_text_atomically(
        folder / STAGES_FILE,
        format_multi_stage_recipe(get_stages_name(options.recipe, staged), stages),
    )
    for stage in stages:
        copy_plugin_files(stage.resolved, folder)
    return train_unfinished_stages(options, stages, folder, arguments)


def print_stage_warnings(stages: Sequence[RecipeStage]) -> None:
    """Print each warning of the stages once."""
    warnings = {
        (problem.label, problem.message, str(problem.origin)): problem
        for stage in stages
        for problem in stage.resolved.warnings
    }
    if warnings:
        print_problems(list(warnings.values()))


def check_single_process(around: Mapping[str, str]) -> None:
    """Raise a problem if torchrun or srun started several of this process."""
    if get_rank_and_world_size(around)[1] > 1:
        raise problem_error(
            "usage",
            "stages are trained in sequence, but ranks of torchrun or srun train one run",
            hint="start titanrun train without torchrun or srun: it starts the processes of each "
            "stage itself",
        )


def check_one_machine(stages: Sequence[RecipeStage]) -> None:
    """Raise a problem if another machine trains a replica group of a stage."""
    for stage in stages:
        config = stage.resolved.run.fault_tolerance
        if config.enable and config.replica_id is not None:
            raise problem_error(
                "not-built",
                f"stage {stage.id} cannot have a replica group per machine: the stages of a recipe "
                "follow each other on one machine",
                path=("fault_tolerance", "replica_id"),
                hint="remove replica_id and lighthouse, or write a recipe for each stage",
            )


def train_unfinished_stages(
    options: Namespace, stages: Sequence[RecipeStage], folder: Path, arguments: list[str]
) -> int:
    """Train each stage that is not finished."""
    for number, stage in enumerate(stages, start=1):
        now = datetime.now().astimezone()
        check_stage_start(stages, stage, folder)
        undo_dead_start(stage.resolved.recipe.dump_folder)
        directory = select_stage_directory(stage, now)
        title = f"stage {stage.id} ({number} of {len(stages)})"
        if directory.state == "finished":
            print_note(options, f"{title}: {format_stage_progress(directory)} in {directory.path}")
            continue
        write_run_directory(
            directory,
            stage.resolved,
            ["titanrun", "train", *arguments],
            now,
            environment=get_environment(),
        )
        place = "resuming in" if directory.state == "unfinished" else "run directory"
        print_note(options, f"{title}: {place} {directory.path}")
        code = train_stage(stage, directory)
        undo_start(directory.path)
        if code != 0:
            return code
    return 0


def format_longer_stage(stage: RecipeStage, folder: Path) -> str:
    """Format the command that trains the last stage for twice as long."""
    training = stage.resolved.run.training
    name = "steps" if training.epochs is None else "epochs"
    length = f"stages.{stage.id}.training.{name}={2 * getattr(training, name)}"
    command = shlex.join(["titanrun", "resume", str(folder), length])
    return f"to train on, with a length of your choice: {command}"


def format_stage_progress(directory: RunDirectory) -> str:
    """Format the progress of a finished stage."""
    return (
        f"finished after {pluralize(directory.completed_step, 'step')}"
        if directory.completed_step
        else "finished"
    )


def train_stage(stage: RecipeStage, directory: RunDirectory) -> int:
    """Train one stage and return the exit code of its workers."""
    launch = stage.resolved.run.launch
    assert isinstance(launch, LocalLaunchConfig) and stage.resolved.ranks is not None
    run, resolved = stage.resolved.run, directory.path / RESOLVED
    processes = stage.resolved.ranks if run.comm.mode == "default" else 1
    if run.fault_tolerance.enable:
        return start_replica_groups(
            launch, run.fault_tolerance, resolved=resolved, processes=processes
        )
    return supervise_workers(launch, resolved=resolved, processes=processes)


def resolve_stages(
    file: str,
    staged: StageRequiredError,
    changes: list[str],
    resolve: ResolveFn,
    *,
    folder: Path | None,
) -> list[RecipeStage]:
    """Resolve the stages.

    Without a folder they are resolved as written and their inputs are checked. With a folder each
    is resolved for its place in it and its start, which need not exist yet.

    Raises ProblemsFound with the problems of all stages; a shared problem is reported once.
    """
    runs: list[Resolved] = []
    found: list[Problem] = []
    for index, stage_id in enumerate(staged.stage_ids):
        try:
            if folder is not None:
                # a stage with problems has raised: all stages before this one are in `runs`
                before = find_parent_stage(index, staged.stage_ids, runs, staged.tree)
                given = drop_location_overrides(changes, is_first=before is None)
                start = (
                    None
                    if before is None
                    else get_initial_load_path(
                        folder / staged.stage_ids[before], runs[before], folder / stage_id
                    )
                )
                places = build_location_overrides(folder / stage_id, start)
                runs.append(resolve(f"{file}#{stage_id}", [*given, *places], False))
            else:
                runs.append(resolve(f"{file}#{stage_id}", changes, True))
        except ProblemsFound as error:
            found += error.problems
            if folder is not None:
                raise
    if not found:
        stages = build_stage_sequence(staged.stage_ids, runs, staged.tree)
        found = [*find_stage_problems(stages), *find_stage_launch_problems(stages)]
    if found:
        raise ProblemsFound(
            {
                (problem.label, problem.message, str(problem.origin)): problem for problem in found
            }.values()
        )
    return stages


def drop_location_overrides(changes: Sequence[str], *, is_first: bool) -> list[str]:
    """Return the overrides without the folder of the whole.

    The keys of the start are only for a stage that does not start from another stage.
    """
    gone = {("dump_folder",)} | (
        set() if is_first else {("checkpoint", key) for key in STAGE_START_KEYS}
    )
    return [
        override.source.text for override in parse_overrides(changes) if override.path not in gone
    ]


def build_location_overrides(folder: Path, start: str | None) -> list[str]:
    """Build the overrides for the folder of a stage and the weights it starts from."""
    place = f"dump_folder={to_flow_yaml(escape_references(str(folder)))}"
    if start is None:
        return [place]
    return [
        place,
        f"checkpoint.{STAGE_START_KEYS[0]}={to_flow_yaml(escape_references(start))}",
        *(f"checkpoint.{key}!" for key in STAGE_START_KEYS[1:]),
    ]


def find_stage_launch_problems(stages: Sequence[RecipeStage]) -> list[Problem]:
    """Return problems of stages whose workers do not run on this machine only."""
    found = []
    for stage in stages:
        launch = stage.resolved.run.launch
        if not isinstance(launch, LocalLaunchConfig) or launch.num_nodes > 1:
            node = find_node(stage.resolved.tree, ("launch",))
            message = (
                f"stage '{stage.id}' is launched elsewhere or on several machines, "
                "but stages are trained on this machine"
            )
            hint = (
                f"train one stage at a time, as RECIPE#{stage.id}, with "
                "checkpoint.initial_load_path"
            )
            found.append(
                Problem(
                    "conflict",
                    message,
                    ("launch",),
                    node.origin if node else None,
                    rule="stages-train-here",
                    hint=hint,
                )
            )
    return found


def choose_stages_folder(
    stages: Sequence[RecipeStage], file: str, staged: StageRequiredError, now: datetime
) -> Path:
    """Choose the folder of all stages. Raise a problem if it belongs to another run."""
    named = stages[0].resolved.recipe.dump_folder
    if named is None:
        return choose_new_folder(Path(RUNS), get_stages_name(file, staged), now)
    path = Path(named)
    node = find_node(stages[0].resolved.tree, ("dump_folder",))
    if path.exists() and not path.is_dir():
        raise problem_error(
            "file",
            f"'{path}' is a file, not a folder",
            path=("dump_folder",),
            origin=node.origin if node else None,
        )
    if path.is_dir() and any(path.iterdir()) and not is_multi_stage_folder(path):
        message, hint = (
            f"'{path}' is not empty and contains no stages",
            "use an empty or a new folder",
        )
        raise problem_error(
            "file", message, path=("dump_folder",), origin=node.origin if node else None, hint=hint
        )
    return path


def get_stages_name(file: str, staged: StageRequiredError) -> str:
    """Return the name of the whole: that of the recipe, else of the file."""
    node = find_node(staged.tree, ("name",))
    return node.value if node is not None and isinstance(node.value, str) else PurePath(file).stem


def check_stage_has_start(file: str, resolved: Resolved) -> None:
    """Raise a problem if a stage that starts from another is trained alone without a start."""
    path, stage = split_stage(file)
    section = resolved.run.checkpoint
    if stage is None or section.initial_load_path is not None or section.initial_load_in_hf:
        return
    ids = read_stage_ids(path)
    if stage != ids[0]:
        message = (
            f"stage '{stage}' starts from stage '{ids[ids.index(stage) - 1]}', "
            "which is not trained with it"
        )
        raise problem_error(
            "usage",
            message,
            hint=(
                f"train all of {path}, or set checkpoint.initial_load_path to the start of "
                "the stage"
            ),
        )
