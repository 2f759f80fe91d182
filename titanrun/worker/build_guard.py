"""What watches the steps of a run: the guard against numbers that are none, spikes, and the watchdog against hangs."""

import faulthandler
import json
import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from titanrun.components.data.loader import RowLoader
from titanrun.distributed.agreement import current_ranks
from titanrun.distributed.flight_recorder import write_collectives
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.run_dir import STATUS, read_json, write_json
from titanrun.training.engine import Engine
from titanrun.training.evidence import Evidence
from titanrun.training.finite import FiniteGuard
from titanrun.training.recovery import Recovery
from titanrun.training.replay import Replay
from titanrun.training.spikes import SpikeWatch
from titanrun.training.stragglers import StragglerWatch
from titanrun.training.watchdog import Hang, Watchdog
from titanrun.worker.failures import EXIT_HANG
from titanrun.worker.job import Job
from titanrun.worker.talk import FAILURES

# ranks that hang together notice it at about the same time: each has that long to write down where it stands
LAST_WORDS_SECONDS = 3.0

log = logging.getLogger(__name__)


def guards(recipe: Recipe, job: Job, rows: RowLoader, engine: Engine) -> dict[str, Any]:
    """The trainer's keywords for what judges its steps."""
    return {
        "replay": Replay(recipe.guard.replay_interval, current_ranks()),
        "stragglers": build_straggler_watch(recipe, engine),
        "guard": build_finite_guard(recipe, engine.device),
        "recovery": Recovery(recipe.guard),
        "on_bad_step": build_evidence_writer(recipe, job, rows),
    }


def build_finite_guard(recipe: Recipe, device: torch.device) -> FiniteGuard:
    """What judges each step's numbers."""
    section = recipe.guard
    # the loss of a policy is near 0 whatever it does: its jumps say nothing
    watch = SpikeWatch(None if recipe.kind == "rl" else section.spike_sigmas, section.spike_window)
    return FiniteGuard(section.non_finite, device, watch, judges=recipe.comm.mode == "default")


def build_watchdog(recipe: Recipe, job: Job) -> Watchdog:
    """What ends this rank when it hangs."""
    return Watchdog(recipe.guard, partial(end_hung_rank, job))


def build_straggler_watch(recipe: Recipe, engine: Engine) -> StragglerWatch:
    """What measures this rank's own work."""
    stage = 0 if engine.meshes is None else engine.meshes.stage
    watch = StragglerWatch(
        recipe.guard.straggler_ratio, ranks=current_ranks(), stage=stage, device=engine.device
    )
    watch.attach(engine.model, engine.optimizer)
    return watch


def build_evidence_writer(recipe: Recipe, job: Job, rows: RowLoader) -> Callable[[Evidence], None]:
    """What keeps what is known about a bad step."""
    return partial(write_evidence, job, rows, recipe.guard.non_finite)


def write_evidence(job: Job, rows: RowLoader, policy: str, evidence: Evidence) -> None:
    """Writes logs/non-finite-step-N-rank-R.json. Training does not depend on it."""
    numbers, dealt = evidence.numbers, rows.last_numbers()
    gradients = {
        name: norm if math.isfinite(norm) else str(norm)
        for name, norm in evidence.gradient_norms.items()
    }
    content = {
        "step": numbers.step,
        "rank": job.place.rank,
        "policy": policy,
        "loss": str(numbers.loss),
        "grad_norm": str(numbers.grad_norm),
        "rows": dealt,
        "bad_rows": [dealt[row] for row in evidence.bad_rows],
        "first_bad_module": evidence.first_bad_module,
        "bad_gradients": [name for name, norm in gradients.items() if isinstance(norm, str)],
        "gradient_norms": gradients,
    }
    path = (
        job.resolved.parent / "logs" / f"non-finite-step-{numbers.step}-rank-{job.place.rank}.json"
    )
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("cannot write %s: %s", path, error.strerror)
        return
    log.warning(
        "%s is not finite at step %d: what is known about it is in %s",
        numbers.bad,
        numbers.step,
        path,
    )


def end_hung_rank(job: Job, hang: Hang) -> NoReturn:
    """Writes down where every thread of this rank stands, and ends it: the thread that hangs cannot."""
    run_dir, place = job.resolved.parent, job.place
    doing = {
        "build": "building the run",
        "first step": "the first step",
        "step": f"the step after step {hang.step}",
        "save": "saving a checkpoint",
    }
    limit = f"guard.{hang.phase.replace(' ', '_')}_timeout_seconds"
    stacks = dump_stacks(run_dir / "logs" / f"stacks-rank-{place.rank}.txt")
    told = f"error[hang]: rank {place.rank} hangs: {doing[hang.phase]} takes longer than {limit}; its stacks are in {stacks}"
    if place.world_size > 1 and (collectives := write_collectives(place)) is not None:
        told += f", its last collectives in {collectives}"
    logging.getLogger(FAILURES).error("%s", told)
    if place.failure_file is not None:
        write_json(
            place.failure_file,
            {"time": time.time(), "is_of_another": False, "text": told, "exit_code": EXIT_HANG},
        )
    status = read_json(run_dir / STATUS)
    if place.is_first and status:
        write_json(run_dir / STATUS, {**status, "state": "failed", "exit_code": EXIT_HANG})
    if place.world_size > 1:
        time.sleep(LAST_WORDS_SECONDS)
    os._exit(EXIT_HANG)


def dump_stacks(path: Path) -> Path:
    """Writes where every thread of this process stands."""
    with path.open("w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    return path
