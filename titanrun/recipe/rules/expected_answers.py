"""Rules about the expected answers of prompts."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.rl.config import RlConfig
from titanrun.rl.prompts.config import PromptRecordsConfig


@rule("expected-answers-are-read")
def expected_answers_are_read(run: Recipe) -> Iterator[RuleViolation]:
    """Require answer_column where a reward or the environment needs the expected answer.

    Without one, a completion is compared with an empty text. Set answer_column, or choose rewards
    that read no answer.
    """
    if run.rl is None:
        return
    readers = list_answer_readers(run.rl)
    datasets: list[tuple[DataPath, object]] = [
        (("training", "dataset"), run.training.dataset),
        (("rl", "validation", "dataset"), run.rl.validation.dataset),
    ]
    for place, dataset in datasets:
        if isinstance(dataset, PromptRecordsConfig) and dataset.answer_column is None:
            for path, title in readers:
                yield RuleViolation(
                    f"{title} needs expected answers, but answer_column is null",
                    ((*place, "answer_column"), path),
                    hint="set answer_column to the key of the answers, or use one that needs none",
                )


def list_answer_readers(rl: RlConfig) -> list[tuple[DataPath, str]]:
    """Return where the rewards and the environment are that need expected answers, with titles."""
    found: list[tuple[DataPath, str]] = [
        (("rl", "rewards", number), f"the reward {reward.name}")  # type: ignore[attr-defined]
        for number, reward in enumerate(rl.rewards)
        if reward.reads_answer
    ]
    if rl.environment.reads_answer:
        title = f"the environment {rl.environment.name}"  # type: ignore[attr-defined]
        found.append((("rl", "environment"), title))
    return found
