"""The trainer actor of TorchForge by its documented fields and calls, over the engine."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.actors.batches import StepShape, batch_of, engine_loss, picked
from titanrun.actors.fields import SECTIONS, section_of
from titanrun.actors.opened import OpenActor, open_actor
from titanrun.actors.pushed import (
    Store,
    huggingface_weights,
    parameter_key,
    prefix_of,
    write_version,
)
from titanrun.actors.translated import translate
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.agreement import current_ranks
from titanrun.recipe.run_files import EXPORT_FOLDER
from titanrun.training.run_checkpoints import RunCheckpoints
from titanrun.training.save_times import SaveTimes
from titanrun.training.state import TrainState
from titanrun.worker.assemble import build_save_times, shorten_patience
from titanrun.worker.build_checkpoints import begin, build_checkpoints, writes
from titanrun.worker.length import steps_of
from titanrun.worker.weights import export_huggingface, huggingface_files

log = logging.getLogger(__name__)

TITAN_TRAINER = "TitanTrainer"
PARETO = "activation_checkpoint.visualize_memory_budget_pareto"


def the_logits(logits: Tensor, **targets: Any) -> Tensor:
    """The documented default loss, which no step can learn from."""
    return logits


class CallersRows:
    """The place in the data of a loop that brings its own batches: there is none to save."""

    def state(self) -> dict[str, int | str]:
        return {}

    def load_state(
        self, state: Mapping[str, int | str], *, other_data_allowed: bool = False
    ) -> None:
        """Nothing: the caller knows."""


@dataclass(slots=True)
class Training:
    """What a trainer has between `setup` and `cleanup`."""

    opened: OpenActor
    checkpoints: RunCheckpoints
    save_times: SaveTimes
    state: TrainState
    shape: StepShape
    loss: Callable[..., Tensor]
    steps: int
    lr: float = 0.0
    grad_norm: float = 0.0


@dataclass(eq=False)
class TitanTrainer:
    """An actor that learns: `setup`, `train_step`, `push_weights`, `cleanup`. Every rank calls the same.

    A section is a mapping of its fields, named and with defaults as on the page of TorchForge's TitanTrainer; here it becomes an object
    with all of them. Raises ProblemsFound with everything that is wrong with them.

    Args:
        loss: `loss(logits, **targets)` of the rows of a pass: a mean over them.
        state_dict_key: what the handle of a pushed version is called in the store, behind `policy_ver_<version>.`.
        use_dcp: whether weights are pushed as a distributed checkpoint with a handle in the store; else tensor by tensor into the store.
        dcp_path: folder of these checkpoints.
        store: where weights are pushed; an object of your own, such as one over torchstore, or a dict.
    """

    job: Any = field(default_factory=dict)
    model: Any = field(default_factory=dict)
    optimizer: Any = field(default_factory=dict)
    lr_scheduler: Any = field(default_factory=dict)
    training: Any = field(default_factory=dict)
    parallelism: Any = field(default_factory=dict)
    checkpoint: Any = field(default_factory=dict)
    activation_checkpoint: Any = field(default_factory=dict)
    compile: Any = field(default_factory=dict)
    quantize: Any = field(default_factory=dict)
    comm: Any = field(default_factory=dict)
    memory_estimation: Any = field(default_factory=dict)
    loss: Callable[..., Tensor] = the_logits
    state_dict_key: str = "model_state_dict"
    use_dcp: bool = True
    dcp_path: str = "forge_dcp_tmp"
    store: Store = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        refuse_types(self)
        self._translation = translate(
            TITAN_TRAINER, {name: getattr(self, name) for name in SECTIONS}
        )
        self._translation.run(None)
        for name in SECTIONS:
            setattr(self, name, section_of(name, self._translation.values))
        self._training: Training | None = None

    @property
    def step(self) -> int:
        """The step that comes next, counted from 1."""
        return 1 if self._training is None else self._training.state.step + 1

    @property
    def training_state(self) -> Training:
        """What there is after `setup`. Raises RuntimeError before."""
        if self._training is None:
            raise RuntimeError(
                "call setup() first: the trainer has no engine, or cleanup() has ended it"
            )
        return self._training

    def setup(self) -> None:
        """Builds the engine, and goes on from the newest checkpoint where there is one; a second call changes nothing."""
        if self._training is not None:
            return
        trace_pareto(self._translation.values)
        opened = open_actor(self._translation)
        with ExitStack() as undo:
            undo.callback(opened.close)
            self._training = self._begun(opened)
            undo.pop_all()

    def _begun(self, opened: OpenActor) -> Training:
        run, state = opened.run, TrainState()
        if run.description and opened.job.place.is_first:
            log.info("%s", run.description)
        if run.debug.print_config and opened.job.place.is_first:
            log.info("%s", opened.job.text.rstrip())
        if run.checkpoint.enable and run.checkpoint.last_save_in_hf and run.tokenizer != "auto":
            # what the last save needs is asked for before the first step
            huggingface_files(run.tokenizer, run.model)
        checkpoints = build_checkpoints(
            run, opened.job, engine=opened.engine, rows=CallersRows(), state=state
        )
        begin(run, checkpoints)
        if run.checkpoint.create_seed_checkpoint:
            checkpoints.save_seed()
        shape = StepShape(
            rows=int(run.training.global_batch_size) // opened.dp_size,
            rows_per_pass=run.training.local_batch_size,
            seq_len=run.training.seq_len,
            vocab_size=run.model.output_width(),
            shares_rows=opened.engine.rows is not None,
        )
        return Training(
            opened,
            checkpoints,
            build_save_times(run),
            state,
            shape,
            compiled(self.loss, run.compile),
            steps_of(run),
        )

    def train_step(
        self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]
    ) -> float:
        """One optimizer step: forward, loss, backward, clipping, update, schedule, and a checkpoint where one is due.

        Gradients are the mean over the ranks. An update whose gradients are no numbers is left out.

        Args:
            inputs: for each data-parallel rank `{"tokens": [B, T]}`, and `positions` where rows do not count from 0.
            targets: for each data-parallel rank what `loss` takes by name beside the logits.

        Gives the loss, added up over the ranks that have different tokens.
        """
        training = self.training_state
        opened, engine = training.opened, training.opened.engine
        own = [
            picked(name, given, rank=opened.dp_rank, count=opened.dp_size)
            for name, given in (("inputs", inputs), ("targets", targets))
        ]
        batch, everywhere = batch_of(own[0], own[1], training.shape)
        everywhere = {
            name: value.to(engine.device) if isinstance(value, Tensor) else value
            for name, value in everywhere.items()
        }
        passes = batch.split(training.shape.rows_per_pass)
        pieces = len(passes) * pieces_of(opened, len(passes[0].tokens))
        ranks = 1 if engine.loss_group is None else engine.loss_group.size()
        loss = engine_loss(training.loss, everywhere)
        output = engine.forward_backward(
            passes, loss=loss, normalizer=torch.tensor(pieces * ranks, device=engine.device)
        )
        update = engine.optim_step(accepts=lambda norm: bool(norm.isfinite()))
        training.lr, training.grad_norm = update.lr, float(update.grad_norm)
        if update.is_skipped:
            log.warning(
                "step %d: the gradients are no numbers, and the update is left out", self.step
            )
        self._step_done(training, tokens=batch.tokens.numel() * opened.dp_size)
        return float(output.loss_sum) / pieces

    def _step_done(self, training: Training, *, tokens: int) -> None:
        """What follows an update: counters, garbage, checkpoints."""
        state, config = training.state, training.opened.run.checkpoint
        state.step += 1
        state.tokens_seen += tokens
        if state.step == 1:
            shorten_patience(training.opened.run, training.opened.meshes)
        training.opened.garbage.after_step(state.step)
        is_last = state.step == training.steps
        if not writes(config):
            return
        training.checkpoints.check()
        if is_last or training.save_times.is_due(state.step):
            training.checkpoints.save(is_last=is_last)
            training.save_times.restart()
        if is_last and config.last_save_in_hf:
            self._export(training)

    def _export(self, training: Training) -> None:
        """The finished model as a Hugging Face folder beside the checkpoints."""
        run, job = training.opened.run, training.opened.job
        assert run.tokenizer != "auto"
        export_huggingface(
            job.resolved.parent / EXPORT_FOLDER,
            engine=training.opened.engine,
            model_config=run.model,
            tokenizer=run.tokenizer,
            dtype_name=run.checkpoint.export_dtype,
            is_writer=job.place.is_first,
        )

    def push_weights(self, policy_version: int) -> None:
        """Puts the weights into the store as that version, under Hugging Face's names. The first rank has the store."""
        opened = self.training_state.opened
        ranks = current_ranks()
        weights = huggingface_weights(opened.engine, opened.run.model, is_kept=ranks.rank == 0)
        ranks.from_first(lambda: self._put(policy_version, weights))

    def _put(self, version: int, weights: dict[str, Tensor]) -> None:
        if self.use_dcp:
            folder = Path(self.dcp_path) / prefix_of(version)
            self.store[parameter_key(version, self.state_dict_key)] = write_version(folder, weights)
            return
        for name, tensor in weights.items():
            self.store[parameter_key(version, name)] = tensor

    def cleanup(self) -> None:
        """Waits for what is being saved and ends what `setup` began; more than once does no harm."""
        training, self._training = self._training, None
        if training is not None:
            training.checkpoints.close()
            training.opened.close()


