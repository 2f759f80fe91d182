"""Builds an RL run from its recipe: as a pretraining run, and beside it what asks the policy and says what its answers are worth."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.loader import RowLoader
from titanrun.components.metrics.recorder import Recorder
from titanrun.components.tokenizers.chat_template import folder_template
from titanrun.components.tokenizers.tokenizer import ChatTokenizer, Tokenizer
from titanrun.config.placed import placed
from titanrun.distributed.agreement import current_ranks, ranks_beside
from titanrun.distributed.device import find_device
from titanrun.distributed.liveness import heard_by, sign_of_life
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.precision import precision_named
from titanrun.distributed.processes import first_alone
from titanrun.distributed.shards import own_part
from titanrun.models.shared.config import AttentionConfig
from titanrun.models.shared.counting import parameter_count
from titanrun.recipe.recipe import Recipe
from titanrun.rl.config import RlConfig
from titanrun.rl.environments.environment import Environment
from titanrun.rl.generators.as_trained import AsTrained
from titanrun.rl.generators.generator import Beside, Generator, Supplies
from titanrun.rl.recorder import RolloutRecorder
from titanrun.rl.reference import Reference
from titanrun.rl.renderer import ChatRenderer, PlainRenderer, Renderer
from titanrun.rl.rewards.rubric import Reward, Rubric
from titanrun.rl.rollouts import Rollouter
from titanrun.rl.tasks.rows import TaskRows
from titanrun.rl.trainer import Progress, RlPlan, RlTrainer
from titanrun.rl.validation import Examination
from titanrun.rl.weight_sync.bus import WeightBus
from titanrun.rl.weight_sync.delivery import Delivery
from titanrun.rl.weight_sync.files import FolderBus
from titanrun.rl.weight_sync.in_process import InProcessBus
from titanrun.rl.weight_sync.shared_memory import SharedMemoryBus
from titanrun.training.agreed_signals import AgreedSignals
from titanrun.training.engine import Engine
from titanrun.training.garbage import GarbageCollection
from titanrun.training.passes import Loss
from titanrun.training.recovery import Recovery
from titanrun.training.signals import SignalRequests
from titanrun.training.state import TrainState
from titanrun.worker.assemble import (
    announce,
    build_save_times,
    build_whole_engine,
    settle_chance,
    shorten_patience,
    with_samples,
)
from titanrun.worker.build_checkpoints import begin, build_checkpoints, writes
from titanrun.worker.build_data import build_marking, build_rows, build_tokenizer
from titanrun.worker.build_guard import build_finite_guard, build_watchdog
from titanrun.worker.build_metrics import build_metric_log, build_throughput, label
from titanrun.worker.build_model import build_model, materialise, split_over_tensor_ranks
from titanrun.worker.build_profiling import profiled
from titanrun.worker.build_reference import without_adapters
from titanrun.worker.company import company
from titanrun.worker.converters import convert
from titanrun.worker.job import Job
from titanrun.worker.length import steps_of
from titanrun.worker.weights import load_initial_weights

log = logging.getLogger(__name__)

WEIGHTS_FOLDER = "weights"


class Closable(Protocol):
    """What holds something open."""

    def close(self) -> None: ...


@contextmanager
def assembled_rl(
    recipe: Recipe,
    job: Job,
    *,
    signals: SignalRequests,
    on_step: Callable[[int], None] = lambda step: None,
) -> Iterator[RlTrainer]:
    """The RL trainer of a run, where its latest checkpoint left it or with its first weights. Arguments as of `assembled`."""
    assert recipe.rl is not None, "a rule asks for it"
    device = find_device(recipe.device, local_rank=job.place.local_rank)
    with (
        build_watchdog(recipe, job) as watchdog,
        heard_by(watchdog.beat),
        company(recipe, job, device) as meshes,
    ):
        settle_chance(recipe)
        prompts = build_prompts(recipe, recipe.rl, job)
        engine = build_whole_engine(
            recipe, device, meshes, build_marking(recipe, prompts.tokenizer)
        )
        state, progress = TrainState(), Progress(recipe.rl, engine)
        checkpoints = build_checkpoints(
            recipe, job, engine=engine, rows=prompts.rows, state=state, progress=progress
        )
        begin(recipe, checkpoints)
        announce(recipe, job, device, meshes, rows=len(prompts.questions))
        rollouter, delivery = build_generation(
            recipe, recipe.rl, job, device, meshes, prompts.tokenizer
        )
        with (
            torch.autograd.set_detect_anomaly(recipe.debug.detect_anomaly),
            all_closed(checkpoints, rollouter, delivery.bus),
            closing(build_metric_log(recipe, job, first_step=state.step)) as metrics,
            closing(watchdog),
            profiled(recipe, job, device, first_step=state.step) as after_step,
        ):
            yield RlTrainer(
                config=recipe.rl,
                engine=engine,
                loss=build_policy_loss(recipe.rl, meshes),
                rows=prompts.rows,
                questions=prompts.questions,
                rollouter=rollouter,
                delivery=delivery,
                state=state,
                plan=build_rl_plan(recipe, meshes, stop_after=job.place.stop_after),
                metrics=metrics,
                recorder=Recorder(device),
                throughput=build_throughput(recipe, device, meshes),
                garbage=GarbageCollection(recipe.training),
                save_times=build_save_times(recipe),
                watchdog=watchdog,
                guard=build_finite_guard(recipe, device),
                recovery=Recovery(recipe.guard),
                progress=progress,
                rollout_log=RolloutRecorder(
                    recipe.rl.recorder, job.resolved.parent if job.place.is_first else None
                ),
                reference=build_reference(recipe, engine, device, meshes, prompts.tokenizer),
                examination=prompts.examination(recipe.rl, progress),
                signals=signals if meshes is None else AgreedSignals(signals, device),
                checkpoints=checkpoints if writes(recipe.checkpoint) else None,
                on_step=on_step,
                on_first_step=partial(shorten_patience, recipe, meshes),
                on_step_end=with_samples(
                    recipe, job, engine, after_step, tokenizer=prompts.tokenizer
                ),
            )


@contextmanager
def all_closed(*parts: Closable) -> Iterator[None]:
    """Closes the parts after the block, the first one last."""
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.close)
        yield


def build_policy_loss(config: RlConfig, meshes: Meshes | None) -> Loss:
    """What the algorithm minimises."""
    row_ranks = None if meshes is None else meshes.group("cp")
    temperature = config.sampling.temperature
    loss: Loss = config.algorithm.builder()(
        config.algorithm, sampling_temperature=temperature, row_ranks=row_ranks
    )
    return loss


@dataclass(frozen=True, slots=True)
class Prompts:
    """The questions of a run, those held out, and the place in them."""

    tokenizer: Tokenizer
    questions: TaskRows
    rows: RowLoader
    held_out: TaskRows | None

    def examination(self, config: RlConfig, progress: Progress) -> Examination | None:
        """What asks the held-out ones."""
        return (
            None
            if self.held_out is None
            else Examination(config.validation, self.held_out, progress.examined)
        )


def build_prompts(recipe: Recipe, config: RlConfig, job: Job) -> Prompts:
    """The questions, opened by the first rank before the others."""
    with first_alone(job.store, job.place, "data"):
        tokenizer = build_tokenizer(recipe)
        assert tokenizer is not None, "a rule asks for one"
        dataset, path = recipe.training.dataset, ("training", "dataset")
        questions = open_questions(dataset, path, recipe, tokenizer, job)
        held_out = None
        if isinstance(config.validation.dataset, DatasetConfig):
            held_out = open_questions(
                config.validation.dataset, ("rl", "validation", "dataset"), recipe, tokenizer, job
            )
    sign_of_life()
    rows = RowLoader(
        questions,
        seed=recipe.debug.seed,
        shuffle=dataset.shuffle,
        repeat=dataset.repeat,
        global_batch_size=1,
        place=path,
    )
    return Prompts(tokenizer, questions, rows, held_out)


def open_questions(
    dataset: DatasetConfig, path: tuple[str, ...], recipe: Recipe, tokenizer: Tokenizer, job: Job
) -> TaskRows:
    """The questions of one dataset."""
    rows: Any = build_rows(
        dataset,
        path,
        recipe,
        tokenizer=tokenizer,
        seq_len=recipe.training.seq_len,
        run_dir=job.resolved.parent,
    )
    assert isinstance(rows, TaskRows), "a rule asks for a task"
    return rows


def build_reference(
    recipe: Recipe,
    engine: Engine,
    device: torch.device,
    meshes: Meshes | None,
    tokenizer: Tokenizer,
) -> Reference | None:
    """What the policy is held against: itself without its adapters, or a second model with the weights that training begins with."""
    assert recipe.rl is not None
    if recipe.rl.reference is None:
        return None
    if recipe.rl.reference == "adapter_off":
        return Reference(engine, around=partial(without_adapters, engine.model))
    frozen = build_whole_engine(recipe, device, meshes, build_marking(recipe, tokenizer))
    load_initial_weights(
        recipe.checkpoint,
        model_config=recipe.model,
        engine=frozen,
        ranks=current_ranks(),
        seed=recipe.debug.seed,
    )
    return Reference(frozen)


def build_rl_plan(recipe: Recipe, meshes: Meshes | None, *, stop_after: int | None) -> RlPlan:
    """The numbers that steer the loop."""
    assert recipe.rl is not None
    attention = getattr(recipe.model, "attention", None)
    return RlPlan(
        steps=steps_of(recipe),
        row_length=recipe.training.seq_len,
        rows_per_pass=recipe.training.local_batch_size,
        share_rows=isinstance(attention, AttentionConfig)
        and attention.mask == "block_causal"
        and not recipe.rl.batch_invariant,
        log_every=recipe.metrics.log_freq,
        rank=0 if meshes is None else meshes.batch_rank,
        ranks=1 if meshes is None else meshes.degrees.batch,
        stop_after=stop_after,
    )


def build_generation(
    recipe: Recipe,
    config: RlConfig,
    job: Job,
    device: torch.device,
    meshes: Meshes | None,
    tokenizer: Tokenizer,
) -> tuple[Rollouter, Delivery]:
    """What holds the conversations, and what brings new weights to its generator."""
    rollouter = build_rollouter(
        recipe,
        config,
        job,
        build_supplies(recipe, config, job, device, meshes, tokenizer),
        tokenizer,
    )
    return rollouter, build_delivery(recipe, config, job, rollouter.generator)


def build_rollouter(
    recipe: Recipe, config: RlConfig, job: Job, supplies: Supplies, tokenizer: Tokenizer
) -> Rollouter:
    """What holds the conversations: generator, environment, rewards, renderer."""
    logs = job.resolved.parent / "logs"
    environment: Environment = config.environment.builder()(config.environment, logs=logs)
    generator: Generator = config.generator.builder()(config.generator, supplies=supplies)
    return Rollouter(
        generator=generator,
        environment=environment,
        rubric=build_rubric(config, logs),
        renderer=build_renderer(config, tokenizer),
        samples_per_prompt=config.rollout.samples_per_prompt,
        max_tokens=config.rollout.max_tokens or recipe.training.seq_len,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=recipe.debug.seed,
        # whoever answers takes as long as it takes: ranks that wait for it must not give up as they would in training
        ranks=ranks_beside(),
        ranks_per_copy=recipe.parallelism.tensor_parallel_degree
        if getattr(config.generator, "tensor_parallel", False)
        else 1,
    )


def build_supplies(
    recipe: Recipe,
    config: RlConfig,
    job: Job,
    device: torch.device,
    meshes: Meshes | None,
    tokenizer: Tokenizer,
) -> Supplies:
    """What a generator is built from."""
    training = recipe.training
    precision = precision_named(training.dtype, training.mixed_precision_param)

    def autocast() -> AbstractContextManager[object]:
        return precision.autocast(device) if config.batch_invariant else nullcontext()

    return Supplies(
        model=lambda is_split: own_copy(
            recipe, device, dtype_of(recipe, config), meshes if is_split else None
        ),
        sampling=config.sampling,
        end_ids=frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id}),
        encode=partial(tokenizer.encode, bos=False, eos=True),
        autocast=autocast,
        beside=Beside(
            recipe=job.text,
            dtype=str(dtype_of(recipe, config)).removeprefix("torch."),
            longest=config.rollout.max_tokens or training.seq_len,
            log=job.resolved.parent / "logs" / f"generator-rank{job.place.rank}.log",
            device=job.place.local_rank,
        ),
        reread=AsTrained(
            training.local_batch_size, training.seq_len, build_marking(recipe, tokenizer)
        )
        if config.batch_invariant
        else None,
    )


def dtype_of(recipe: Recipe, config: RlConfig) -> torch.dtype:
    """What a generator computes in: what the trainer does; its weights are the trainer's own where both must agree bit by bit."""
    precision = precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    return precision.storage if config.batch_invariant else precision.compute


def own_copy(
    recipe: Recipe, device: torch.device, dtype: torch.dtype, meshes: Meshes | None = None
) -> torch.nn.Module:
    """A model of the policy's kind, buffers in their own dtype: a whole one on this rank, or split over the tensor-parallel ranks of
    `meshes`, which then have the stream and the logits whole, since prompts have any lengths."""
    model = build_model(
        recipe, precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    )
    convert(recipe, model, meshes=None)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    split_over_tensor_ranks(recipe, model, meshes, matrices_only=True)
    materialise(model, device=device, seed=recipe.debug.seed)
    if meshes is not None:
        held = sum(own_part(parameter).numel() for parameter in model.parameters())
        log.info(
            "the generator has %s of its %s parameters on each rank",
            f"{held:,}",
            f"{parameter_count(recipe.model):,}",
        )
    return model.eval().requires_grad_(False)


def build_renderer(config: RlConfig, tokenizer: Tokenizer) -> Renderer:
    """What makes tokens of conversations."""
    if config.rollout.renderer == "plain":
        return PlainRenderer(tokenizer)
    assert isinstance(tokenizer, ChatTokenizer)
    with placed(("rl", "rollout", "renderer")):
        template = folder_template(tokenizer.folder)
    return ChatRenderer(tokenizer, partial(template.render, with_reply_opened=True))


