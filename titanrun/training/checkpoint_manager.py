"""Saving, loading and rollback of a training run's full state."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from titanrun.components.checkpoints.async_save import AsyncSaver
from titanrun.components.checkpoints.checkpoint_reader import (
    CheckpointReader,
    LoadTolerance,
    Snapshot,
    import_dcp_io,
    name_damaged_state,
)
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.optimizer_state import OPTIMIZER_PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.metrics.log_events import SAVED_STEP
from titanrun.config.pluralize import pluralize
from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.object_collectives import RankGroup
from titanrun.training.engine import Engine
from titanrun.training.nonfinite import NonFiniteError
from titanrun.training.resume_selection import (
    SEED_STEP,
    CheckOwner,
    ResumePoint,
    accept_any_owner,
    find_latest_valid,
    get_requested_step,
)
from titanrun.training.snapshot_tensors import cast_tensors, find_nonfinite_names, format_name_list
from titanrun.training.train_state import TrainState

log = logging.getLogger(__name__)

# next to the checkpoints, under a name that no checkpoint can have
QUARANTINE_FOLDER = "non-finite"
# what decides which data a run trains on
DATA_PATHS = ("training.dataset", "validation.holdout", "validation.holdout_by")


class Stateful(Protocol):
    """State that a checkpoint stores as plain data."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class StatefulDataLoader(Protocol):
    """Position of a run in its data, as plain data."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data. Collective for some data."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, allows_other_data: bool = False
    ) -> None:
        """Restore a position.

        Args:
            state_dict: the position that `state_dict` returned.
            allows_other_data: accept a position that was saved with another dataset.
        """


@dataclass(slots=True, kw_only=True)
class CheckpointManager:
    """Saves and restores everything that a run needs to continue.

    A checkpoint holds weights, optimizer, LR schedule, counters, data position and random states.

    Args:
        config: the checkpoint section of the recipe.
        store: the folder of the checkpoints.
        resolved_text: the text of resolved.yaml.
        layout: device of the ranks and how they split the model, for the manifest.
        loaded_layout: layout of the checkpoint that was loaded, None if there was none.
        async_saver: writes in the background while training continues. None: training waits.
        trainer_state: additional state of trainer kinds other than pretraining.
        last_save_seconds: duration of the last save of this process, None before it.
        run_id: id of the run, for the manifest.
        assets: files that go with the weights, by name, on the main rank.
        check_owner: raises a problem for a checkpoint of another run.
        keep_data_files: copies the files of the data from a checkpoint that is restored.
    """

    config: CheckpointConfig
    store: CheckpointStore
    engine: Engine
    dataloader: StatefulDataLoader
    train_state: TrainState
    resolved_text: str
    layout: Mapping[str, Any] = field(default_factory=dict)
    async_saver: AsyncSaver | None = None
    trainer_state: Stateful | None = None
    last_save_seconds: float | None = None
    loaded_layout: Mapping[str, Any] | None = None
    run_id: str | None = None
    assets: Mapping[str, bytes] = field(default_factory=dict)
    check_owner: CheckOwner = accept_any_owner
    keep_data_files: Callable[[AnyPath], None] | None = None
    _last_saved_step: int | None = field(default=None)

    @property
    def rank_group(self) -> RankGroup:
        """Ranks that save and load together."""
        return self.store.ranks

    def save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        """Save the run after its current step, unless that step is already saved.

        The last save is always synchronous.
        """
        step = self.train_state.step
        if self.async_saver is not None:
            self.async_saver.wait()
        if step in (SEED_STEP, self._last_saved_step):
            return
        if (
            step in self.store.list_complete_steps()
            and self.store.load_manifest(step).holds == "model"
        ):
            # the final save of an earlier, shorter run, which resumed from a checkpoint before it
            self.store.remove(step)
        snapshot = self._build_snapshot(
            model_only=is_last and self.config.last_save_model_only, validation_loss=validation_loss
        )
        self._check_finite(snapshot)
        self._last_saved_step = step
        on_saved = partial(self._log_saved, snapshot, start_time=time.monotonic())
        if self.async_saver is not None and not is_last:
            self.async_saver.start_save(snapshot, on_saved)
            # weights and states change in updates only
            self.engine.run_before_update(self.async_saver.wait_for_copies_on_device)
        else:
            self.store.save(snapshot)
            on_saved()

    def prepare(self) -> None:
        """Import the checkpoint writer early, so that a stop by signal waits for no imports."""
        import_dcp_io()

    def rollback(self) -> int | None:
        """Restore the newest valid checkpoint, except for the data position.

        The data position stays, so the data consumed since the checkpoint is skipped. Return the
        step of the checkpoint, or None if there is no checkpoint.
        """
        if self.async_saver is not None:
            self.async_saver.wait()
        choice = self._find_latest_valid(self.train_state.step + 1)
        if choice is None or choice.step == SEED_STEP:
            return None
        place = self.dataloader.state_dict()
        self.restore(self.store.get_checkpoint(choice.step))
        self.dataloader.load_state_dict(place)
        self._last_saved_step = choice.step
        self._rename_unused(choice)
        return choice.step

    def save_seed(self) -> None:
        """Save the weights before the first step, once, as a start for runs of any layout."""
        if SEED_STEP not in self.store.list_all_steps():
            start_time = time.monotonic()
            snapshot = self._build_snapshot(model_only=True, dtype=None)
            self.store.save(snapshot)
            self._log_saved(snapshot, start_time=start_time)

    def check(self) -> None:
        """Raise the error of a failed background save."""
        if self.async_saver is not None:
            self.async_saver.raise_if_failed()

    def close(self) -> None:
        """Wait for a background save to finish."""
        if self.async_saver is not None:
            self.async_saver.close()

    def resume(self, *, last_step: int) -> bool:
        """Restore the newest valid checkpoint; return False if there are no checkpoints.

        Newer damaged checkpoints are renamed, and so are all checkpoints newer than the one that
        the recipe requests: the run will save those steps again.

        Args:
            last_step: the step at which the run ends. A checkpoint with weights only is accepted if
                no steps are left.
        """
        choice = self._find_resume_point(last_step)
        if choice is None:
            return False
        checkpoint = self.store.get_checkpoint(choice.step)
        self._last_saved_step = choice.step
        if self.store.load_manifest(choice.step).holds == "model":
            with name_damaged_state(checkpoint):
                self.train_state.load_dict(checkpoint.load_state()["train"])
            # the weights may have been saved in the export dtype
            tolerance = self._build_tolerance(with_optimizer=False, cast=True)
            checkpoint.load_tensors(
                self._tensors_to_load(checkpoint, with_optimizer=False),
                tolerance=tolerance,
                ranks=self.rank_group,
            )
            self.engine.on_state_loaded()
        else:
            self.restore(checkpoint)
        if not self.config.load_only:
            self._rename_unused(choice)
        log.info("resuming after step %d from %s", self.train_state.step, checkpoint.folder)
        return True

    def restore(self, checkpoint: CheckpointReader) -> None:
        """Restore all state that the recipe does not exclude.

        Random states are restored last, because the steps before may draw random numbers.
        """
        saved = checkpoint.load_state()
        excluded = (
            ()
            if saved.get("loading") == self._get_load_settings()
            else self.config.exclude_from_loading
        )
        with_optimizer = "optimizer" not in excluded
        tensors = self._tensors_to_load(checkpoint, with_optimizer=with_optimizer)
        checkpoint.load_tensors(
            tensors,
            tolerance=self._build_tolerance(with_optimizer=with_optimizer),
            ranks=self.rank_group,
        )
        self.engine.on_state_loaded()
        if self.keep_data_files is not None:
            keep = partial(self.keep_data_files, checkpoint.folder)
            self.rank_group.broadcast_from_main(keep)
        with name_damaged_state(checkpoint):
            self._restore_state(saved, excluded)
        self.loaded_layout = checkpoint.load_manifest().layout
        before = self.loaded_layout["ranks"]
        if before == self.rank_group.size:
            set_rng_states(checkpoint.load_rng_states(self.rank_group.rank), self.engine.device)
        else:
            log.info(
                "checkpoint was saved by %s, this run has %d: RNG states are reset from "
                "debug.seed, the data order is unchanged",
                pluralize(before, "rank"),
                self.rank_group.size,
            )

    def _restore_state(self, saved: Mapping[str, Any], excluded: Collection[str]) -> None:
        if "train_state" not in excluded:
            self.train_state.load_dict(saved["train"])
        if "lr_scheduler" not in excluded:
            self.engine.steps_done = saved["engine"]["steps_done"]
        if "dataloader" not in excluded:
            self.dataloader.load_state_dict(
                saved["data"], allows_other_data=self.config.allows_change(*DATA_PATHS)
            )
        if self.trainer_state is not None and "progress" in saved:
            self.trainer_state.load_state_dict(saved["progress"])

    def _tensors_to_load(
        self, checkpoint: CheckpointReader, *, with_optimizer: bool
    ) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint fills.

        These are all tensors, or only the trained ones if the checkpoint does not hold the others.
        """
        tensors = self.engine.named_state_tensors(with_optimizer=with_optimizer)
        if not self.config.adapters_only:
            return tensors
        absent = self.engine.frozen_names().difference(checkpoint.load_tensor_metadata())
        return {name: tensor for name, tensor in tensors.items() if name not in absent}

    def _check_finite(self, snapshot: Snapshot) -> None:
        """Raise NonFiniteError if weights or optimizer state contain NaN or infinite values.

        Such a state is saved in a separate folder for inspection, which no run resumes from.
        """
        found = self.rank_group.all_gather_results(lambda: find_nonfinite_names(snapshot.tensors))
        names = sorted({name for names in found for name in names})
        if not names:
            return
        quarantine = replace(
            self.store, folder=self.store.folder / QUARANTINE_FOLDER, retention=RetentionPolicy()
        )
        if snapshot.step not in quarantine.list_all_steps():
            quarantine.save(snapshot)
        folder = quarantine.get_checkpoint(snapshot.step).folder
        raise NonFiniteError(
            step=snapshot.step,
            name=f"the state to save ({format_name_list(names)})",
            value="not finite",
        ).with_reason(f"the checkpoint was saved for inspection as {folder}")

    def _find_resume_point(self, steps: int) -> ResumePoint | None:
        """Return the checkpoint to resume from.

        A run that has saved checkpoints after loading `load_step` resumes from those, instead of
        loading `load_step` again.
        """
        wanted = self.config.load_step
        if wanted is None:
            return self._find_latest_valid(steps)
        steps_after = [step for step in self.store.list_complete_steps() if step > wanted]
        if steps_after:
            choice = self._find_latest_valid(steps)
            if choice is not None and choice.step > wanted and self._is_descendant(choice.step):
                return choice
        return get_requested_step(self.config, self.store, wanted, check_owner=self.check_owner)

    def _find_latest_valid(self, last_step: int) -> ResumePoint | None:
        return find_latest_valid(
            self.config, self.store, last_step=last_step, check_owner=self.check_owner
        )

    def _is_descendant(self, step: int) -> bool:
        """Return whether the checkpoint's run loaded the same checkpoint as this run shall load."""
        return bool(
            self.store.get_checkpoint(step).load_state().get("loading") == self._get_load_settings()
        )

    def _get_load_settings(self) -> dict[str, Any]:
        return {
            "load_step": self.config.load_step,
            "excluded": sorted(self.config.exclude_from_loading),
        }

    def _rename_unused(self, choice: ResumePoint) -> None:
        for step in self.store.list_all_steps():
            if step in choice.damaged_steps:
                log.warning("renamed to %s", self.store.set_aside(step, "damaged"))
            elif step > self.train_state.step and (
                choice.step == self.config.load_step or choice.step > self.train_state.step
            ):
                log.warning("step %d renamed to %s", step, self.store.set_aside(step, "superseded"))

    def _build_snapshot(
        self,
        *,
        model_only: bool,
        validation_loss: float | None = None,
        dtype: str | None = "export",
    ) -> Snapshot:
        tensors = self.engine.named_state_tensors(with_optimizer=not model_only)
        if self.config.adapters_only and self.train_state.step != SEED_STEP:
            frozen = self.engine.frozen_names()
            tensors = {name: tensor for name, tensor in tensors.items() if name not in frozen}
        if model_only and dtype is not None:
            tensors = cast_tensors(tensors, self.config.export_dtype)
        return Snapshot(
            step=self.train_state.step,
            holds="model" if model_only else "everything",
            tensors=tensors,
            state={
                "train": self.train_state.to_dict(),
                "engine": {"steps_done": self.engine.steps_done},
                "data": self.dataloader.state_dict(),
                "loading": self._get_load_settings(),
                **(
                    {}
                    if self.trainer_state is None
                    else {"progress": self.trainer_state.state_dict()}
                ),
            },
            rng=get_rng_states(self.engine.device),
            resolved_yaml=self.resolved_text,
            layout={"ranks": self.rank_group.size, **self.layout},
            validation_loss=validation_loss,
            run=self.run_id,
            assets=self.assets,
        )

    def _log_saved(self, snapshot: Snapshot, *, start_time: float) -> None:
        self.last_save_seconds = time.monotonic() - start_time
        if self.rank_group.rank == 0:
            folder = self.store.get_checkpoint(snapshot.step).folder
            weights = " (weights only)" if snapshot.holds == "model" else ""
            log.info("saved %s%s", folder, weights, extra={SAVED_STEP: snapshot.step})

    def _build_tolerance(self, *, with_optimizer: bool, cast: bool = False) -> LoadTolerance:
        prefix = None if with_optimizer else OPTIMIZER_PREFIX
        cast = cast or self.config.allow_cast
        return LoadTolerance(
            allows_extra=self.config.allow_extra,
            allows_cast=cast,
            ignore_prefix=prefix,
            names_on_other_ranks=self.engine.gather_names_on_other_stages(),
        )
