"""Engine of a TorchForge actor, built from the recipe that its fields define."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from titanrun.distributed.device import select_device
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import create_store, is_process_group_initialized
from titanrun.distributed.rank_env import read_rank_info
from titanrun.integrations.torchforge.fields_to_recipe import FieldTranslation
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.training.engine import Engine
from titanrun.training.gc_control import GarbageCollection
from titanrun.worker.build.build_engine import build_engine, set_determinism
from titanrun.worker.open_engine import build_default_document_id_fn, build_engine_meshes
from titanrun.worker.process_group_setup import init_distributed
from titanrun.worker.worker_job import RENDEZVOUS_TIMEOUT_SECONDS, WorkerJob


@dataclass(slots=True)
class ActorHandle:
    """Engine of an actor on this rank, with the objects it was built from.

    `close` releases what was opened here.
    """

    engine: Engine
    recipe: Recipe
    job: WorkerJob
    meshes: ParallelMeshes | None
    garbage_collection: GarbageCollection
    _exit_stack: ExitStack = field(default_factory=ExitStack)

    @property
    def dp_rank(self) -> int:
        """Index of this rank's batch."""
        return 0 if self.meshes is None else self.meshes.dp_rank

    @property
    def dp_size(self) -> int:
        """Number of batches per step."""
        return 1 if self.meshes is None else self.meshes.parallel_dims.dp_size

    def close(self) -> None:
        """Release all resources. Further calls have no effect."""
        self._exit_stack.close()


def open_actor(translation: FieldTranslation) -> ActorHandle:
    """Build the engine of an actor with weights drawn from its seed.

    The ranks are those of an existing process group, or of torchrun's variables.

    Raises:
        ProblemsFound: the fields do not fit these ranks.
    """
    rank_info = read_rank_info()
    ranks = (
        get_default_rank_group().size if is_process_group_initialized() else rank_info.world_size
    )
    resolved = translation.resolve(ranks)
    text, folder = resolved.text, resolved.recipe.dump_folder
    run = load_resolved_text(text)
    device = select_device(run.device, local_rank=rank_info.local_rank)
    store = (
        create_store(rank_info, timeout_seconds=RENDEZVOUS_TIMEOUT_SECONDS)
        if rank_info.world_size > 1 and not is_process_group_initialized()
        else None
    )
    assert folder is not None
    job = WorkerJob(Path(folder) / RESOLVED, text, rank_info, store)
    with ExitStack() as stack:
        meshes = build_actor_meshes(run, job, device, stack)
        set_determinism(run)
        engine = build_engine(run, device, meshes, build_default_document_id_fn(run))
        garbage_collection = stack.enter_context(GarbageCollection(run.training))
        return ActorHandle(engine, run, job, meshes, garbage_collection, stack.pop_all())


def build_actor_meshes(
    run: Recipe, job: WorkerJob, device: torch.device, exit_stack: ExitStack
) -> ParallelMeshes | None:
    """Return the meshes of the ranks. An existing process group is used as is."""
    return (
        build_engine_meshes(run, device, exit_stack)
        if is_process_group_initialized()
        else exit_stack.enter_context(init_distributed(run, job, device))
    )
