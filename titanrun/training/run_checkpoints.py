"""What a checkpoint of a training run holds, and how the run goes on from one."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from titanrun.components.checkpoints.background import BackgroundSaves
from titanrun.components.checkpoints.checkpoint import Checkpoint, Snapshot, Tolerance, tensor_files
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.optimizer_state import PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.retention import Retention
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.components.metrics.happenings import SAVED_STEP
from titanrun.distributed.agreement import Ranks
from titanrun.distributed.dtypes import dtype_named
from titanrun.distributed.seeds import load_random_states, random_states
from titanrun.distributed.shards import own_part
from titanrun.training.choose_checkpoint import SEED_STEP, Choice, asked_for, newest_good
from titanrun.training.engine import Engine
from titanrun.training.finite import NonFinite
from titanrun.training.state import TrainState

log = logging.getLogger(__name__)

# beside the checkpoints, under a name that none of them has
QUARANTINE = "non-finite"
NAMES_SHOWN = 3


class Saved(Protocol):
    """What a checkpoint holds as plain data."""

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any]) -> None: ...


class DataPlace(Protocol):
    """Where a run is in its data, as plain data."""

    def state(self) -> dict[str, int | str]: ...

    def load_state(
        self, state: Mapping[str, int | str], *, other_data_allowed: bool = False
    ) -> None: ...


@dataclass(slots=True, kw_only=True)
class RunCheckpoints:
    """Saves weights, optimizer, schedule, counters, data position and random states together, and loads them together.

    Args:
        config: the checkpoint section of the recipe.
        store: where they lie.
        resolved: the text of resolved.yaml.
        parallelism: how the ranks split the model, for the manifest.
        background: what writes while training goes on; None: training waits.
        progress: what a run of another kind than pretraining is in the middle of.
    """

    config: CheckpointConfig
    store: CheckpointStore
    engine: Engine
    rows: DataPlace
    state: TrainState
    resolved: str
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    background: BackgroundSaves | None = None
    progress: Saved | None = None
    _saved: int | None = field(default=None)

    @property
    def ranks(self) -> Ranks:
        """Who saves and loads together."""
        return self.store.ranks

    def save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        """Saves the run as it is after its current step; a step that is saved already stays as it is. The last save is waited for."""
        step = self.state.step
        if self.background is not None:
            self.background.wait()
        if step in (SEED_STEP, self._saved):
            return
        if step in self.store.steps() and self.store.manifest(step).holds == "model":
            # an earlier, shorter end of this run, before which it had to go back
            self.store.remove(step)
        snapshot = self._snapshot(
            model_only=is_last and self.config.last_save_model_only, validation_loss=validation_loss
        )
        self._refuse_spoiled(snapshot)
        self._saved = step
        if self.background is not None and not is_last:
            self.background.start(snapshot, lambda: self._tell(snapshot))
        else:
            self.store.save(snapshot)
            self._tell(snapshot)

    def prepare(self) -> None:
        """Imports what writes checkpoints: a stop by signal has other things to wait for."""
        tensor_files()

    def go_back(self) -> int | None:
        """Puts the run where its newest good checkpoint left it, all but the data, which goes on where it is. None where it has none."""
        if self.background is not None:
            self.background.wait()
        choice = newest_good(self.config, self.store, steps=self.state.step + 1)
        if choice is None or choice.step == SEED_STEP:
            return None
        place = self.rows.state()
        self.restore(self.store.checkpoint(choice.step))
        self.rows.load_state(place)
        self._saved = choice.step
        self._set_aside(choice)
        return choice.step

    def save_seed(self) -> None:
        """Saves the weights before the first step, for runs of any layout to start from; once."""
        if SEED_STEP not in self.store.named_steps():
            snapshot = self._snapshot(model_only=True, dtype=None)
            self.store.save(snapshot)
            self._tell(snapshot)

    def check(self) -> None:
        """Raises what went wrong with a save in the background."""
        if self.background is not None:
            self.background.check()

    def close(self) -> None:
        """Waits for what is being saved."""
        if self.background is not None:
            self.background.close()

    def resume(self, *, steps: int) -> bool:
        """Puts the run where its newest good checkpoint left it; false where it has none, and none that is damaged.

        Damaged ones that are newer lose their name, and so do all that are newer than one that the recipe asks for: the run will save
        those steps again.

        Args:
            steps: the step the run shall reach. A checkpoint with weights only is fine where nothing is left to do.
        """
        choice = self._choice(steps)
        if choice is None:
            return False
        checkpoint = self.store.checkpoint(choice.step)
        self._saved = choice.step
        if self.store.manifest(choice.step).holds == "model":
            self.state.load(checkpoint.load_state()["train"])
            # they may have been saved in the dtype of an export
            tolerance = self._tolerance(with_optimizer=False, cast=True)
            checkpoint.load_tensors(
                self._wanted(checkpoint, with_optimizer=False),
                tolerance=tolerance,
                ranks=self.ranks,
            )
            self.engine.loaded()
        else:
            self.restore(checkpoint)
        if not self.config.load_only:
            self._set_aside(choice)
        log.info("going on after step %d, from %s", self.state.step, checkpoint.folder)
        return True

    def restore(self, checkpoint: Checkpoint) -> None:
        """All of a run's state but what the recipe excludes; the random states last, since what comes before may draw."""
        saved = checkpoint.load_state()
        excluded = (
            () if saved.get("loading") == self._loading() else self.config.exclude_from_loading
        )
        with_optimizer = "optimizer" not in excluded
        tensors = self._wanted(checkpoint, with_optimizer=with_optimizer)
        checkpoint.load_tensors(
            tensors, tolerance=self._tolerance(with_optimizer=with_optimizer), ranks=self.ranks
        )
        self.engine.loaded()
        if "train_state" not in excluded:
            self.state.load(saved["train"])
        if "lr_scheduler" not in excluded:
            self.engine.steps_done = saved["engine"]["steps_done"]
        if "dataloader" not in excluded:
            self.rows.load_state(
                saved["data"], other_data_allowed=self._is_allowed("training.dataset")
            )
        if self.progress is not None and "progress" in saved:
            self.progress.load_state(saved["progress"])
        before = checkpoint.manifest().layout["ranks"]
        if before == self.ranks.count:
            load_random_states(checkpoint.load_rng(self.ranks.rank), self.engine.device)
        else:
            log.info(
                "saved by %d ranks, now %d: random draws begin anew from debug.seed, the data's order stays",
                before,
                self.ranks.count,
            )

    def _wanted(self, checkpoint: Checkpoint, *, with_optimizer: bool) -> dict[str, Tensor]:
        """The tensors that a checkpoint fills: all, or those that are trained where it holds no others."""
        tensors = self.engine.tensors(with_optimizer=with_optimizer)
        if not self.config.adapters_only:
            return tensors
        absent = self.engine.frozen().difference(checkpoint.layouts())
        return {name: tensor for name, tensor in tensors.items() if name not in absent}

    def _refuse_spoiled(self, snapshot: Snapshot) -> None:
        """Raises NonFinite where weights or optimizer state are; they are kept apart, to be looked at, and never gone on from."""
        found = self.ranks.together(lambda: non_finite(snapshot.tensors))
        names = sorted({name for names in found for name in names})
        if not names:
            return
        quarantine = replace(
            self.store, folder=self.store.folder / QUARANTINE, retention=Retention()
        )
        if snapshot.step not in quarantine.named_steps():
            quarantine.save(snapshot)
        kept = f"the checkpoint is kept apart as {quarantine.checkpoint(snapshot.step).folder}"
        raise NonFinite(
            step=snapshot.step, name=f"the state to save ({shortened(names)})", value="not finite"
        ).because(kept)

    def _choice(self, steps: int) -> Choice | None:
        """Where to go on from. A run that has saved since it went on from load_step goes on from there, not from load_step again."""
        wanted = self.config.load_step
        if wanted is None:
            return newest_good(self.config, self.store, steps=steps)
        steps_after = [step for step in self.store.steps() if step > wanted]
        if steps_after:
            choice = newest_good(self.config, self.store, steps=steps)
            if choice is not None and choice.step > wanted and self._descends(choice.step):
                return choice
        return asked_for(self.config, self.store, wanted)

    def _descends(self, step: int) -> bool:
        """Whether that checkpoint was saved by a run that loaded what this one is asked to load."""
        return bool(self.store.checkpoint(step).load_state().get("loading") == self._loading())

    def _loading(self) -> dict[str, Any]:
        return {
            "load_step": self.config.load_step,
            "excluded": sorted(self.config.exclude_from_loading),
        }

    def _set_aside(self, choice: Choice) -> None:
        for step in self.store.named_steps():
            if step in choice.damaged:
                log.warning("it is kept as %s", self.store.set_aside(step, "damaged"))
            elif step > self.state.step and (
                choice.step == self.config.load_step or choice.step > self.state.step
            ):
                log.warning("step %d is kept as %s", step, self.store.set_aside(step, "superseded"))

    def _snapshot(
        self,
        *,
        model_only: bool,
        validation_loss: float | None = None,
        dtype: str | None = "export",
    ) -> Snapshot:
        tensors = self.engine.tensors(with_optimizer=not model_only)
        if self.config.adapters_only and self.state.step != SEED_STEP:
            frozen = self.engine.frozen()
            tensors = {name: tensor for name, tensor in tensors.items() if name not in frozen}
        if model_only and dtype is not None:
            tensors = cast(tensors, self.config.export_dtype)
        return Snapshot(
            step=self.state.step,
            holds="model" if model_only else "everything",
            tensors=tensors,
            state={
                "train": self.state.as_data(),
                "engine": {"steps_done": self.engine.steps_done},
                "data": self.rows.state(),
                "loading": self._loading(),
                **({} if self.progress is None else {"progress": self.progress.state()}),
            },
            rng=random_states(self.engine.device),
            resolved=self.resolved,
            layout={"ranks": self.ranks.count, **self.parallelism},
            validation_loss=validation_loss,
        )

    def _tell(self, snapshot: Snapshot) -> None:
        if self.ranks.rank == 0:
            folder = self.store.checkpoint(snapshot.step).folder
            weights = " (weights only)" if snapshot.holds == "model" else ""
            log.info("saved %s%s", folder, weights, extra={SAVED_STEP: snapshot.step})

    def _tolerance(self, *, with_optimizer: bool, cast: bool = False) -> Tolerance:
        prefix = None if with_optimizer else OPTIMIZER_PREFIX
        cast = cast or self.config.allow_cast
        return Tolerance(
            extra=self.config.allow_extra,
            cast=cast,
            ignore_prefix=prefix,
            elsewhere=self.engine.names_elsewhere(),
        )

    def _is_allowed(self, path: str) -> bool:
        return any(
            f"{path}.".startswith(f"{allowed}.") or allowed.startswith(f"{path}.")
            for allowed in self.config.allow_change
        )


def cast(tensors: Mapping[str, Tensor], dtype_name: str) -> dict[str, Tensor]:
    """The tensors in another dtype; whole numbers stay."""
    dtype = dtype_named(dtype_name)
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors with a NaN or an infinity in what this rank holds of them."""
    floating = {
        name: own_part(tensor) for name, tensor in tensors.items() if tensor.is_floating_point()
    }
    return [name for name, part in floating.items() if not part.isfinite().all()]


def shortened(names: list[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
