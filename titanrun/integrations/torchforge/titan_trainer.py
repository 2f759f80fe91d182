"""TorchForge's trainer actor with its documented fields and calls, on top of the engine."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.components.metrics.step_metrics import disable_compilation
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.integrations.torchforge.actor_engine import ActorHandle, open_actor
from titanrun.integrations.torchforge.actor_fields import (
    ACTOR_SECTIONS,
    FIELD_DEFAULTS,
    build_section,
)
from titanrun.integrations.torchforge.fields_to_recipe import translate_fields
from titanrun.integrations.torchforge.step_batches import (
    StepShape,
    build_engine_loss,
    build_step_batch,
    select_for_rank,
)
from titanrun.integrations.torchforge.weight_store import (
    Store,
    copy_huggingface_weights,
    get_parameter_key,
    get_version_prefix,
    write_version,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.run_files import EXPORT_FOLDER
from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.training.checkpoint_schedule import CheckpointSchedule
from titanrun.training.train_state import TrainState
from titanrun.worker.build.build_checkpoints import (
    build_checkpoint_manager,
    is_saving_enabled,
    load_initial_state,
)
from titanrun.worker.build.build_step_hooks import apply_train_timeout, build_checkpoint_schedule
from titanrun.worker.build.epochs_to_steps import get_num_steps
from titanrun.worker.training_template import find_training_end_ids
from titanrun.worker.weights.huggingface_export import collect_huggingface_files, export_huggingface

log = logging.getLogger(__name__)

TITAN_TRAINER = "TitanTrainer"
ASSETS_FIELD = "model.hf_assets_path"
PARETO_FIELD = "activation_checkpoint.visualize_memory_budget_pareto"


def return_logits(logits: Tensor, **targets: Any) -> Tensor:
    """Return the logits: the documented default loss, with which no step can learn."""
    return logits


def leave_out_absent_default(recipe: Recipe) -> Recipe:
    """Return the recipe without the tokenizer of the documented default, if its folder is absent.

    Only TorchForge's own checkout has that folder. The actor reads no text: checkpoints then hold
    no tokenizer.
    """
    tokenizer, default = recipe.tokenizer, str(FIELD_DEFAULTS[ASSETS_FIELD])
    is_default = isinstance(tokenizer, HuggingFaceTokenizerConfig) and Path(tokenizer.path) == Path(
        default
    )
    if not is_default or Path(default).exists():
        return recipe
    return type(recipe).model_validate({**dict(recipe), "tokenizer": None})


class NoDataPosition:
    """Empty data position of a loop that brings its own batches."""

    def state_dict(self) -> dict[str, int | str]:
        """Return an empty state."""
        return {}

    def load_state_dict(
        self, state_dict: Mapping[str, int | str], *, allows_other_data: bool = False
    ) -> None:
        """Do nothing: the caller tracks its data.

        Args:
            state_dict: ignored.
            allows_other_data: ignored.
        """


@dataclass(slots=True)
class TitanTrainerState:
    """Objects of a trainer between `setup` and `cleanup`."""

    handle: ActorHandle
    checkpoints: CheckpointManager
    checkpoint_schedule: CheckpointSchedule
    state: TrainState
    step_shape: StepShape
    loss: Callable[..., Tensor]
    steps: int
    lr: float = 0.0
    grad_norm: float = 0.0


@dataclass(eq=False)
class TitanTrainer:
    """Training actor with the methods `setup`, `train_step`, `push_weights` and `cleanup`.

    All ranks must call the methods together. A section is a mapping of its fields, with names and
    defaults as in TorchForge's documentation of TitanTrainer. It is converted to an object with all
    fields.

    Args:
        loss: `loss(logits, **targets)`, a mean over the sequences of a pass.
        state_dict_key: key of a pushed version's handle in the store, after
            `policy_ver_<version>.`.
        use_dcp: whether weights are pushed as a distributed checkpoint with a handle in the store,
            instead of tensor by tensor into the store.
        dcp_path: folder of these checkpoints.
        store: where weights are pushed: an object of your own, such as one over torchstore, or a
            dict.

    Raises:
        ProblemsFound: all problems with the fields.
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
    loss: Callable[..., Tensor] = return_logits
    state_dict_key: str = "model_state_dict"
    use_dcp: bool = True
    dcp_path: str = "forge_dcp_tmp"
    store: Store = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        check_field_types(self)
        self._translation = translate_fields(
            TITAN_TRAINER, {name: getattr(self, name) for name in ACTOR_SECTIONS}
        )
        self._translation.resolve(None)
        for name in ACTOR_SECTIONS:
            setattr(self, name, build_section(name, self._translation.values))
        self._training: TitanTrainerState | None = None

    @property
    def step(self) -> int:
        """Next step, counted from 1."""
        return 1 if self._training is None else self._training.state.step + 1

    @property
    def training_state(self) -> TitanTrainerState:
        """State after `setup`.

        Raises:
            RuntimeError: before `setup` and after `cleanup`.
        """
        if self._training is None:
            raise RuntimeError(
                "call setup() first: the trainer has no engine before setup() and after cleanup()"
            )
        return self._training

    def setup(self) -> None:
        """Build the engine and resume from the newest checkpoint, if any.

        Further calls have no effect.
        """
        if self._training is not None:
            return
        enable_pareto_trace(self._translation.values)
        handle = open_actor(self._translation)
        with ExitStack() as undo:
            undo.callback(handle.close)
            self._training = self._build_training_state(handle)
            undo.pop_all()

    def _build_training_state(self, handle: ActorHandle) -> TitanTrainerState:
        run, state = handle.recipe, TrainState()
        if run.description and handle.job.rank_info.is_main_rank:
            log.info("%s", run.description)
        if run.debug.print_config and handle.job.rank_info.is_main_rank:
            log.info("%s", handle.job.resolved_text.rstrip())
        if run.checkpoint.enable and run.checkpoint.last_save_in_hf and run.tokenizer != "auto":
            # check the files of the last save before the first step
            collect_huggingface_files(
                run.tokenizer,
                run.model,
                find_training_end_ids(run),
            )
        checkpoints = build_checkpoint_manager(
            leave_out_absent_default(run),
            handle.job,
            engine=handle.engine,
            dataloader=NoDataPosition(),
            state=state,
        )
        load_initial_state(run, checkpoints)
        if run.checkpoint.create_seed_checkpoint:
            checkpoints.save_seed()
        shape = StepShape(
            batch_size=int(run.training.global_batch_size) // handle.dp_size,
            local_batch_size=run.training.local_batch_size,
            seq_len=run.training.seq_len,
            vocab_size=run.model.output_dim(),
            uses_context_parallel=handle.engine.sequence_sharding is not None,
        )
        return TitanTrainerState(
            handle,
            checkpoints,
            build_checkpoint_schedule(run),
            state,
            shape,
            compile_user_loss(self.loss, run.compile),
            get_num_steps(run),
        )

    def train_step(
        self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]
    ) -> float:
        """Run one optimizer step and return the loss summed over ranks with different tokens.

        A step is forward, loss, backward, clipping, update, LR schedule, and a checkpoint if one is
        due. Gradients are the mean over the ranks. An update with NaN or infinite gradients is
        skipped.

        Args:
            inputs: `{"tokens": [B, T]}` for each data-parallel rank, and `positions` if sequences
                do not count from 0.
            targets: keyword arguments of `loss` besides the logits, for each data-parallel rank.
        """
        training = self.training_state
        handle, engine = training.handle, training.handle.engine
        own = [
            select_for_rank(name, given, dp_rank=handle.dp_rank, dp_size=handle.dp_size)
            for name, given in (("inputs", inputs), ("targets", targets))
        ]
        batch, shared = build_step_batch(own[0], own[1], training.step_shape)
        shared = {
            name: value.to(engine.device) if isinstance(value, Tensor) else value
            for name, value in shared.items()
        }
        passes = batch.split(training.step_shape.local_batch_size)
        num_microbatches = len(passes) * count_microbatches(handle, len(passes[0].tokens))
        ranks = 1 if engine.loss_group is None else engine.loss_group.size()
        loss = build_engine_loss(training.loss, shared)
        output = engine.forward_backward(
            passes,
            loss=loss,
            normalizer=torch.tensor(num_microbatches * ranks, device=engine.device),
        )
        update = engine.optim_step(should_update=lambda norm: bool(norm.isfinite()))
        training.lr, training.grad_norm = update.lr, float(update.grad_norm)
        if update.is_skipped:
            log.warning("step %d: gradients are NaN or infinite, optimizer step skipped", self.step)
        self._finish_step(training, tokens=batch.tokens.numel() * handle.dp_size)
        return float(output.loss_sum) / num_microbatches

    def _finish_step(self, training: TitanTrainerState, *, tokens: int) -> None:
        """Update counters, collect garbage and save checkpoints after an update."""
        state, config = training.state, training.handle.recipe.checkpoint
        state.step += 1
        state.tokens_seen += tokens
        if state.step == 1:
            apply_train_timeout(training.handle.recipe, training.handle.meshes)
        training.handle.garbage_collection.after_step(state.step)
        is_last = state.step == training.steps
        if not is_saving_enabled(config):
            return
        training.checkpoints.check()
        if is_last or training.checkpoint_schedule.is_due(state.step):
            training.checkpoints.save(is_last=is_last)
            training.checkpoint_schedule.restart()
        if is_last and config.last_save_in_hf:
            self._export(training)

    def _export(self, training: TitanTrainerState) -> None:
        """Write the trained model as a Hugging Face folder next to the checkpoints."""
        run, job = training.handle.recipe, training.handle.job
        assert run.tokenizer != "auto"
        export_huggingface(
            job.resolved_path.parent / EXPORT_FOLDER,
            engine=training.handle.engine,
            model_config=run.model,
            tokenizer=run.tokenizer,
            dtype_name=run.checkpoint.export_dtype,
            is_writer=job.rank_info.is_main_rank,
            end_ids=find_training_end_ids(run),
        )

    def push_weights(self, policy_version: int) -> None:
        """Push the weights as a version into the first rank's store, under Hugging Face names."""
        handle = self.training_state.handle
        ranks = get_default_rank_group()
        weights = copy_huggingface_weights(
            handle.engine, handle.recipe.model, is_kept=ranks.rank == 0
        )
        ranks.broadcast_from_main(lambda: self._store_weights(policy_version, weights))

    def _store_weights(self, version: int, weights: dict[str, Tensor]) -> None:
        if self.use_dcp:
            folder = Path(self.dcp_path) / get_version_prefix(version)
            self.store[get_parameter_key(version, self.state_dict_key)] = write_version(
                folder, weights
            )
            return
        for name, tensor in weights.items():
            self.store[get_parameter_key(version, name)] = tensor

    def cleanup(self) -> None:
        """Wait for background saves and release all resources. Further calls have no effect."""
        training, self._training = self._training, None
        if training is not None:
            training.checkpoints.close()
            training.handle.close()


