"""Engine of a rank in one of several replica groups, which sum gradients over the groups."""

from collections.abc import Callable, Sequence

from torch import Tensor

from titanrun.components.data.token_batch import Batch
from titanrun.training.engine_outputs import OptimOutput, StepOutput, as_batch_list
from titanrun.training.replicas.healed_engine import HealedEngine
from titanrun.training.replicas.replica_session import ReplicaSession
from titanrun.training.runners.forward_backward import Loss
from titanrun.training.update_scalars import DeferredUpdate


class GroupEngine(HealedEngine):
    """Engine whose step is over the batches of all groups that take part.

    A step is applied only if no group was lost in it. Evaluation does not involve other groups.
    """

    session: ReplicaSession

    def forward_backward(
        self,
        batches: Batch | Sequence[Batch],
        *,
        loss: Loss | None = None,
        normalizer: Tensor | None = None,
        are_microbatches: bool = False,
    ) -> StepOutput:
        """Add the gradients of this group's part of the mean loss over all groups' batches."""
        parts = [self._shard_batch(batch) for batch in as_batch_list(batches)]
        valid_tokens = self.session.sum_valid_tokens(self._count_valid_tokens(parts))
        own = super().forward_backward(
            batches,
            loss=loss,
            normalizer=valid_tokens if normalizer is None else normalizer,
            are_microbatches=are_microbatches,
        )
        total = self.session.groups.all_reduce_sum_(own.loss_sum.clone())
        return StepOutput(total, valid_tokens, own.local_loss_sum)

    def optim_step(
        self,
        *,
        lr: float | Sequence[float] | None = None,
        should_update: Callable[[Tensor], bool | DeferredUpdate] = lambda norm: True,
        step_scheduler: bool = True,
    ) -> OptimOutput:
        """Update the weights if the attempt counts. Otherwise only drop the gradients."""

        def decide(norm: Tensor) -> bool | DeferredUpdate:
            return self.session.decide() and should_update(norm)

        update = super().optim_step(lr=lr, should_update=decide, step_scheduler=False)
        if self.session.has_committed:
            self.steps_done += step_scheduler
        return update

    def _compute_grad_norm(self, parameters: Sequence[Tensor]) -> Tensor:
        self.session.groups.sum_gradients(parameters)
        return super()._compute_grad_norm(parameters)
