"""Kinds of training: what the word at `kind` in a recipe starts."""

from importlib import import_module
from typing import Any, ClassVar

from titanrun.config import registry


class TrainerKind:
    """A kind of training, in the torch-free wing; a subclass is a kind.

    `builds` is the import string of a function `(recipe, job, *, signals, on_step)` that gives a context manager, in which there is a
    trainer: see `titanrun.worker.assemble:assembled`, which is the one of pretraining.
    """

    name: ClassVar[str]
    builds: ClassVar[str]


class Pretrain(TrainerKind):
    """Next-token training on rows of a dataset, which fine-tuning is too."""

    name = "pretrain"
    builds = "titanrun.worker.assemble:assembled"


class Sft(TrainerKind):
    """Pretraining's loop on conversations, which a rule asks for."""

    name = "sft"
    builds = Pretrain.builds


class Eval(TrainerKind):
    """Nothing is trained: the worker measures the weights that the run starts from."""

    name = "eval"
    builds = "titanrun.worker.evaluation_run:evaluate"


class ReinforcementLearning(TrainerKind):
    """Learning from what the policy's own answers are worth."""

    name = "rl"
    builds = "titanrun.worker.rl:assembled_rl"


def kinds() -> dict[str, type[TrainerKind]]:
    """The kinds by name: those that ship, and those of the plug-ins in use."""
    return {
        kind.name: kind for kind in TrainerKind.__subclasses__() if not registry.is_hidden(kind)
    }


def assembler(kind: str) -> Any:
    """What builds the trainer of a kind, imported now."""
    module, _, attribute = kinds()[kind].builds.partition(":")
    return getattr(import_module(module), attribute)
