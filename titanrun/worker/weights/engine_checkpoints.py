"""Checkpoints of an engine in an external loop, without data position."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titanrun.components.checkpoints.checkpoint_reader import (
    LoadTolerance,
    Snapshot,
    name_damaged_state,
)
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.optimizer_state import OPTIMIZER_PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config.problems import problem_error
from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.training.engine import Engine
from titanrun.training.snapshot_tensors import find_nonfinite_names, format_name_list


@dataclass(frozen=True, slots=True)
class EngineCheckpoints:
    """Checkpoints of an engine. Collective: all ranks must call each method.

    Args:
        store: the folder of the checkpoints.
        engine: the engine to save.
        resolved: the text of the resolved recipe.
        layout: device of the ranks and how they split the model, for the manifest.
    """

    store: CheckpointStore
    engine: Engine
    resolved: str
    layout: Mapping[str, Any]

    def save(self, step: int, *, model_only: bool) -> AnyPath:
        """Save a checkpoint and return its folder.

        Raises:
            ProblemsFound: the step has a checkpoint already, or a value is not finite.
        """
        engine, ranks = self.engine, self.store.ranks
        tensors = engine.named_state_tensors(with_optimizer=not model_only)
        names = sorted(
            {
                name
                for found in ranks.all_gather_results(lambda: find_nonfinite_names(tensors))
                for name in found
            }
        )
        if names:
            raise problem_error(
                "checkpoint",
                f"the state to save is not finite: {format_name_list(names)}",
                hint="load an earlier checkpoint",
            )
        counts = {"steps_done": engine.steps_done, "policy_version": engine.policy_version}
        snapshot = Snapshot(
            step=step,
            holds="model" if model_only else "everything",
            tensors=tensors,
            state={"train": {"step": step, "tokens_seen": 0}, "engine": counts},
            rng=get_rng_states(engine.device),
            resolved_yaml=self.resolved,
            layout={"ranks": ranks.size, **self.layout},
        )
        self.store.save(snapshot)
        return self.store.get_checkpoint(step).folder

    def load(self, step: int | None, *, model_only: bool) -> int:
        """Load a checkpoint, the latest if `step` is None, and return its step.

        Raises:
            ProblemsFound: there is no such checkpoint, or it is damaged.
        """
        engine, ranks = self.engine, self.store.ranks
        chosen = self.store.find_latest_step() if step is None else step
        if chosen is None or chosen not in self.store.list_complete_steps():
            missing = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise problem_error(
                "checkpoint",
                f"{missing} in {self.store.folder}",
                hint="use the folder passed to `save`",
            )
        reasons = self.store.find_damage(chosen, "always")
        checkpoint = self.store.get_checkpoint(chosen)
        if reasons:
            raise problem_error(
                "checkpoint", f"{checkpoint.folder} cannot be used: {'; '.join(reasons)}"
            )
        weights_only = model_only or self.store.load_manifest(chosen).holds == "model"
        prefix = OPTIMIZER_PREFIX if weights_only else None
        tolerance = LoadTolerance(
            allows_cast=weights_only,
            ignore_prefix=prefix,
            names_on_other_ranks=engine.gather_names_on_other_stages(),
        )
        checkpoint.load_tensors(
            engine.named_state_tensors(with_optimizer=not weights_only),
            tolerance=tolerance,
            ranks=ranks,
        )
        engine.zero_grad()
        engine.on_state_loaded()
        if not weights_only:
            with name_damaged_state(checkpoint):
                saved = checkpoint.load_state()["engine"]
                engine.steps_done, engine.policy_version = (
                    saved["steps_done"],
                    saved.get("policy_version", 0),
                )
            if checkpoint.load_manifest().layout["ranks"] == ranks.size:
                set_rng_states(checkpoint.load_rng_states(ranks.rank), engine.device)
        return chosen
