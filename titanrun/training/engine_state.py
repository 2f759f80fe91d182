"""Weights and optimizer state of an engine by name, and listeners of weight changes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from titanrun.components.checkpoints.adapter_weights import is_adapter
from titanrun.components.checkpoints.optimizer_state import flatten_optimizer_state
from titanrun.distributed.dtensor import (
    full_tensor,
    iter_tensors_from_all_stages,
    unwrap_tensor,
)
from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.quantized_weights import maybe_dequantize
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.training.engine_outputs import find_averaging_optimizer
from titanrun.training.parameter_counts import ParameterCounts

MODEL_PREFIX = "model."
FrozenRole = Literal["reference", "teacher"]


class EngineState:
    """Base class of the engine with access to its weights and optimizer state by name.

    Args:
        model: the model, or this rank's part of it.
        optimizer: its optimizer.
        working_weights: the weights that passes compute with.
        device: the compute device.
        meshes: the meshes of this rank, None for a single rank.
    """

    # of the whole model, of which a pipeline rank has a part; None if nobody counted them
    parameters: ParameterCounts | None = None
    # what a frozen model beside the trained one is for; None for the trained model
    role: FrozenRole | None = None

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        working_weights: WorkingWeights,
        *,
        device: torch.device,
        meshes: ParallelMeshes | None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.device, self.meshes = device, meshes
        self.working_weights = working_weights
        self._before_update: list[Callable[[], None]] = []
        # first: what others derive from the weights, they may derive from the copies
        self._weights_listeners: list[Callable[[], None]] = [working_weights.mark_stale]

    def notify_weights_changed(self) -> None:
        """Notify listeners, which hold values derived from the weights, of new weights."""
        for listener in self._weights_listeners:
            listener()

    def add_weights_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of the weights."""
        self._weights_listeners.append(listener)

    def run_before_update(self, call: Callable[[], None]) -> None:
        """Call `call` once, before weights or optimizer state change the next time."""
        self._before_update.append(call)

    def _call_before_update(self) -> None:
        calls, self._before_update = self._before_update, []
        for call in calls:
            call()

    def named_state_tensors(self, *, with_optimizer: bool = True) -> dict[str, Tensor]:
        """Return weights and optimizer state by name, without copies.

        The names are `model.<parameter>` and `optimizer.<parameter>.<state>`.
        """
        # first, because it creates the state that an averaging optimizer stores its averages in
        state = flatten_optimizer_state(self.model, self.optimizer) if with_optimizer else {}
        return {MODEL_PREFIX + name: tensor for name, tensor in self._get_weights().items()} | state

    def frozen_names(self) -> frozenset[str]:
        """Return the names of state tensors that adapters leave unchanged.

        Empty for a model without adapters.
        """
        weights = self._get_weights()
        trainable = {
            name for name, parameter in self.model.named_parameters() if parameter.requires_grad
        }
        is_adapted = any(map(is_adapter, weights))
        return frozenset(
            MODEL_PREFIX + name for name in weights if is_adapted and name not in trainable
        )

    def on_state_loaded(self) -> None:
        """Apply the values written to the state tensors. Must be called after loading."""
        if (averaging := find_averaging_optimizer(self.optimizer)) is not None:
            averaging.swap_out_averages()
        self.notify_weights_changed()

    def state_dict_stream(
        self, *, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the full weights by name, one at a time, cast to `dtype`.

        Ranks never hold a second copy of the model. Collective: all ranks with shards must read to
        the end.
        """
        own, stages = self._get_weights(), self._get_group("pp")
        whole = (
            own.items()
            if stages is None
            else iter_tensors_from_all_stages(own, stages, device=self.device)
        )
        for name, tensor in whole:
            yield (
                name,
                full_tensor(
                    maybe_dequantize(tensor)
                    if dtype is None
                    else maybe_dequantize(tensor).to(dtype)
                ),
            )

    def gather_names_on_other_stages(self) -> frozenset[str]:
        """Return the names of state tensors that only ranks of other pipeline stages have."""
        group = self._get_group("pp")
        if group is None:
            return frozenset()
        own = list(self.named_state_tensors())
        everywhere = RankGroup(group.rank(), group.size(), group).all_gather_results(lambda: own)
        return frozenset(name for names in everywhere for name in names).difference(own)

    def merge_across_stages(self, values: dict[str, float]) -> dict[str, float]:
        """Merge values by name over the pipeline stages, on all ranks.

        Of equal names the value of the last stage counts, which has the loss.
        """
        group = self._get_group("pp")
        if group is None:
            return values
        return dict(
            item
            for known in RankGroup(group.rank(), group.size(), group).all_gather_results(
                lambda: values
            )
            for item in known.items()
        )

    def _get_group(self, axis: str) -> ProcessGroup | None:
        return None if self.meshes is None else self.meshes.get_group(axis)

    def _get_weights(self) -> dict[str, Tensor]:
        """Return the weights of the run without copies: averages if the optimizer keeps them."""
        averaging = find_averaging_optimizer(self.optimizer)
        averages: Mapping[Tensor, Tensor] = {} if averaging is None else averaging.averages
        return {
            name: unwrap_tensor(averages.get(tensor, tensor).detach())
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }
