"""Hook that lowers the timeout of collectives after the first step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.train_hook import TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class TimeoutHook(TrainHook):
    """Change to the training timeout after the first step, which includes compilation."""

    apply_timeout: Callable[[], None]
    _is_applied: bool = False

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Apply the timeout after the first step of this process."""
        if not self._is_applied:
            self.apply_timeout()
            self._is_applied = True
