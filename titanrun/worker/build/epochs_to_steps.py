"""Conversion of epochs to steps once the dataset size is known."""

from typing import Any

from titanrun.config.pluralize import pluralize
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve_auto import fill_steps
from titanrun.recipe.resolving.run_length import compute_tokens_per_step, describe_short_epochs
from titanrun.recipe.rules.epoch_length import get_least_batch
from titanrun.recipe.rules.schedule import schedule_covers_run, warmup_within_run
from titanrun.recipe.rules.semi_sync import groups_save_at_syncs


def resolve_epochs(recipe: Recipe, *, num_samples: int | None) -> Recipe:
    """Return the recipe with the number of steps that its epochs amount to.

    `num_samples` is the number of samples of an epoch, None for a stream, which has no epochs.

    Global batches continue from one epoch into the next, so every sample is used once per epoch.
    Samples at the very end that do not fill a global batch are dropped.

    Raises:
        ProblemsFound: the epochs are less than one step, or contradict the schedule.
    """
    training = recipe.training
    if training.epochs is None:
        return recipe
    assert num_samples is not None, "a rule refuses epochs of a stream"
    total, size = training.epochs * num_samples, get_samples_per_step(recipe)
    if total < size:
        named: dict[str, Any] = (
            {"local_size": training.local_batch_size, "least": get_least_batch(training.dataset)}
            if recipe.rl is None
            else {"noun": "prompt", "size_field": "rl.rollout.prompts_per_step"}
        )
        message, hint = describe_short_epochs(training.epochs, num_samples, size, **named)
        raise problem_error("data", message, path=("training", "epochs"), hint=hint)
    run = fill_steps(recipe, total // size)
    found = [
        finding
        for check in (warmup_within_run, schedule_covers_run, groups_save_at_syncs)
        for finding in check(run)
        if finding.severity == "error"
    ]
    if found:
        raise ProblemsFound(
            [
                Problem(finding.code, finding.message, finding.paths[0], hint=finding.hint)
                for finding in found
            ]
        )
    return run


def check_epochs_not_reduced(recipe: Recipe, *, steps_done: int) -> None:
    """Check that the run has not trained more steps than its epochs amount to.

    Raises:
        ProblemsFound: the run has trained more steps, and cannot be shortened afterwards.
    """
    epochs, steps = recipe.training.epochs, get_num_steps(recipe)
    if epochs is not None and steps_done > steps:
        have = "has" if epochs == 1 else "have"
        message = (
            f"the run has already trained {pluralize(steps_done, 'step')}, "
            f"but {pluralize(epochs, 'epoch')} {have} only {steps}"
        )
        hint = "use more epochs, or another folder"
        raise ProblemsFound(
            [
                Problem(
                    "conflict",
                    message,
                    ("training", "epochs"),
                    rule="steps-already-done",
                    hint=hint,
                )
            ]
        )


def get_global_batch_size(recipe: Recipe) -> int:
    """Return the number of sequences per optimizer step."""
    assert recipe.training.global_batch_size != "auto"
    return recipe.training.global_batch_size


def get_samples_per_step(recipe: Recipe) -> int:
    """Return the number of sequences, or of prompts for RL, per optimizer step."""
    return (
        get_global_batch_size(recipe) if recipe.rl is None else recipe.rl.rollout.prompts_per_step
    )


def get_num_steps(recipe: Recipe) -> int:
    """Return the number of steps of a run with a resolved length."""
    assert isinstance(recipe.training.steps, int)
    return recipe.training.steps


def format_training_length(recipe: Recipe, *, num_samples: int | None) -> str:
    """Format the length in every unit, without epochs for a stream.

    Example: `80 steps of 16 sequences of 256 tokens: 327,680 tokens, 0.42 epochs of 3,020
    sequences`.
    """
    steps = get_num_steps(recipe)
    if recipe.rl is not None:
        assert num_samples is not None
        prompts = get_samples_per_step(recipe)
        epochs = pluralize(steps * prompts / num_samples, "epoch")
        return (
            f"{pluralize(steps, 'step')} of {pluralize(prompts, 'prompt')}: "
            f"{epochs} of {pluralize(num_samples, 'prompt')}"
        )
    size = get_global_batch_size(recipe)
    tokens = steps * compute_tokens_per_step(recipe, global_batch_size=size)
    batch = (
        f"{pluralize(steps, 'step')} of {pluralize(size, 'sequence')} "
        f"of {pluralize(recipe.training.seq_len, 'token')}"
    )
    if num_samples is None:
        lanes = recipe.training.lanes
        assert isinstance(lanes, int), "the recipe is resolved"
        stream = f"a stream in {pluralize(lanes, 'lane')}"
        return f"{batch}: {pluralize(tokens, 'token')} of {stream}"
    left = (recipe.training.epochs or 0) * num_samples - steps * size
    rest = f", {pluralize(left, 'sequence')} at the end dropped" if left > 0 else ""
    epochs = pluralize(steps * size / num_samples, "epoch")
    return (
        f"{batch}: {pluralize(tokens, 'token')}, "
        f"{epochs} of {pluralize(num_samples, 'sequence')}{rest}"
    )
