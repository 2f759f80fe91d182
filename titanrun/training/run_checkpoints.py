"""What a checkpoint of a training run holds, and how the run goes on from one."""

import logging
from dataclasses import dataclass, field

from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.components.checkpoints.whole_folder import remove_whole
from titanrun.components.data.loader import RowLoader
from titanrun.config.problems import fail
from titanrun.distributed.seeds import load_random_states, random_states
from titanrun.training.engine import Engine
from titanrun.training.state import TrainState

log = logging.getLogger(__name__)

EVERYTHING = "everything"


@dataclass(slots=True, kw_only=True)
class RunCheckpoints:
    """Saves weights, optimizer, schedule, counters, data position and random states together, and loads them together."""

    store: CheckpointStore
    engine: Engine
    rows: RowLoader
    state: TrainState
    resolved: str
    last_is_model_only: bool = False
    _saved: int | None = field(default=None)

    def save(self, *, is_last: bool = False) -> None:
        """Saves the run as it is after its current step; a step that is saved already stays as it is."""
        step = self.state.step
        if step in (0, self._saved):
            return
        model_only = is_last and self.last_is_model_only
        if step in self.store.steps() and not self._holds_everything(step):
            # an earlier, shorter end of this run, before which it had to go back
            remove_whole(self.store.checkpoint(step).folder)
        tensors = self.engine.tensors(with_optimizer=not model_only)
        state = {
            "holds": "model" if model_only else EVERYTHING,
            "train": self.state.as_data(),
            "engine": {"steps_done": self.engine.steps_done},
            "data": self.rows.state(),
        }
        self.store.save(step, tensors, state, random_states(self.engine.device), self.resolved)
        self._saved = step
        log.info("saved %s%s", self.store.checkpoint(step).folder, " (weights only)" if model_only else "")

    def resume(self, *, steps: int) -> bool:
        """Puts the run where its latest checkpoint left it; false where there is none.

        Args:
            steps: the step the run shall reach. A checkpoint with weights only is fine where nothing is left to do.
        """
        step = self._step_to_resume(steps)
        if step is None:
            return False
        checkpoint = self.store.checkpoint(step)
        saved = checkpoint.load_state()
        self.state.load(saved["train"])
        self._saved = step
        if saved["holds"] != EVERYTHING:
            checkpoint.load_tensors(self.engine.tensors(with_optimizer=False))
            return True
        checkpoint.load_tensors(self.engine.tensors())
        self.engine.steps_done = saved["engine"]["steps_done"]
        self.rows.load_state(saved["data"])
        load_random_states(checkpoint.load_rng(), self.engine.device)
        log.info("going on after step %d, from %s", step, checkpoint.folder)
        return True

    def _step_to_resume(self, steps: int) -> int | None:
        """The latest step, or the latest one that is saved with everything where steps are left to do; None where nothing is saved."""
        latest = self.store.latest()
        if latest is None or latest >= steps:
            return latest
        for step in reversed(self.store.steps()):
            if self._holds_everything(step):
                if step < latest:
                    log.warning("step %d was saved with its weights only: going back to step %d", latest, step)
                return step
        raise fail(
            "checkpoint",
            f"{self.store.checkpoint(latest).folder} holds the weights only, the run cannot go on from it",
            path=("checkpoint", "last_save_model_only"),
            help="start a new run with checkpoint.initial_load_path",
        )

    def _holds_everything(self, step: int) -> bool:
        return bool(self.store.load_state(step)["holds"] == EVERYTHING)
