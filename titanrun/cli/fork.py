"""`titanrun fork`: start a new run from the weights of a checkpoint, with recipe changes."""

import shlex
from collections.abc import Sequence

from titanrun.cli import train
from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.messages import print_note
from titanrun.cli.resume import build_length_overrides, format_override, get_forwarded_flags
from titanrun.cli.run_argument import check_has_checkpoint, find_run
from titanrun.components.checkpoints.spec.storage_path import AnyPath, parse_storage_path
from titanrun.config.override_parser import parse_overrides
from titanrun.config.problems import problem_error
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import to_plain_data
from titanrun.recipe.rundir.checkpoint_lookup import (
    fetch_resolved_recipe,
    get_checkpoints_by_step,
    select_verified_checkpoint,
    to_absolute_path,
)

EXAMPLES = """  titanrun fork runs/first/checkpoint/step-40 optimizer.lr=1e-4
  titanrun fork runs/first training.dataset.path=more.npy dump_folder=runs/second"""
LOAD_STEP = ("checkpoint", "load_step")
# settings of the parent's own start
PARENT_ONLY_KEYS = (
    "load_step",
    "exclude_from_loading",
    "initial_load_model_only",
    "initial_load_in_hf",
    "allow_change",
    "load_only",
)


def run(arguments: list[str]) -> int:
    """Train and return the worker's exit code."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser(
        "fork",
        "Start a new run from the weights of a checkpoint; run.json names the parent.",
        EXAMPLES,
    )
    parser.add_argument(
        "place",
        metavar="checkpoint",
        help="a checkpoint, or a run directory for its newest valid one",
    )
    parser.add_trust_option()
    parser.add_reporting_options()
    parser.allow_overrides()
    options = parser.parse_args(others)
    place = parse_storage_path(find_run(options.place, wants="checkpoint"))
    check_has_checkpoint(place)
    check_names_no_step(place, overrides)
    checkpoint, damaged = select_verified_checkpoint(place)
    for folder, reasons in damaged.items():
        print_note(options, f"warning: {folder} cannot be used: {'; '.join(reasons)}")
    resets = [f"checkpoint.{name}!" for name in PARENT_ONLY_KEYS]
    weights = format_override("checkpoint.initial_load_path", to_absolute_path(checkpoint))
    recipe = fetch_resolved_recipe(checkpoint)
    return train.run(
        [
            recipe,
            *resets,
            weights,
            *build_length_overrides(recipe, overrides),
            *overrides,
            *get_forwarded_flags(options),
        ]
    )


def check_names_no_step(place: AnyPath, overrides: Sequence[str]) -> None:
    """Raise a problem for an override of the step: the checkpoint itself is named.

    Raises:
        ProblemsFound: with the command for the step, or the checkpoints that there are.
    """
    for override in parse_overrides(overrides):
        if override.path != LOAD_STEP:
            continue
        saved = get_checkpoints_by_step(place) or get_checkpoints_by_step(place.parent)
        step = None if override.value is None else to_plain_data(override.value)
        if step in saved:
            others = [word for word in overrides if word != override.source.text]
            hint = shlex.join(["titanrun", "fork", str(saved[step]), *others])
        else:
            paths = [f"'{path}'" for path in saved.values()]
            hint = f"the checkpoints are {format_word_list(paths, conjunction='and', max_words=5)}"
        raise problem_error(
            "usage",
            "fork starts from a checkpoint that is named, not from load_step",
            path=LOAD_STEP,
            origin=override.origin,
            hint=hint,
        )
