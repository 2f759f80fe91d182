"""Engine: one synchronous optimizer step on one model, without data, loop or files.

Shapes: B sequences, T tokens per sequence, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from titanrun.components.data.document_ids import DocumentIdFn, skip_document_ids
from titanrun.components.data.token_batch import Batch, TokenBatch, compute_loss_divisor
from titanrun.distributed.context_parallel_layout import SequenceSharding
from titanrun.distributed.dtensor import reduce_partial_gradients
from titanrun.distributed.grad_norm import clip_grads_with_norm_, compute_grad_norm
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.tied_embeddings import PipelineTiedEmbeddings
from titanrun.distributed.token_accuracy import TokenAccuracy
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.training.engine_outputs import (
    OUTPUT_FNS,
    LRSchedule,
    OptimOutput,
    StepOutput,
    as_batch_list,
    concat_outputs,
    find_averaging_optimizer,
    record_peak_learning_rates,
    set_learning_rates,
)
from titanrun.training.engine_state import MODEL_PREFIX as MODEL_PREFIX
from titanrun.training.engine_state import EngineState
from titanrun.training.offload import move_optimizer_state
from titanrun.training.optimizer_in_backward import OptimizerInBackward
from titanrun.training.runners.forward_backward import (
    ForwardBackward,
    FullModelForwardBackward,
    Loss,
)
from titanrun.training.token_sampling import scale_logits
from titanrun.training.update_scalars import (
    DeferredUpdate,
    accepts_update_scalars,
    compute_grad_divisor,
    set_update_scalars,
)


class Engine(EngineState):
    """Model with its optimizer.

    `forward_backward` accumulates gradients, `optim_step` applies them. A loss returns a sum over
    tokens. The engine divides it once, before the backward pass, by the number of valid tokens of
    the whole step over all ranks. So every token weighs the same, however the step is split into
    batches and distributed to ranks: reductions over ranks are sums, never means. No method waits
    for the device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        lr_schedule: LRSchedule,
        loss: Loss,
        *,
        device: torch.device,
        working_weights: WorkingWeights,
        max_norm: float | None = None,
        meshes: ParallelMeshes | None = None,
        runner: ForwardBackward | None = None,
        sequence_sharding: SequenceSharding | None = None,
        document_id_fn: DocumentIdFn = skip_document_ids,
        optimizer_in_backward: OptimizerInBackward | None = None,
        tied_embeddings: PipelineTiedEmbeddings | None = None,
    ) -> None:
        super().__init__(model, optimizer, working_weights, device=device, meshes=meshes)
        self.lr_schedule, self.max_norm = lr_schedule, max_norm
        self.runner = runner or FullModelForwardBackward(model, loss, working_weights)
        self.sequence_sharding, self.document_id_fn = sequence_sharding, document_id_fn
        self.optimizer_in_backward, self.tied_embeddings = optimizer_in_backward, tied_embeddings
        self.steps_done, self.policy_version, self._has_gradients = 0, 0, False
        self._moe_layers = get_moe_layers(model)
        record_peak_learning_rates(optimizer)

    def forward_backward(
        self,
        batches: Batch | Sequence[Batch],
        *,
        loss: Loss | None = None,
        normalizer: Tensor | None = None,
        are_microbatches: bool = False,
    ) -> StepOutput:
        """Add the gradients of the mean loss over `batches`, one batch after the other.

        Args:
            batches: this rank's batches of one optimizer step, on any device. Ranks that share
                sequences must pass the same whole sequences.
            loss: replaces the engine's loss.
            normalizer: divisor of the loss sum. Default: the valid tokens of all ranks' `batches`,
                with which only one call per step is allowed.
            are_microbatches: in a pipeline, pass `batches` through it together as they are. They
                must have equal shapes. Otherwise each batch is split.

        Raises:
            ValueError: this is a second call before `optim_step`, without a normalizer.
        """
        parts = [self._shard_batch(batch) for batch in as_batch_list(batches)]
        if normalizer is None and self._has_gradients:
            raise ValueError(
                "several calls per step need an explicit normalizer: "
                "each of them would be divided by its own tokens"
            )
        self._has_gradients = True
        if self.optimizer_in_backward is not None:
            assert len(parts) == 1, (
                "a rule forbids gradient accumulation if weights are updated in the backward pass"
            )
            self._set_learning_rates(None)
            self._call_before_update()
        valid_tokens = self._count_valid_tokens(parts)
        divisor = compute_loss_divisor(valid_tokens if normalizer is None else normalizer)
        sums = []
        for load in self._iter_forward_inputs(parts, are_microbatches=are_microbatches):
            sums.append(self.runner.forward_backward(load(), divisor, loss=loss))
        return self._build_step_output(torch.stack(sums).sum(), valid_tokens)

    def optim_step(
        self,
        *,
        lr: float | Sequence[float] | None = None,
        should_update: Callable[[Tensor], bool | DeferredUpdate] = lambda norm: True,
        step_scheduler: bool = True,
    ) -> OptimOutput:
        """Clip gradients, update weights, zero gradients and advance the LR schedule.

        Args:
            lr: this step's learning rate of all groups, or one per group. Default: peak x schedule.
            should_update: returns whether to apply gradients of that norm. The gradients still
                exist when it is called. With `optimizer_in_backward` the updates are already done:
                False then says that the weights are spoiled. A deferred decision is left to the
                optimizer's kernel if it can read it, else the gradients are applied.
            step_scheduler: whether to advance the schedule. If False, call `lr_scheduler_step`.
        """
        parameters = self._get_optimized_parameters()
        norm = self._compute_grad_norm(parameters)
        decision = should_update(norm)
        found_inf = decision.found_inf if isinstance(decision, DeferredUpdate) else None
        should_apply = found_inf is not None or bool(decision)
        self._set_learning_rates(lr)
        self._call_before_update()
        if should_apply:
            self._apply_gradients(parameters, norm, found_inf)
            self.policy_version += 1
            self.notify_weights_changed()
        self.zero_grad()
        self.steps_done += step_scheduler
        return OptimOutput(norm, self.optimizer.param_groups[0]["lr"], is_skipped=not should_apply)

    def _apply_gradients(
        self, parameters: Sequence[Tensor], norm: Tensor, found_inf: Tensor | None
    ) -> None:
        """Clip the gradients and update the weights, in one kernel if the optimizer has it."""
        if not self.uses_update_scalars:
            if self.max_norm is not None:
                clip_grads_with_norm_(parameters, total_norm=norm, max_norm=self.max_norm)
            self.optimizer.step()
            return
        scale = None if self.max_norm is None else compute_grad_divisor(norm, self.max_norm)
        with set_update_scalars(self.optimizer, grad_scale=scale, found_inf=found_inf):
            self.optimizer.step()

    @cached_property
    def uses_update_scalars(self) -> bool:
        """Whether the optimizer's kernel clips gradients and can refuse an update."""
        return self.optimizer_in_backward is None and accepts_update_scalars(
            self.optimizer, self.device
        )

    def lr_scheduler_step(self) -> float:
        """Advance the LR schedule and return the learning rate of the next update.

        For loops that pass `step_scheduler=False` to `optim_step`.
        """
        self.steps_done += 1
        self._set_learning_rates(None)
        return float(self.optimizer.param_groups[0]["lr"])

    def _compute_grad_norm(self, parameters: Sequence[Tensor]) -> Tensor:
        """Compute the L2 norm of the step's gradients over all ranks."""
        if self.optimizer_in_backward is not None:
            return self.optimizer_in_backward.pop_grad_norm()
        gradients = (
            reduce_partial_gradients(parameters)
            if self.tied_embeddings is None
            else self.tied_embeddings.reduce_partial_gradients(parameters)
        )
        return compute_grad_norm(gradients, device=self.device, pp_group=self._get_group("pp"))

    def _set_learning_rates(self, lr: float | Sequence[float] | None) -> None:
        """Set this step's learning rate of each group; None: peak x schedule."""
        set_learning_rates(self.optimizer, lr, factor=self.lr_schedule.factor(self.steps_done))

    def zero_grad(self) -> None:
        """Drop the gradients, which frees their memory until the next backward pass.

        Counts of the tokens that experts got in these passes are dropped too: they belong to the
        gradients, and after an update they are used up.
        """
        for parameter in self._get_optimized_parameters():
            parameter.grad = None
        for layer in self._moe_layers:
            layer.tokens_per_expert.zero_()
        self._has_gradients = False

    def evaluate_loss(
        self,
        batches: Batch | Sequence[Batch],
        *,
        loss: Loss | None = None,
        are_microbatches: bool = False,
        counts_accuracy: bool = False,
    ) -> StepOutput:
        """Compute the loss of all ranks' batches without gradients.

        For the other arguments see `forward_backward`.

        Args:
            batches: this rank's batches.
            loss: replaces the engine's loss.
            are_microbatches: see `forward_backward`.
            counts_accuracy: whether to count the labels that are the likeliest tokens.
        """
        parts = [self._shard_batch(batch) for batch in as_batch_list(batches)]
        accuracy = TokenAccuracy(self.device) if counts_accuracy else None
        sums = [
            self.runner.compute_loss_sum(load(), loss=loss, accuracy=accuracy)
            for load in self._iter_forward_inputs(parts, are_microbatches=are_microbatches)
        ]
        output = self._build_step_output(torch.stack(sums).sum(), self._count_valid_tokens(parts))
        if accuracy is None:
            return output
        counts = self._sum_over_loss_ranks(self._sum_over_stages(accuracy.counts))
        return replace(output, accuracy_counts=counts)

    def forward(
        self,
        batches: Batch | Sequence[Batch],
        *,
        outputs: Sequence[str] = ("logprobs",),
        temperature: float = 1.0,
        are_microbatches: bool = False,
    ) -> dict[str, Tensor]:
        """Compute per-token outputs of a batch, in evaluation mode and fp32, on the device.

        Ranks that share sequences get the outputs of whole sequences.

        Args:
            batches: sequences [B, T] of equal length. Several batches are concatenated.
            outputs: any of `logprobs` [B, T] of the labels (0 if the label is not valid), `entropy`
                [B, T], `logits` [B, T, V].
            temperature: divisor of the logits, see `scale_logits`.
            are_microbatches: see `forward_backward`.
        """

        def compute_outputs(logits_BTV: Tensor, batch: Any) -> dict[str, Tensor]:
            scaled_BTV = scale_logits(logits_BTV, temperature)
            return {name: OUTPUT_FNS[name](scaled_BTV, batch) for name in outputs}

        parts = [self._shard_batch(batch) for batch in as_batch_list(batches)]
        with self.eval_mode():
            results = [
                self.runner.compute_outputs(load(), compute_outputs)
                for load in self._iter_forward_inputs(parts, are_microbatches=are_microbatches)
            ]
        found = concat_outputs(results)
        if self.sequence_sharding is None:
            return found
        return {name: self.sequence_sharding.all_gather(shard) for name, shard in found.items()}

    def to(
        self,
        device: torch.device | str,
        *,
        model: bool = True,
        optimizer: bool = True,
        grad: bool = True,
    ) -> None:
        """Move weights with their gradients, and optimizer state, to host memory or back.

        They must be on the device for the next pass.

        Raises:
            ValueError: gradients would move without weights, or the device is neither the CPU nor
                the engine's.
        """
        if grad and not model:
            raise ValueError("gradients move with their weights: grad needs model")
        if torch.device(device).type not in ("cpu", self.device.type):
            raise ValueError(
                f"cannot move an engine on {self.device} to {device}, only to the CPU and back"
            )
        to = self.device if torch.device(device).type == self.device.type else torch.device(device)
        if model:
            self.model.to(to)
            self.working_weights.to(to)
        if optimizer:
            move_optimizer_state(self.optimizer, to)

    def eval_mode(self) -> AbstractContextManager[None]:
        """Put the model into evaluation mode within the block, then restore its mode."""
        return self._set_mode(training=False)

    def use_working_weights(self) -> AbstractContextManager[None]:
        """Make the model compute as in the run's passes within the block."""
        return self.working_weights.swap_in()

    def train_mode(self) -> AbstractContextManager[None]:
        """Put the model into training mode within the block, then restore its mode."""
        return self._set_mode(training=True)

    @property
    def loss_group(self) -> ProcessGroup | None:
        """Ranks whose losses cover different tokens, None for a single rank."""
        return self._get_group("loss")

    def _shard_batch(self, batch: Batch) -> Batch:
        """Add document ids if attention needs them and return this rank's part of the batch."""
        batch = self.document_id_fn(batch) if isinstance(batch, TokenBatch) else batch
        sharding = self.sequence_sharding
        return batch if sharding is None else batch.slice_sequence(sharding.shard)

    def _iter_forward_inputs(
        self, parts: Sequence[Batch], *, are_microbatches: bool
    ) -> Iterator[Callable[[], Any]]:
        """Yield functions that move the input of one pass to the device.

        The input is a batch, or a list of all microbatches of a pipeline.
        """
        if are_microbatches and self.runner.accepts_microbatches:
            yield lambda: [part.to(self.device) for part in parts]
            return
        for part in parts:
            yield partial(part.to, self.device)

    def _count_valid_tokens(self, parts: Sequence[Batch]) -> Tensor:
        """Count the valid tokens of all ranks."""
        own = torch.stack([part.num_valid_tokens() for part in parts]).sum()
        return self._sum_over_loss_ranks(own.to(self.device, non_blocking=True))

    def _build_step_output(self, own_loss_sum: Tensor, valid_tokens: Tensor) -> StepOutput:
        """Sum this rank's loss over all ranks."""
        return StepOutput(
            self._sum_over_loss_ranks(self._sum_over_stages(own_loss_sum.clone())),
            valid_tokens,
            own_loss_sum,
        )

    def _sum_over_loss_ranks(self, value: Tensor) -> Tensor:
        """Sum a value over the ranks with different tokens."""
        return value if self.meshes is None else self.meshes.all_reduce_sum_(value, "loss")

    def _sum_over_stages(self, loss_sum: Tensor) -> Tensor:
        """Make a loss that only the last pipeline stage computes available on all stages."""
        return loss_sum if self.meshes is None else self.meshes.all_reduce_sum_(loss_sum, "pp")

    @contextmanager
    def _set_mode(self, *, training: bool) -> Iterator[None]:
        before = self.model.training
        averaging = find_averaging_optimizer(self.optimizer) if before and not training else None
        self.model.train(training)
        if averaging is not None:
            self._call_before_update()
            averaging.swap_in_averages()
            self.notify_weights_changed()
        try:
            yield
        finally:
            if averaging is not None:
                averaging.swap_out_averages()
                self.notify_weights_changed()
            self.model.train(before)

    def _get_optimized_parameters(self) -> list[Tensor]:
        """Return the optimizer's parameters, much faster than a walk over the model's modules."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