def build_rubric(config: RlConfig, logs: Path) -> Rubric:
    """The rewards by name; a second one of a name is numbered."""
    rewards: dict[str, tuple[Reward, float]] = {}
    for reward in config.rewards:
        name = label(str(reward.name), rewards)  # type: ignore[attr-defined]
        rewards[name] = (
            reward.builder()(reward, log=logs / f"reward-{name.replace(' ', '-')}.log"),
            reward.weight,
        )
    return Rubric(rewards, config.rollout.truncation_reward, config.rollout.error_reward)


def build_delivery(recipe: Recipe, config: RlConfig, job: Job, generator: Generator) -> Delivery:
    """How weights get from the engine to the generator."""
    bus = bus_in(config, job.resolved.parent / WEIGHTS_FOLDER)
    return Delivery(bus, generator, dtype_of(recipe, config), parameter_names(recipe))


def parameter_names(recipe: Recipe) -> frozenset[str]:
    """The names of a whole model's parameters, as its converters leave them."""
    with_shapes = build_model(
        recipe, precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    )
    convert(recipe, with_shapes, meshes=None)
    return frozenset(name for name, _ in with_shapes.named_parameters(remove_duplicate=False))


def bus_in(config: RlConfig, folder: Path) -> WeightBus:
    """The way between trainer and generator; `folder`: of what is not kept in the process."""
    keep = config.sync.keep_versions
    if config.sync.transport == "in_process":
        return InProcessBus(keep=keep)
    if config.sync.transport == "shared_memory":
        return SharedMemoryBus(folder, keep=keep, ranks=current_ranks())
    return FolderBus(folder, keep=keep, ranks=current_ranks(), kind=config.sync.transport)
