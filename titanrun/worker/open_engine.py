"""Engines built from a recipe for external training loops, without data.

The ranks are those of an existing process group, or new ones.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import AnyPath, parse_storage_path
from titanrun.components.data.document_ids import DocumentIdFn, get_document_id_fn
from titanrun.config.base import dump_config
from titanrun.config.problems import problem_error
from titanrun.distributed.config import CommConfig
from titanrun.distributed.device import select_device
from titanrun.distributed.object_collectives import (
    RankGroup,
    get_default_rank_group,
    new_file_io_group,
)
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import (
    create_store,
    is_process_group_initialized,
    open_process_group,
)
from titanrun.distributed.rank_env import get_environment_variables, read_rank_info
from titanrun.models.shared.config import AttentionConfig
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.resolving.resolve_loaded import RecipeSource, resolve_source
from titanrun.rl.config import RlConfig
from titanrun.rl.generators.generator_protocol import Generator
from titanrun.rl.policy_trainer import PolicyTrainer
from titanrun.rl.weight_sync.in_process_transport import InProcessTransport
from titanrun.rl.weight_sync.transport import WeightTransport
from titanrun.rl.weight_sync.weight_sync import WeightSync, publish_weights
from titanrun.training.engine import Engine
from titanrun.worker.build.build_checkpoints import describe_layout
from titanrun.worker.build.build_data import build_tokenizer
from titanrun.worker.build.build_engine import build_engine, set_determinism
from titanrun.worker.build.build_rollout_source import build_drop_fn, build_policy_loss
from titanrun.worker.build.build_rollouts import (
    build_generator_resources,
    build_weight_transport,
    get_generator_dtype,
    get_parameter_names,
)
from titanrun.worker.process_group_setup import build_parallel_dims
from titanrun.worker.weights.engine_checkpoints import EngineCheckpoints
from titanrun.worker.weights.huggingface_export import (
    export_huggingface,
    gather_huggingface_weights,
)
from titanrun.worker.weights.initial_weights import load_initial_weights, load_weight_stream
from titanrun.worker.worker_job import RENDEZVOUS_TIMEOUT_SECONDS, WorkerJob

log = logging.getLogger(__name__)

WeightNaming = Literal["native", "hf"]


@dataclass(slots=True)
class EngineHandle:
    """Engine with the objects it was built from.

    `close` ends the process group only if it was started here. `resolved_text` is the text of the
    resolved recipe.
    """

    engine: Engine
    recipe: Recipe
    meshes: ParallelMeshes | None
    resolved_text: str = ""
    _exit_stack: ExitStack = field(default_factory=ExitStack)
    _rank_group: RankGroup | None = None

    @property
    def dp_rank(self) -> int:
        """Data-parallel rank."""
        return 0 if self.meshes is None else self.meshes.dp_rank

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks, which read different sequences."""
        return 1 if self.meshes is None else self.meshes.parallel_dims.dp_size

    @property
    def dp_group(self) -> dist.ProcessGroup | None:
        """Ranks whose losses cover different tokens, None for a single rank."""
        return self.engine.loss_group

    @property
    def is_output_rank(self) -> bool:
        """Whether outputs are taken from this rank, of all ranks that share its sequences."""
        if self.meshes is None:
            return True
        runner: Any = self.engine.runner
        last = self.meshes.get_group("pp")
        is_last = last is None or last.rank() == runner.pipeline.last_rank
        return is_last and all(
            group is None or group.rank() == 0 for group in map(self.meshes.get_group, ("tp", "cp"))
        )

    def state_dict_stream(
        self, *, names: WeightNaming = "native", dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the full weights by name in the same order on all ranks.

        Collective: all ranks must read to the end.

        Args:
            names: `native` gathers one weight at a time. `hf` yields Hugging Face names with
                adapters merged, and gathers all weights in host memory first.
            dtype: target dtype. None: that of each weight, or of the adapters if they are merged.
        """
        if names == "native":
            return self.engine.state_dict_stream(dtype=dtype)
        return iter(
            gather_huggingface_weights(
                self.engine, self.recipe.model, dtype=dtype, lora=find_lora_converter(self.recipe)
            ).items()
        )

    def load_weight_stream(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        names: WeightNaming = "native",
        strict: bool = True,
    ) -> None:
        """Load full weights by name, as yielded by `state_dict_stream`, in the model's dtypes.

        Collective: all ranks must pass the same weights. Accumulated gradients are dropped.
        Optimizer state and policy version are kept.

        Args:
            weights: full weights by name.
            names: `native` copies one weight at a time. `hf` holds all weights in memory first and
                keeps adapters.
            strict: whether unknown and missing names are errors. With `hf` they always are.

        Raises:
            ProblemsFound: a name or shape does not fit the model.
        """
        if names == "hf":
            module = load_family_module(type(self.recipe.model), "huggingface")
            weights = module.from_huggingface(self.recipe.model, dict(weights)).items()
        load_weight_stream(weights, self.engine, strict=strict, keeps_adapters=names == "hf")
        self.engine.zero_grad()

    def save(
        self, folder: Path | str, *, step: int, keep: int = 0, model_only: bool = False
    ) -> AnyPath:
        """Save weights, optimizer, schedule, policy version and random states; return the folder.

        Args:
            folder: parent folder of the checkpoints `step-N`.
            step: step number N, which must not be saved already.
            keep: number of latest checkpoints to keep. Set to 0 to keep all.
            model_only: omit optimizer and random states.
        """
        return self._get_checkpoints(folder, keep).save(step, model_only=model_only)

    def load(
        self, folder: Path | str, *, step: int | None = None, scope: Literal["all", "model"] = "all"
    ) -> int:
        """Load a checkpoint of `save`, the latest if `step` is None, and return its step.

        Raises:
            ProblemsFound: there is no such checkpoint, or it is damaged.
        """
        return self._get_checkpoints(folder).load(step, model_only=scope == "model")

    def publish_weights(self, transport: WeightTransport) -> int:
        """Publish the weights in the generator's dtype under the policy version.

        Return the version.
        """
        return publish_weights(
            self.engine,
            transport,
            dtype=get_generator_dtype(self.recipe, get_rl_config(self.recipe)),
            parameter_names=get_parameter_names(self.recipe),
        )

    def build_generator(self, *, folder: Path = Path()) -> Generator:
        """Build this rank's generator from `rl.generator` with the current weights.

        Call its `load` for later weights.

        Args:
            folder: parent of the folder `logs` of a generator in a separate process.
        """
        config, tokenizer = get_rl_config(self.recipe), build_tokenizer(self.recipe)
        assert tokenizer is not None, "a rule requires a tokenizer"
        job = WorkerJob(folder / "resolved.yaml", self.resolved_text, read_rank_info())
        resources = build_generator_resources(
            self.recipe, config, job, self.engine.device, self.meshes, tokenizer
        )
        generator: Generator = config.generator.load_builder()(
            config.generator, resources=resources
        )
        WeightSync(
            InProcessTransport(keep=1),
            generator,
            get_generator_dtype(self.recipe, config),
            get_parameter_names(self.recipe),
        ).sync_weights(self.engine)
        return generator

    def _get_checkpoints(self, folder: Path | str, keep: int = 0) -> EngineCheckpoints:
        if self._rank_group is None:
            self._rank_group = new_file_io_group()
        return EngineCheckpoints(
            CheckpointStore(
                folder=parse_storage_path(str(folder)),
                retention=RetentionPolicy(keep),
                ranks=self._rank_group,
            ),
            self.engine,
            resolved=self.resolved_text,
            layout=describe_layout(self.recipe, self.engine),
        )

    def close(self) -> None:
        """Release what was opened here. Further calls have no effect."""
        self._exit_stack.close()


def open_engine(recipe: RecipeSource, overrides: Sequence[str] = ()) -> EngineHandle:
    """Build the engine of a recipe on this rank with its initial weights.

    An existing process group is used as is. Otherwise the ranks of torchrun's environment variables
    form one.

    Raises:
        ProblemsFound: the recipe has problems, or its degrees do not fit the ranks.
    """
    rank_info = read_rank_info()
    ranks = (
        get_default_rank_group().size if is_process_group_initialized() else rank_info.world_size
    )
    text = resolve_source(
        recipe, overrides, environment=get_environment_variables(), ranks=ranks
    ).text
    run = load_resolved_text(text)
    device = select_device(run.device, local_rank=rank_info.local_rank)
    exit_stack = ExitStack()
    meshes = build_engine_meshes(run, device, exit_stack)
    set_determinism(run)
    engine = build_engine(run, device, meshes, build_default_document_id_fn(run))
    load_initial_weights(
        run.checkpoint,
        model_config=run.model,
        engine=engine,
        ranks=get_default_rank_group(),
        seed=run.debug.seed,
    )
    return EngineHandle(engine, run, meshes, text, exit_stack)


def build_engine_meshes(
    recipe: Recipe, device: torch.device, exit_stack: ExitStack
) -> ParallelMeshes | None:
    """Return the meshes of all ranks, None for a single rank."""
    rank_info = read_rank_info()
    if is_process_group_initialized():
        ignored = ", ".join(
            name
            for name, value in dump_config(recipe.comm).items()
            if value != getattr(CommConfig(), name)
        )
        ignored_fields = f" ({ignored})" if ignored else ""
        log.warning(
            "using the existing process group: the section comm is ignored%s",
            ignored_fields,
        )
        ranks = get_default_rank_group().size
        return ParallelMeshes(build_parallel_dims(recipe, ranks), device) if ranks > 1 else None
    parallel_dims = build_parallel_dims(recipe, rank_info.world_size)
    if rank_info.world_size == 1:
        return None
    store = create_store(rank_info, timeout_seconds=RENDEZVOUS_TIMEOUT_SECONDS)
    exit_stack.enter_context(open_process_group(store, rank_info, device=device, comm=recipe.comm))
    return ParallelMeshes(parallel_dims, device)


def build_default_document_id_fn(recipe: Recipe) -> DocumentIdFn:
    """Build the function that adds document ids to batches.

    Documents are separated by positions, unless the recipe sets end-of-text tokens.
    """
    attention = getattr(recipe.model, "attention", None)
    source, needs_starts = None, False
    if isinstance(attention, AttentionConfig):
        source, needs_starts = attention.documents, attention.backend == "varlen"
    tokenizer = build_tokenizer(recipe) if source == "eos" else None
    eos_id = None if tokenizer is None else tokenizer.eos_id
    return get_document_id_fn(source, eos_id=eos_id, needs_starts=needs_starts)


def get_rl_config(recipe: Recipe) -> RlConfig:
    """Return the section rl.

    Raises:
        ProblemsFound: the recipe has no section rl.
    """
    if recipe.rl is None:
        raise problem_error(
            "usage",
            "the section rl is required, but the recipe has none",
            path=("rl",),
            hint="use a recipe of kind rl",
        )
    return recipe.rl


def export_trainer_weights(handle: EngineHandle, folder: Path) -> None:
    """Write a folder that transformers can load. Collective: all ranks must call this."""
    tokenizer = handle.recipe.tokenizer
    assert tokenizer != "auto", "a resolved recipe has one or none"
    export_huggingface(
        folder,
        engine=handle.engine,
        model_config=handle.recipe.model,
        tokenizer=tokenizer,
        dtype_name=handle.recipe.checkpoint.export_dtype,
        is_writer=get_default_rank_group().rank == 0,
        lora=find_lora_converter(handle.recipe),
    )


def open_policy_trainer(
    recipe: RecipeSource,
    overrides: Sequence[str] = (),
    *,
    folder: Path | None = None,
    checkpoints: Path | None = None,
) -> PolicyTrainer:
    """Build the policy trainer of a recipe of kind rl on this rank.

    Args:
        recipe: the recipe.
        overrides: overrides of the recipe.
        folder: folder of published weights, for transports that need one.
        checkpoints: folder of checkpoints, of which checkpoint.keep_latest_k are kept. None: no
            checkpoints.
    """
    handle = open_engine(recipe, overrides)
    config = get_rl_config(handle.recipe)
    keep = handle.recipe.checkpoint.keep_latest_k
    return PolicyTrainer(
        engine=handle.engine,
        loss=build_policy_loss(config, handle.engine.meshes),
        prepare=build_drop_fn(config, handle.engine),
        transport=build_weight_transport(config, Path("weights") if folder is None else folder),
        dtype=get_generator_dtype(handle.recipe, config),
        parameter_names=get_parameter_names(handle.recipe),
        dp_rank=handle.dp_rank,
        save=None
        if checkpoints is None
        else lambda step, is_last: handle.save(
            checkpoints,
            step=step,
            keep=keep,
            model_only=is_last and handle.recipe.checkpoint.last_save_model_only,
        ),
        export=partial(export_trainer_weights, handle),
        load=None if checkpoints is None else lambda step: handle.load(checkpoints, step=step),
        on_close=handle.close,
    )
