"""What a checkpoint of verl's configs holds: everything, or the weights alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.config.problems import problem_error

ALL_CONTENTS = frozenset({"model", "optimizer", "extra"})
MODEL_ONLY = frozenset({"model"})


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """Whether checkpoints hold the weights alone, and whether the weights alone are loaded."""

    saves_model_only: bool = False
    loads_model_only: bool = False


def build_checkpoint_contents(
    saved: Sequence[str] | None, loaded: Sequence[str] | None
) -> CheckpointContents:
    """Return the contents that verl's words say. None: everything.

    Raises:
        ProblemsFound: the words are neither everything nor the weights alone.
    """
    return CheckpointContents(
        saves_model_only=is_model_only("save_contents", saved),
        loads_model_only=is_model_only("load_contents", loaded),
    )


def is_model_only(name: str, words: Sequence[str] | None) -> bool:
    """Return whether the words name the weights alone.

    Raises:
        ProblemsFound: they name neither these nor everything.
    """
    found = ALL_CONTENTS if words is None else frozenset(words)
    if found not in (ALL_CONTENTS, MODEL_ONLY):
        raise problem_error(
            "usage",
            f"{name} [{', '.join(words or ())}] is not supported",
            hint="use [model, optimizer, extra] or [model]; titanrun checkpoint export "
            "writes a Hugging Face folder",
        )
    return found == MODEL_ONLY
