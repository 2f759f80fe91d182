"""Kinds of training, selected by `kind` in a recipe."""

from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from titanrun.config import registry

LOOP_BUILDER = "titanrun.worker.build.build_train_loop:build_train_loop"


class TrainerKind:
    """A kind of training. Subclass it to register a kind; this module is torch-free.

    `builds` is the import string of a function `(recipe, job, *, signals, on_step)` that
    returns a context manager, which yields a trainer: something with `train()` and the
    attributes of `titanrun.training.loop.TrainLoop` that the worker reads (`state`, `engine`,
    `metrics`, `checkpoints`, `watchdog`). If `builds_source` is set, it is the import string of
    a builder of a step source instead, for the loop that
    `titanrun.worker.build.build_train_loop:build_train_loop` builds.
    """

    name: ClassVar[str]
    builds: ClassVar[str]
    builds_source: ClassVar[bool] = False


class Pretrain(TrainerKind):
    """Next-token training on the sequences of a dataset, also used for fine-tuning."""

    name = "pretrain"
    builds = "titanrun.worker.build.build_data_source:build_data_source"
    builds_source = True


class Sft(TrainerKind):
    """Pretraining's loop on conversations; a rule requires conversation data."""

    name = "sft"
    builds = Pretrain.builds
    builds_source = True


class Eval(TrainerKind):
    """Evaluation of the initial weights without training."""

    name = "eval"
    builds = "titanrun.worker.build.build_evaluation:run_evaluation"


class ReinforcementLearning(TrainerKind):
    """Reinforcement learning from the rewards of the policy's own completions."""

    name = "rl"
    builds = "titanrun.worker.build.build_rollout_source:build_rollout_source"
    builds_source = True


def get_trainer_kinds() -> dict[str, type[TrainerKind]]:
    """Return the kinds by name: the built-in ones and those of the active plug-ins."""
    return {
        kind.name: kind
        for kind in TrainerKind.__subclasses__()
        if not registry.is_hidden_class(kind)
    }


def load_trainer_builder(kind: str) -> Any:
    """Import and return the function that builds the trainer of a kind."""
    trainer_kind = get_trainer_kinds()[kind]
    built = import_attribute(trainer_kind.builds)
    return (
        partial(import_attribute(LOOP_BUILDER), source=built)
        if trainer_kind.builds_source
        else built
    )


def import_attribute(import_string: str) -> Any:
    """Import and return what `module:attribute` names."""
    module, _, attribute = import_string.partition(":")
    return getattr(import_module(module), attribute)
