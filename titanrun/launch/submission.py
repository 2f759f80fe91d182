"""What all submitted launches do: show, submit and follow the job of a run."""

from collections.abc import Callable
from typing import Protocol

PrintLine = Callable[[str], None]


class Submission(Protocol):
    """The job of one run, which another system starts."""

    @property
    def text(self) -> str:
        """What is submitted, as a person reads it."""

    @property
    def cancel_command(self) -> str:
        """Command that cancels the submitted job."""

    def submit(self) -> str:
        """Submit the job. Return what to say about it.

        Raises:
            ProblemsFound: It cannot be submitted, or is queued or running already.
        """

    def follow(self, print_line: PrintLine) -> int:
        """Forward the output of the job until it is over. Return the exit code of the run."""
