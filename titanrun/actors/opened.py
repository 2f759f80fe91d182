"""What an actor has while it works: an engine among its ranks, built from the recipe that its fields make."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from titanrun.actors.translated import Translation
from titanrun.distributed.agreement import current_ranks
from titanrun.distributed.device import find_device
from titanrun.distributed.environment import read_place
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.processes import is_open, meet
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.recipe.run_files import RESOLVED
from titanrun.training.engine import Engine
from titanrun.training.garbage import GarbageCollection
from titanrun.worker.assemble import build_whole_engine, settle_chance
from titanrun.worker.company import company
from titanrun.worker.job import MEETING_SECONDS, Job
from titanrun.worker.open_engine import marking_of, meshes_for


@dataclass(slots=True)
class OpenActor:
    """An actor's engine on this rank, with what it was built from; `close` ends what was begun here."""

    engine: Engine
    run: Recipe
    job: Job
    meshes: Meshes | None
    garbage: GarbageCollection
    _opened: ExitStack = field(default_factory=ExitStack)

    @property
    def dp_rank(self) -> int:
        """Which of the batches is this rank's."""
        return 0 if self.meshes is None else self.meshes.batch_rank

    @property
    def dp_size(self) -> int:
        """How many batches a step takes."""
        return 1 if self.meshes is None else self.meshes.degrees.batch

    def close(self) -> None:
        """More than once does no harm."""
        self._opened.close()


def open_actor(translation: Translation) -> OpenActor:
    """The engine of an actor with the weights that its seed draws, on the ranks of a group that is there, or of torchrun's variables.

    Raises ProblemsFound where the fields do not fit these ranks.
    """
    place = read_place()
    ranks = current_ranks().count if is_open() else place.world_size
    resolved = translation.run(ranks)
    text, folder = resolved.text, resolved.recipe.dump_folder
    run = read_resolved_text(text)
    device = find_device(run.device, local_rank=place.local_rank)
    store = (
        meet(place, timeout_seconds=MEETING_SECONDS)
        if place.world_size > 1 and not is_open()
        else None
    )
    assert folder is not None
    job = Job(Path(folder) / RESOLVED, text, place, store)
    with ExitStack() as opened:
        meshes = meshes_of(run, job, device, opened)
        settle_chance(run)
        engine = build_whole_engine(run, device, meshes, marking_of(run))
        garbage = opened.enter_context(GarbageCollection(run.training))
        return OpenActor(engine, run, job, meshes, garbage, opened.pop_all())


def meshes_of(run: Recipe, job: Job, device: torch.device, opened: ExitStack) -> Meshes | None:
    """The meshes of the ranks; a group that is there already is taken over as it is."""
    return (
        meshes_for(run, device, opened)
        if is_open()
        else opened.enter_context(company(run, job, device))
    )