def check_field_types(trainer: TitanTrainer) -> None:
    """Check the types of the fields other than sections.

    Raises:
        ProblemsFound: a field has another type than documented.
    """
    wanted = {"state_dict_key": str, "use_dcp": bool, "dcp_path": str}
    problems = [
        Problem(
            "wrong-type",
            f"{name} is {getattr(trainer, name)!r}, not a {kind.__name__}",
            (name,),
        )
        for name, kind in wanted.items()
        if not isinstance(getattr(trainer, name), kind)
    ]
    if not callable(trainer.loss):
        problems.append(
            Problem(
                "wrong-type",
                f"loss is {trainer.loss!r}, which is not callable",
                ("loss",),
                hint="pass loss(logits, **targets)",
            )
        )
    if problems:
        raise ProblemsFound(problems)


def compile_user_loss(loss: Callable[..., Tensor], config: Any) -> Callable[..., Tensor]:
    """Return the loss, compiled if the section compile says so."""
    if not config.enable or "loss" not in config.components:
        return loss
    disable_compilation()
    compiled: Callable[..., Tensor] = torch.compile(loss, backend=config.backend)
    return compiled


def count_microbatches(handle: ActorHandle, batch_size: int) -> int:
    """Return the number of microbatches that a pipeline splits a pass into."""
    pipeline = getattr(handle.engine.runner, "pipeline", None)
    return 1 if pipeline is None else -(-batch_size // pipeline.plan.microbatch_size)


def enable_pareto_trace(values: Mapping[str, Any]) -> None:
    """Let the compiler plot the cost of memory budgets if the field asks for it."""
    if values.get(PARETO_FIELD):
        # imported late, because it imports torch's compiler
        functorch_config: Any = import_module("torch._functorch.config")
        functorch_config.visualize_memory_budget_pareto = True
