"""An engine from a recipe for loops that are not ours: no data, no loop; in a process group that is there already, or alone."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.components.checkpoints.addresses import Place, place
from titanrun.components.checkpoints.retention import Retention
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.components.data.documents import Marking, marking
from titanrun.config.base import dump
from titanrun.config.problems import fail
from titanrun.distributed.agreement import Ranks, current_ranks, ranks_beside
from titanrun.distributed.config import CommConfig
from titanrun.distributed.device import find_device
from titanrun.distributed.environment import read_place, variables
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.processes import is_open, meet, process_group
from titanrun.models.shared.config import AttentionConfig
from titanrun.models.shared.family import family_module
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text, resolve
from titanrun.rl.config import RlConfig
from titanrun.rl.generators.generator import Generator
from titanrun.rl.policy_trainer import PolicyTrainer
from titanrun.rl.weight_sync.bus import WeightBus
from titanrun.rl.weight_sync.delivery import Delivery, publish
from titanrun.rl.weight_sync.in_process import InProcessBus
from titanrun.training.engine import Engine
from titanrun.worker.assemble import build_whole_engine, settle_chance
from titanrun.worker.build_data import build_tokenizer
from titanrun.worker.company import degrees_for
from titanrun.worker.engine_checkpoints import EngineCheckpoints
from titanrun.worker.job import MEETING_SECONDS, Job
from titanrun.worker.rl import build_policy_loss, build_supplies, bus_in, dtype_of, parameter_names
from titanrun.worker.weights import huggingface_state, load_initial_weights, take_stream

log = logging.getLogger(__name__)

Names = Literal["native", "hf"]


@dataclass(slots=True)
class OpenEngine:
    """An engine with what it was built from. `close` ends the process group only if it was begun here.

    `text`: of the resolved recipe.
    """

    engine: Engine
    recipe: Recipe
    meshes: Meshes | None
    text: str = ""
    _opened: ExitStack = field(default_factory=ExitStack)
    _ranks: Ranks | None = None

    @property
    def dp_rank(self) -> int:
        """Which share of each batch this rank reads."""
        return 0 if self.meshes is None else self.meshes.batch_rank

    @property
    def dp_size(self) -> int:
        """How many ranks read different rows."""
        return 1 if self.meshes is None else self.meshes.degrees.batch

    @property
    def dp_group(self) -> dist.ProcessGroup | None:
        """The ranks whose losses are about different tokens; None for one alone."""
        return self.engine.loss_group

    @property
    def is_output_rank(self) -> bool:
        """Whether this is the one of the ranks that compute the same rows together that outputs are taken from."""
        if self.meshes is None:
            return True
        passes: Any = self.engine.passes
        last = self.meshes.group("pp")
        is_last = last is None or last.rank() == passes.pipeline.last_rank
        return is_last and all(
            group is None or group.rank() == 0 for group in map(self.meshes.group, ("tp", "cp"))
        )

    def state_dict_stream(
        self, *, names: Names = "native", dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """The whole weights by name, cast to `dtype`, in the same order on every rank; all ranks must read to the end.

        Args:
            names: `native` gathers one at a time; `hf` has Hugging Face's names, adapters merged, and gathers all into host memory first.
            dtype: None keeps that of training.
        """
        if names == "native":
            return self.engine.state_dict_stream(dtype=dtype)
        return iter(
            huggingface_state(
                self.engine, self.recipe.model, dtype=dtype, lora=lora_of(self.recipe)
            ).items()
        )

    def load_stream(
        self, weights: Iterable[tuple[str, Tensor]], *, names: Names = "native", strict: bool = True
    ) -> None:
        """Takes up whole weights by name, as `state_dict_stream` gives them; dtypes stay the model's. Every rank must give the same.

        Waiting gradients are dropped; optimizer state and policy version stay. Raises a problem for another shape too.

        Args:
            names: `native` copies one at a time; under `hf` all are in memory first, and adapters stay as they are.
            strict: whether unknown and missing names are a problem; under `hf` they always are.
        """
        if names == "hf":
            module = family_module(type(self.recipe.model), "huggingface")
            weights = module.from_huggingface(self.recipe.model, dict(weights)).items()
        take_stream(weights, self.engine, strict=strict, keeps_adapters=names == "hf")
        self.engine.zero_grad()

    def save(
        self, folder: Path | str, *, step: int, keep: int = 0, model_only: bool = False
    ) -> Place:
        """Saves weights, optimizer, schedule, policy version and random states as `step-N` in `folder`; given back is where.

        Args:
            folder: of all checkpoints of this loop.
            step: of the caller's count; one that has a checkpoint already is a problem.
            keep: how many of the latest stay; 0: all.
            model_only: no optimizer and no random states.
        """
        return self._checkpoints(folder, keep).save(step, model_only=model_only)

    def load(
        self, folder: Path | str, *, step: int | None = None, what: Literal["all", "model"] = "all"
    ) -> int:
        """Takes up what `save` saved; the latest without `step`. Gives the step. A folder without, or a damaged one, is a problem."""
        return self._checkpoints(folder).load(step, model_only=what == "model")

    def publish(self, bus: WeightBus) -> int:
        """Puts the weights on a bus under the policy's version, which is given back, in the dtype that a generator of it computes in."""
        return publish(
            self.engine,
            bus,
            dtype=dtype_of(self.recipe, rl_of(self.recipe)),
            parameters=parameter_names(self.recipe),
        )

    def generator(self, *, folder: Path = Path()) -> Generator:
        """What `rl.generator` names, with the weights of now; `load` gives it those of a bus. Every rank has its own.

        `folder`: whose `logs` one in a process of its own writes to.
        """
        config, tokenizer = rl_of(self.recipe), build_tokenizer(self.recipe)
        assert tokenizer is not None, "a rule asks for one"
        job = Job(folder / "resolved.yaml", self.text, read_place())
        supplies = build_supplies(
            self.recipe, config, job, self.engine.device, self.meshes, tokenizer
        )
        generator: Generator = config.generator.builder()(config.generator, supplies=supplies)
        Delivery(
            InProcessBus(keep=1),
            generator,
            dtype_of(self.recipe, config),
            parameter_names(self.recipe),
        ).deliver(self.engine)
        return generator

    def _checkpoints(self, folder: Path | str, keep: int = 0) -> EngineCheckpoints:
        if self._ranks is None:
            self._ranks = ranks_beside()
        return EngineCheckpoints(
            CheckpointStore(
                folder=place(str(folder)), retention=Retention(keep), ranks=self._ranks
            ),
            self.engine,
            resolved=self.text,
            parallelism=dump(self.recipe.parallelism),
        )

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
    text = resolve(recipe, overrides, environment=variables(), ranks=ranks).text
    run = read_resolved_text(text)
    device = find_device(run.device, local_rank=place.local_rank)
    opened = ExitStack()
    meshes = meshes_for(run, device, opened)
    settle_chance(run)
    engine = build_whole_engine(run, device, meshes, marking_of(run))
    load_initial_weights(
        run.checkpoint,
        model_config=run.model,
        engine=engine,
        ranks=current_ranks(),
        seed=run.debug.seed,
    )
    return OpenEngine(engine, run, meshes, text, opened)


