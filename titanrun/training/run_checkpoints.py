"""What a checkpoint of a training run holds, and how the run goes on from one."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titanrun.components.checkpoints.checkpoint import Checkpoint, Snapshot, Tolerance
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.store import CheckpointStore, nothing_to_go_on_from
from titanrun.components.data.loader import RowLoader
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.agreement import Ranks
from titanrun.distributed.seeds import load_random_states, random_states
from titanrun.training.engine import Engine
from titanrun.training.state import TrainState

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RunCheckpoints:
    """Saves weights, optimizer, schedule, counters, data position and random states together, and loads them together.

    Args:
        config: the checkpoint section of the recipe.
        store: where they lie.
        resolved: the text of resolved.yaml.
        parallelism: how the ranks split the model, for the manifest.
    """

    config: CheckpointConfig
    store: CheckpointStore
    engine: Engine
    rows: RowLoader
    state: TrainState
    resolved: str
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    _saved: int | None = field(default=None)

    @property
    def ranks(self) -> Ranks:
        """Who saves and loads together."""
        return self.store.ranks

    def save(self, *, is_last: bool = False) -> None:
        """Saves the run as it is after its current step; a step that is saved already stays as it is."""
        step = self.state.step
        if step in (0, self._saved):
            return
        model_only = is_last and self.config.last_save_model_only
        if step in self.store.steps() and self.store.manifest(step).holds == "model":
            # an earlier, shorter end of this run, before which it had to go back
            self.store.remove(step)
        self.store.save(self._snapshot(model_only=model_only))
        self._saved = step
        if self.ranks.rank == 0:
            log.info("saved %s%s", self.store.checkpoint(step).folder, " (weights only)" if model_only else "")

    def resume(self, *, steps: int) -> bool:
        """Puts the run where its newest good checkpoint left it; false where it has none, and none that is damaged.

        Args:
            steps: the step the run shall reach. A checkpoint with weights only is fine where nothing is left to do.
        """
        step = self._step_to_resume(steps)
        if step is None:
            return False
        checkpoint = self.store.checkpoint(step)
        self._saved = step
        if self.store.manifest(step).holds == "model":
            self.state.load(checkpoint.load_state()["train"])
            checkpoint.load_tensors(self.engine.tensors(with_optimizer=False), tolerance=self._tolerance(), ranks=self.ranks)
            return True
        self._restore(checkpoint)
        log.info("going on after step %d, from %s", step, checkpoint.folder)
        return True

    def _snapshot(self, *, model_only: bool) -> Snapshot:
        return Snapshot(
            step=self.state.step,
            holds="model" if model_only else "everything",
            tensors=self.engine.tensors(with_optimizer=not model_only),
            state={
                "train": self.state.as_data(),
                "engine": {"steps_done": self.engine.steps_done},
                "data": self.rows.state(),
            },
            rng=random_states(self.engine.device),
            resolved=self.resolved,
            layout={"ranks": self.ranks.count, **self.parallelism},
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        """All of the run's state; the random states last, since what comes before may draw."""
        saved = checkpoint.load_state()
        checkpoint.load_tensors(self.engine.tensors(), tolerance=self._tolerance(), ranks=self.ranks)
        self.state.load(saved["train"])
        self.engine.steps_done = saved["engine"]["steps_done"]
        self.rows.load_state(saved["data"], other_data_allowed=self._is_allowed("training.dataset"))
        before = checkpoint.manifest().layout["ranks"]
        if before == self.ranks.count:
            load_random_states(checkpoint.load_rng(self.ranks.rank), self.engine.device)
        else:
            log.info(
                "saved by %d ranks, now %d: random draws other than the data's order begin anew from debug.seed", before, self.ranks.count
            )

    def _tolerance(self) -> Tolerance:
        return Tolerance(extra=self.config.allow_extra, cast=self.config.allow_cast)

    def _is_allowed(self, path: str) -> bool:
        return any(f"{path}.".startswith(f"{allowed}.") or allowed.startswith(f"{path}.") for allowed in self.config.allow_change)

    def _step_to_resume(self, steps: int) -> int | None:
        """The newest step whose checkpoint can be trusted, and holds everything where steps are left to do; None where nothing is saved.

        Damaged ones that are newer lose their name, so that the run can save those steps again. Raises ProblemsFound where none is good.
        """
        damaged: dict[int, list[str]] = {}
        weights_only: list[int] = []
        named = self.store.named_steps()
        for step in reversed(named):
            folder = self.store.checkpoint(step).folder
            reasons = self.store.damage(step, self.config.verify)
            if reasons:
                damaged[step] = reasons
                log.warning("%s cannot be used: %s", folder, "; ".join(reasons))
            elif step < steps and self.store.manifest(step).holds == "model":
                weights_only.append(step)
                log.warning("step %d was saved with its weights only: going back", step)
            else:
                for bad in damaged:
                    log.warning("it is kept as %s", self.store.set_aside(bad, "damaged"))
                return step
        if not named:
            return None
        problems = [self._weights_only(step) for step in weights_only]
        raise ProblemsFound([*nothing_to_go_on_from(self.store.folder, damaged).problems, *problems])

    def _weights_only(self, step: int) -> Problem:
        return Problem(
            "checkpoint",
            f"{self.store.checkpoint(step).folder} holds the weights only, the run cannot go on from it",
            ("checkpoint", "last_save_model_only"),
            help="start a new run with checkpoint.initial_load_path",
        )
