"""The length of a run once its data is open: epochs in steps, and the same length in the other units."""

from titanrun.config.counted import counted
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.recipe.decide import with_steps
from titanrun.recipe.length import tokens_per_step
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.schedule import schedule_covers_run, warmup_within_run


def with_length(recipe: Recipe, *, rows: int) -> Recipe:
    """The run with its steps as a number: what its epochs over `rows` rows come to. Raises ProblemsFound where that is nothing, or
    where it contradicts the schedule.

    Global batches run on from one epoch into the next, so every row is seen once an epoch. At the very end the rows that fill no
    global batch are left out.
    """
    training = recipe.training
    if training.epochs is None:
        return recipe
    total, size = training.epochs * rows, global_batch(recipe)
    if total < size:
        epochs = f"{counted(training.epochs, 'epoch')} of {counted(rows, 'row')} {'is' if training.epochs == 1 else 'are'}"
        message = f"{epochs} {counted(total, 'row')}, and one global batch takes {size}"
        raise fail(
            "data",
            message,
            path=("training", "epochs"),
            help="use more epochs, more data, or a smaller global batch",
        )
    run = with_steps(recipe, total // size)
    found = [
        finding
        for check in (warmup_within_run, schedule_covers_run)
        for finding in check(run)
        if finding.severity == "error"
    ]
    if found:
        raise ProblemsFound(
            [
                Problem(finding.code, finding.message, finding.paths[0], help=finding.help)
                for finding in found
            ]
        )
    return run


def refuse_fewer_epochs(recipe: Recipe, *, done: int) -> None:
    """Raises ProblemsFound where the run has trained more steps than its epochs come to: it cannot be shortened afterwards."""
    epochs, steps = recipe.training.epochs, steps_of(recipe)
    if epochs is not None and done > steps:
        are = "is" if epochs == 1 else "are"
        message = f"the run has trained {counted(done, 'step')} already, and {counted(epochs, 'epoch')} {are} {steps}"
        help = "ask for more epochs, or name another folder"
        raise ProblemsFound(
            [
                Problem(
                    "conflict",
                    message,
                    ("training", "epochs"),
                    rule="steps-already-done",
                    help=help,
                )
            ]
        )


def global_batch(recipe: Recipe) -> int:
    """Rows of one optimizer step."""
    assert recipe.training.global_batch_size != "auto"
    return recipe.training.global_batch_size


def steps_of(recipe: Recipe) -> int:
    """Steps of a run whose length is decided."""
    assert isinstance(recipe.training.steps, int)
    return recipe.training.steps


def length_words(recipe: Recipe, *, rows: int) -> str:
    """The length in every unit: `80 steps of 16 rows of 256 tokens: 327,680 tokens, 0.42 epochs of 3,020 rows`."""
    size, steps = global_batch(recipe), steps_of(recipe)
    tokens = steps * tokens_per_step(recipe, global_batch_size=size)
    batch = f"{counted(steps, 'step')} of {counted(size, 'row')} of {counted(recipe.training.seq_len, 'token')}"
    left = (recipe.training.epochs or 0) * rows - steps * size
    rest = f", {counted(left, 'row')} at the end left out" if left > 0 else ""
    return f"{batch}: {counted(tokens, 'token')}, {counted(steps * size / rows, 'epoch')} of {counted(rows, 'row')}{rest}"
