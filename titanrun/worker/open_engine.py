"""An engine from a recipe for loops that are not ours: no data, no loop, no files; in a process group that is there already, or alone."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from titanrun.components.data.documents import Marking, marking
from titanrun.distributed.agreement import current_ranks
from titanrun.distributed.device import find_device
from titanrun.distributed.environment import read_place, variables
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.processes import is_open, meet, process_group
from titanrun.models.shared.config import AttentionConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text, resolve
from titanrun.rl.policy_trainer import PolicyTrainer
from titanrun.training.engine import Engine
from titanrun.worker.assemble import build_whole_engine, settle_chance
from titanrun.worker.build_data import build_tokenizer
from titanrun.worker.company import degrees_for
from titanrun.worker.job import MEETING_SECONDS
from titanrun.worker.rl import build_policy_loss, bus_in, dtype_of, parameter_names
from titanrun.worker.weights import load_initial_weights

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenEngine:
    """An engine with what it was built from. `close` ends the process group only if it was begun here."""

    engine: Engine
    recipe: Recipe
    meshes: Meshes | None
    _opened: ExitStack = field(default_factory=ExitStack)

    @property
    def dp_rank(self) -> int:
        """Which share of each batch this rank reads."""
        return 0 if self.meshes is None else self.meshes.batch_rank

    @property
    def dp_size(self) -> int:
        """How many ranks read different rows."""
        return 1 if self.meshes is None else self.meshes.degrees.batch

    def close(self) -> None:
        """Ends what was begun here; more than once does no harm."""
        self._opened.close()


def open_engine(recipe: str, overrides: Sequence[str] = ()) -> OpenEngine:
    """The engine of a recipe on this rank, with the weights that its training begins with.

    A process group that is there already is taken over as it is; else the ranks of torchrun's variables form one.
    Raises ProblemsFound where the recipe has problems, or its degrees do not fit the ranks.
    """
    place = read_place()
    ranks = current_ranks().count if is_open() else place.world_size
    run = read_resolved_text(resolve(recipe, overrides, environment=variables(), ranks=ranks).text)
    device = find_device(run.device, local_rank=place.local_rank)
    opened = ExitStack()
    meshes = meshes_for(run, device, opened)
    settle_chance(run)
    engine = build_whole_engine(run, device, meshes, marking_of(run))
    load_initial_weights(run.checkpoint, model_config=run.model, engine=engine, ranks=current_ranks(), seed=run.debug.seed)
    return OpenEngine(engine, run, meshes, opened)


def meshes_for(run: Recipe, device: torch.device, opened: ExitStack) -> Meshes | None:
    """The meshes of the ranks that are there; None for one alone."""
    place = read_place()
    if is_open():
        log.warning("a process group is there already: it is used as it is, and the section comm is not read")
        ranks = current_ranks().count
        return Meshes(degrees_for(run, ranks), device) if ranks > 1 else None
    degrees = degrees_for(run, place.world_size)
    if place.world_size == 1:
        return None
    store = meet(place, timeout_seconds=MEETING_SECONDS)
    opened.enter_context(process_group(store, place, device=device, comm=run.comm))
    return Meshes(degrees, device)


def marking_of(run: Recipe) -> Marking:
    """What numbers the documents of a batch: positions, unless the recipe says end-of-text tokens."""
    attention = getattr(run.model, "attention", None)
    source = attention.documents if isinstance(attention, AttentionConfig) else None
    tokenizer = build_tokenizer(run) if source == "eos" else None
    return marking(source, eos_id=None if tokenizer is None else tokenizer.eos_id)


def open_policy_trainer(recipe: str, overrides: Sequence[str] = (), *, folder: Path | None = None) -> PolicyTrainer:
    """A policy trainer of a recipe of kind rl on this rank; `folder`: of its weights, for transports that need one."""
    opened = open_engine(recipe, overrides)
    config = opened.recipe.rl
    assert config is not None, "the recipe's kind is rl"
    return PolicyTrainer(
        engine=opened.engine,
        loss=build_policy_loss(config, opened.engine.meshes),
        bus=bus_in(config, Path("weights") if folder is None else folder),
        dtype=dtype_of(opened.recipe, config),
        parameters=parameter_names(opened.recipe),
        rank=opened.dp_rank,
        on_close=opened.close,
    )
