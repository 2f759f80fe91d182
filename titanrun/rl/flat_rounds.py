"""Rounds of prompts whose rewards teach nothing: a warning first, then the end of the run."""

import logging
from dataclasses import dataclass

from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)

WARN_AFTER = 3
REASON = "all completions of a prompt scored the same or had no reward"
HINT = (
    "use easier prompts, a reward with more than two values, "
    "more samples_per_prompt, or a higher temperature"
)


@dataclass(slots=True)
class FlatRounds:
    """Warnings about consecutive rounds of prompts without reward variance, which make no step.

    Args:
        warn_at: number of rounds with the next warning. It doubles with each, so that the same
            number is not warned of again.
    """

    warn_at: int = WARN_AFTER

    def check(self, count: int, *, limit: int) -> None:
        """Warn about a number of consecutive rounds, if it is higher than before.

        Raises:
            ProblemsFound: there were as many as the limit.
        """
        if count >= limit:
            message = (
                f"no reward variance for {pluralize(count, 'consecutive round')} of prompts: "
                f"{REASON}"
            )
            raise problem_error("data", message, path=("rl", "rewards"), hint=HINT)
        if count >= self.warn_at:
            self.warn_at *= 2
            log.warning(
                "no reward variance for %d consecutive rounds of prompts, which make no step "
                "(stopping after %d): %s",
                count,
                limit,
                REASON,
            )