def meshes_for(run: Recipe, device: torch.device, opened: ExitStack) -> Meshes | None:
    """The meshes of the ranks that are there; None for one alone."""
    place = read_place()
    if is_open():
        unread = ", ".join(
            name for name, value in dump(run.comm).items() if value != getattr(CommConfig(), name)
        )
        written = f" ({unread})" if unread else ""
        log.warning(
            "a process group is there already: it is used as it is, and the section comm is not read%s",
            written,
        )
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


def rl_of(recipe: Recipe) -> RlConfig:
    """The section rl. Raises a problem where there is none."""
    if recipe.rl is None:
        raise fail(
            "usage",
            "this needs the section rl: how answers are drawn",
            path=("rl",),
            help="use a recipe of kind rl",
        )
    return recipe.rl


def open_policy_trainer(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    folder: Path | None = None,
    checkpoints: Path | None = None,
) -> PolicyTrainer:
    """A policy trainer of a recipe of kind rl on this rank.

    Args:
        folder: of its weights, for transports that need one.
        checkpoints: where `save_checkpoint` saves, as many as checkpoint.keep_latest_k; None: nowhere.
    """
    opened = open_engine(recipe, overrides)
    config = rl_of(opened.recipe)
    keep = opened.recipe.checkpoint.keep_latest_k
    return PolicyTrainer(
        engine=opened.engine,
        loss=build_policy_loss(config, opened.engine.meshes),
        bus=bus_in(config, Path("weights") if folder is None else folder),
        dtype=dtype_of(opened.recipe, config),
        parameters=parameter_names(opened.recipe),
        rank=opened.dp_rank,
        save=None
        if checkpoints is None
        else lambda step: opened.save(checkpoints, step=step, keep=keep),
        load=None if checkpoints is None else lambda step: opened.load(checkpoints, step=step),
        on_close=opened.close,
    )
