"""The engine: one synchronous optimizer step on one model. No data, no loop, no files.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from titanrun.components.checkpoints.adapters import is_adapter
from titanrun.components.checkpoints.optimizer_state import flatten
from titanrun.components.data.batch import Batch, TokenBatch, divisor_of
from titanrun.components.data.documents import Marking, unmarked
from titanrun.distributed.agreement import Ranks
from titanrun.distributed.gradient_norm import clip_gradients, gradient_norm
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.packed import unpacked
from titanrun.distributed.precision import Precision
from titanrun.distributed.rows import RowSharing
from titanrun.distributed.shards import finished_gradients, from_all_stages, gathered, plain
from titanrun.distributed.tied_ends import TiedEnds
from titanrun.distributed.vocabulary import label_logprobs, token_entropy
from titanrun.training.early_steps import EarlySteps
from titanrun.training.moves import move_state
from titanrun.training.passes import Loss, Passes, WholeModel

MODEL_PREFIX = "model."


class Schedule(Protocol):
    """The learning rate as a share of its peak, by optimizer step counted from 0."""

    def factor(self, step: int) -> float: ...


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a pass over batches gives: the loss as a sum over the tokens of all ranks, and their number, or what they weigh together where
    they have weights. All stay on the device.

    `own_loss_sum` is the sum over what this rank computed itself.
    """

    loss_sum: Tensor
    valid_tokens: Tensor
    own_loss_sum: Tensor

    @property
    def loss(self) -> Tensor:
        """Mean loss of a valid token; 0 where there is none."""
        return self.loss_sum / divisor_of(self.valid_tokens)


@dataclass(frozen=True, slots=True)
class OptimOutput:
    """What an optimizer step gives: the gradients' L2 norm before clipping (on the device), and the learning rate used.

    `is_skipped`: the update was refused, and neither weights nor optimizer state changed.
    """

    grad_norm: Tensor
    lr: float
    is_skipped: bool = False


