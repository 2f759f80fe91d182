"""Checkpoints of an engine whose loop is not ours: what the engine holds, without data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titanrun.components.checkpoints.addresses import Place
from titanrun.components.checkpoints.checkpoint import Snapshot, Tolerance
from titanrun.components.checkpoints.optimizer_state import PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.config.problems import fail
from titanrun.distributed.seeds import load_random_states, random_states
from titanrun.training.engine import Engine
from titanrun.training.run_checkpoints import non_finite, shortened


@dataclass(frozen=True, slots=True)
class EngineCheckpoints:
    """Saves and loads an engine; every rank calls each method.

    Args:
        store: where they lie.
        engine: what is saved.
        resolved: the text of the resolved recipe.
        parallelism: how the ranks split the model, for the manifest.
    """

    store: CheckpointStore
    engine: Engine
    resolved: str
    parallelism: Mapping[str, Any]

    def save(self, step: int, *, model_only: bool) -> Place:
        """The folder of the checkpoint. Raises a problem where the step has one, or a number is not finite."""
        engine, ranks = self.engine, self.store.ranks
        tensors = engine.tensors(with_optimizer=not model_only)
        names = sorted(
            {name for found in ranks.together(lambda: non_finite(tensors)) for name in found}
        )
        if names:
            raise fail(
                "checkpoint",
                f"the state to save is not finite: {shortened(names)}",
                help="go back to an earlier checkpoint",
            )
        counts = {"steps_done": engine.steps_done, "policy_version": engine.policy_version}
        snapshot = Snapshot(
            step=step,
            holds="model" if model_only else "everything",
            tensors=tensors,
            state={"train": {"step": step, "tokens_seen": 0}, "engine": counts},
            rng=random_states(engine.device),
            resolved=self.resolved,
            layout={"ranks": ranks.count, **self.parallelism},
        )
        self.store.save(snapshot)
        return self.store.checkpoint(step).folder

    def load(self, step: int | None, *, model_only: bool) -> int:
        """The step that was loaded; None: the latest. Raises a problem where there is none, or it is damaged."""
        engine, ranks = self.engine, self.store.ranks
        chosen = self.store.latest() if step is None else step
        if chosen is None or chosen not in self.store.steps():
            wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise fail(
                "checkpoint",
                f"{self.store.folder} holds {wanted}",
                help="name the folder that `save` was given",
            )
        reasons = self.store.damage(chosen, "always")
        checkpoint = self.store.checkpoint(chosen)
        if reasons:
            raise fail("checkpoint", f"{checkpoint.folder} cannot be used: {'; '.join(reasons)}")
        weights_only = model_only or self.store.manifest(chosen).holds == "model"
        prefix = OPTIMIZER_PREFIX if weights_only else None
        tolerance = Tolerance(
            cast=weights_only, ignore_prefix=prefix, elsewhere=engine.names_elsewhere()
        )
        checkpoint.load_tensors(
            engine.tensors(with_optimizer=not weights_only), tolerance=tolerance, ranks=ranks
        )
        engine.zero_grad()
        engine.loaded()
        if not weights_only:
            saved = checkpoint.load_state()["engine"]
            engine.steps_done, engine.policy_version = (
                saved["steps_done"],
                saved.get("policy_version", 0),
            )
            if checkpoint.manifest().layout["ranks"] == ranks.count:
                load_random_states(checkpoint.load_rng(ranks.rank), engine.device)
        return chosen