def refuse_types(trainer: TitanTrainer) -> None:
    """Raises ProblemsFound where a field beside the sections is of another type than documented."""
    wanted = {"state_dict_key": str, "use_dcp": bool, "dcp_path": str}
    problems = [
        Problem(
            "wrong-type",
            f"{name} is {getattr(trainer, name)!r}, which is no {kind.__name__}",
            (name,),
        )
        for name, kind in wanted.items()
        if not isinstance(getattr(trainer, name), kind)
    ]
    if not callable(trainer.loss):
        problems.append(
            Problem(
                "wrong-type",
                f"loss is {trainer.loss!r}, which cannot be called",
                ("loss",),
                help="give loss(logits, **targets)",
            )
        )
    if problems:
        raise ProblemsFound(problems)


def compiled(loss: Callable[..., Tensor], config: Any) -> Callable[..., Tensor]:
    """The loss, compiled where the section compile says so."""
    if not config.enable or "loss" not in config.components:
        return loss
    made: Callable[..., Tensor] = torch.compile(loss, backend=config.backend)
    return made


def pieces_of(opened: OpenActor, rows: int) -> int:
    """Into how many microbatches a pipeline cuts the rows of a pass."""
    pipeline = getattr(opened.engine.passes, "pipeline", None)
    return 1 if pipeline is None else -(-rows // pipeline.plan.rows)


def trace_pareto(values: Mapping[str, Any]) -> None:
    """Has the compiler draw what each memory budget would cost, where the field asks for it."""
    if values.get(PARETO):
        # by name: it imports torch's compiler
        drawing: Any = import_module("torch._functorch.config")
        drawing.visualize_memory_budget_pareto = True