class Engine:
    """One model with its optimizer: `forward_backward` adds gradients up, `optim_step` uses them.

    A loss returns a sum over tokens. The engine divides it once, before the backward pass, by the count of valid tokens of the
    whole step, over all ranks, so that every token weighs the same however the step is cut into batches and dealt to ranks: what
    ranks add up is sums, never means. Nothing here waits for the device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule,
        loss: Loss,
        *,
        device: torch.device,
        precision: Precision,
        max_norm: float | None = None,
        meshes: Meshes | None = None,
        passes: Passes | None = None,
        rows: RowSharing | None = None,
        marking: Marking = unmarked,
        early: EarlySteps | None = None,
        tied: TiedEnds | None = None,
    ) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.passes = WholeModel(model, loss, precision, device) if passes is None else passes
        self.device, self._precision, self.max_norm, self.early, self.tied = (
            device,
            precision,
            max_norm,
            early,
            tied,
        )
        self.meshes, self.rows, self.marking = meshes, rows, marking
        self.steps_done, self.policy_version, self._holds_gradients = 0, 0, False
        self._listeners: list[Callable[[], None]] = []
        for group in optimizer.param_groups:
            group.setdefault("peak_lr", group["lr"])

    def forward_backward(
        self,
        batches: Batch | Sequence[Batch],
        *,
        loss: Loss | None = None,
        normalizer: Tensor | None = None,
        microbatches: bool = False,
    ) -> StepOutput:
        """Adds the gradients of the mean loss over `batches`, one batch after the other.

        Args:
            batches: this rank's batches of one optimizer step, on any device; ranks that share rows are given the same whole ones.
            loss: in the place of the engine's own.
            normalizer: what the loss sum is divided by; without it the valid tokens of all ranks' `batches`, and then one call makes
                a step.
            microbatches: in a pipeline `batches` go through it together, as they are cut, and have one shape; else each is cut.

        Raises ValueError for a second call before `optim_step` without a normalizer.
        """
        parts = [self._own_share(batch) for batch in listed(batches)]
        if normalizer is None and self._holds_gradients:
            raise ValueError(
                "several calls a step need an explicit normalizer: each of them would be divided by its own tokens"
            )
        self._holds_gradients = True
        if self.early is not None:
            assert len(parts) == 1, (
                "a rule refuses several passes where weights are updated in the first"
            )
            self._set_rates(None)
        valid_tokens = self._valid_tokens(parts)
        divisor = divisor_of(valid_tokens if normalizer is None else normalizer)
        sums = []
        for given in self._passes_of(parts, microbatches=microbatches):
            sums.append(self.passes.backward(given(), divisor, loss=loss))
        return self._output(torch.stack(sums).sum(), valid_tokens)

    def optim_step(
        self,
        *,
        lr: float | Sequence[float] | None = None,
        accepts: Callable[[Tensor], bool] = lambda norm: True,
        moves_schedule: bool = True,
    ) -> OptimOutput:
        """Clips, updates the weights, drops the gradients and moves the schedule on.

        Args:
            lr: this step's learning rate of every group, or one of each; without it peak x schedule.
            accepts: whether gradients of that norm may update the weights. While it is asked, they are there to be looked at. Early
                steps are done by then: a refusal says that the weights are spoiled.
            moves_schedule: else `lr_step` does.
        """
        parameters = self._parameters()
        norm = self._norm(parameters)
        is_accepted = accepts(norm)
        if is_accepted and self.max_norm is not None:
            clip_gradients(parameters, norm=norm, max_norm=self.max_norm)
        self._set_rates(lr)
        if is_accepted:
            self.optimizer.step()
            self.policy_version += 1
            self.weights_changed()
        self.zero_grad()
        self.steps_done += moves_schedule
        return OptimOutput(norm, self.optimizer.param_groups[0]["lr"], is_skipped=not is_accepted)

    def lr_step(self) -> float:
        """Moves the schedule on, for loops that do so by themselves. Gives the learning rate that the next update takes."""
        self.steps_done += 1
        self._set_rates(None)
        return float(self.optimizer.param_groups[0]["lr"])

    def weights_changed(self) -> None:
        """Tells those who keep something that follows from the weights that these are others now."""
        for listener in self._listeners:
            listener()

    def on_new_weights(self, listener: Callable[[], None]) -> None:
        """Calls `listener` from now on whenever the weights have changed."""
        self._listeners.append(listener)

    def _norm(self, parameters: Sequence[Tensor]) -> Tensor:
        """L2 norm of the step's gradients, over all ranks."""
        if self.early is not None:
            return self.early.take_norm()
        gradients = (
            finished_gradients(parameters)
            if self.tied is None
            else self.tied.finished_gradients(parameters)
        )
        return gradient_norm(gradients, device=self.device, pipeline=self._group("pp"))

    def _set_rates(self, lr: float | Sequence[float] | None) -> None:
        """Gives each group this step's learning rate; without one peak x schedule."""
        factor, groups = self.schedule.factor(self.steps_done), self.optimizer.param_groups
        rates = (
            [group["peak_lr"] * factor for group in groups]
            if lr is None
            else [lr] * len(groups)
            if isinstance(lr, float | int)
            else lr
        )
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def zero_grad(self) -> None:
        """Drops the gradients, so that their memory is free until the next backward pass."""
        for parameter in self._parameters():
            parameter.grad = None
        self._holds_gradients = False

    def eval_forward(
        self,
        batches: Batch | Sequence[Batch],
        *,
        loss: Loss | None = None,
        microbatches: bool = False,
    ) -> StepOutput:
        """The loss of all ranks' batches, without gradients; arguments as of `forward_backward`."""
        parts = [self._own_share(batch) for batch in listed(batches)]
        sums = [
            self.passes.loss_sum(given(), loss=loss)
            for given in self._passes_of(parts, microbatches=microbatches)
        ]
        return self._output(
            sums[0] if len(sums) == 1 else torch.stack(sums).sum(), self._valid_tokens(parts)
        )

    def forward(
        self,
        batches: Batch | Sequence[Batch],
        *,
        outputs: Sequence[str] = ("logprobs",),
        temperature: float = 1.0,
        microbatches: bool = False,
    ) -> dict[str, Tensor]:
        """Per-token outputs of a batch, in evaluation mode and fp32, on the device; of whole rows on each rank that shares them.

        Args:
            batches: rows [B, T] of one length; those of several batches follow each other.
            microbatches: as of `forward_backward`.
            outputs: any of `logprobs` [B, T] of the labels (0 where the label is not valid), `entropy` [B, T], `logits` [B, T, V].
            temperature: what the logits are divided by.
        """

        def measure(logits_BTV: Tensor, batch: Any) -> dict[str, Tensor]:
            scaled_BTV = logits_BTV.float() / temperature
            return {name: OUTPUTS[name](scaled_BTV, batch) for name in outputs}

        parts = [self._own_share(batch) for batch in listed(batches)]
        with self.eval_mode():
            each = [
                self.passes.measure(given(), measure)
                for given in self._passes_of(parts, microbatches=microbatches)
            ]
        found = (
            each[0]
            if len(each) == 1
            else {name: torch.cat([part[name] for part in each]) for name in outputs}
        )
        return (
            found
            if self.rows is None
            else {name: self.rows.gathered(share) for name, share in found.items()}
        )

    def to(
        self,
        device: torch.device | str,
        *,
        model: bool = True,
        optimizer: bool = True,
        grad: bool = True,
    ) -> None:
        """Moves weights with their gradients, and optimizer state, into host memory or back. They must be back for the next pass.

        Raises ValueError for gradients without their weights, and for a device that is neither the CPU nor the engine's.
        """
        if grad and not model:
            raise ValueError("gradients move with their weights: grad needs model")
        if torch.device(device).type not in ("cpu", self.device.type):
            raise ValueError(
                f"an engine on {self.device} moves to the CPU and back, not to {device}"
            )
        to = self.device if torch.device(device).type == self.device.type else torch.device(device)
        if model:
            self.model.to(to)
        if optimizer:
            move_state(self.optimizer, to)

    def eval_mode(self) -> AbstractContextManager[None]:
        """The model in evaluation mode within the block, then back in the mode it was in."""
        return self._mode(training=False)

    def autocast(self) -> AbstractContextManager[None]:
        """Passes within the block compute in the type of the run's passes."""
        return self._precision.autocast(self.device)

    def train_mode(self) -> AbstractContextManager[None]:
        """The model in training mode within the block, then back in the mode it was in."""
        return self._mode(training=True)

    def tensors(self, *, with_optimizer: bool = True) -> dict[str, Tensor]:
        """Weights and optimizer state by name, no copies: `model.<parameter>` and `optimizer.<parameter>.<state>`."""
        # first, since it makes the state that an optimizer with averages keeps them beside
        state = flatten(self.model, self.optimizer) if with_optimizer else {}
        return {MODEL_PREFIX + name: tensor for name, tensor in self._weights().items()} | state

    def frozen(self) -> frozenset[str]:
        """Names of those `tensors` that are beside adapters and never change; empty where a model has no adapters."""
        weights = self._weights()
        trained = {
            name for name, parameter in self.model.named_parameters() if parameter.requires_grad
        }
        is_adapted = any(map(is_adapter, weights))
        return frozenset(
            MODEL_PREFIX + name for name in weights if is_adapted and name not in trained
        )

    def loaded(self) -> None:
        """To be called after `tensors` were written to: the model computes with what they hold."""
        if hasattr(self.optimizer, "averages"):
            self.optimizer.show_training_weights()
        self.weights_changed()

    def state_dict_stream(
        self, *, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """The whole weights by name, one at a time, cast to `dtype`: for who must not hold a second copy of the model.

        Ranks that hold parts must all read to the end.
        """
        own, stages = self._weights(), self._group("pp")
        whole = own.items() if stages is None else from_all_stages(own, stages, device=self.device)
        for name, tensor in whole:
            yield name, gathered(unpacked(tensor) if dtype is None else unpacked(tensor).to(dtype))

    def names_elsewhere(self) -> frozenset[str]:
        """Names of `tensors` that only the ranks of other pipeline stages hold."""
        group = self._group("pp")
        if group is None:
            return frozenset()
        own = list(self.tensors())
        everywhere = Ranks(group.rank(), group.size(), group).together(lambda: own)
        return frozenset(name for names in everywhere for name in names).difference(own)

    def of_all_stages(self, values: dict[str, float]) -> dict[str, float]:
        """What the stages of a pipeline know by name, on all its ranks; of the same name the last stage's, which has the loss."""
        group = self._group("pp")
        if group is None:
            return values
        return dict(
            item
            for known in Ranks(group.rank(), group.size(), group).together(lambda: values)
            for item in known.items()
        )

    @property
    def loss_group(self) -> ProcessGroup | None:
        """The ranks whose losses cover different tokens; None for one alone."""
        return self._group("loss")

    def _group(self, axis: str) -> ProcessGroup | None:
        return None if self.meshes is None else self.meshes.group(axis)

    def _own_share(self, batch: Batch) -> Batch:
        """What this rank computes of a batch that several ranks have read, with its documents numbered where attention asks for it."""
        marked = self.marking(batch) if isinstance(batch, TokenBatch) else batch
        return marked if self.rows is None else marked.shared(self.rows.own_share)

    def _passes_of(
        self, parts: Sequence[Batch], *, microbatches: bool
    ) -> Iterator[Callable[[], Any]]:
        """What goes through the model at once, on the device, each when it is asked for: batches, or all microbatches of a pipeline."""
        if microbatches and self.passes.takes_microbatches:
            yield lambda: [part.to(self.device) for part in parts]
            return
        for part in parts:
            yield partial(part.to, self.device)

    def _valid_tokens(self, parts: Sequence[Batch]) -> Tensor:
        """Over all ranks."""
        return self._of_all_ranks(
            torch.stack([part.valid_count() for part in parts])
            .sum()
            .to(self.device, non_blocking=True)
        )

    def _output(self, own_loss_sum: Tensor, valid_tokens: Tensor) -> StepOutput:
        """What this rank computed, added up over all of them."""
        return StepOutput(
            self._of_all_ranks(self._of_all_stages(own_loss_sum.clone())),
            valid_tokens,
            own_loss_sum,
        )

    def _of_all_ranks(self, value: Tensor) -> Tensor:
        """A sum over this rank's tokens, made one over all tokens."""
        return value if self.meshes is None else self.meshes.sum_(value, "loss")

    def _of_all_stages(self, loss_sum: Tensor) -> Tensor:
        """A loss that only the last pipeline stage computes, known to all stages."""
        return loss_sum if self.meshes is None else self.meshes.sum_(loss_sum, "pp")

    def _weights(self) -> dict[str, Tensor]:
        """The weights that the run is about, no copies: the average, where the optimizer trains others."""
        averages: Mapping[Tensor, Tensor] = getattr(self.optimizer, "averages", {})
        return {
            name: plain(averages.get(tensor, tensor).detach())
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }

    @contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        before = self.model.training
        averages = hasattr(self.optimizer, "averages") and before and not training
        self.model.train(training)
        if averages:
            self.optimizer.show_averages()
            self.weights_changed()
        try:
            yield
        finally:
            if averages:
                self.optimizer.show_training_weights()
                self.weights_changed()
            self.model.train(before)

    def _parameters(self) -> list[Tensor]:
        """What the optimizer updates; much faster to list than a walk over the model's modules."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def listed(batches: Batch | Sequence[Batch]) -> Sequence[Batch]:
    """One batch or several as several."""
    return batches if isinstance(batches, Sequence) else [batches]


def valid_logprobs(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
    """log softmax(logits)[label], 0 where the label is not valid."""
    valid_BT = batch.valid_mask()
    labels_BT = batch.labels.masked_fill(~valid_BT, 0)
    return label_logprobs(logits_BTV, labels_BT).masked_fill(~valid_BT, 0.0)


def zero_if_finite(output_BTV: Tensor, batch: Batch) -> Tensor:
    """0 for each token [B, T] that does not count in the loss or whose numbers are all finite; NaN for any other."""
    return gathered((output_BTV * 0).sum(-1)).masked_fill(~batch.valid_mask(), 0.0)


OUTPUTS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "logprobs": valid_logprobs,
    "entropy": lambda logits_BTV, batch: token_entropy(logits_BTV),
    "zero_if_finite": zero_if_finite,
    "logits": lambda logits_BTV, batch: gathered(logits_BTV),
}
