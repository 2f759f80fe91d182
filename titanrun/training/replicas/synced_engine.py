"""Engine of a rank whose replica group syncs weights with the others every few steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.optimizer_state import OPTIMIZER_PREFIX
from titanrun.distributed.dtensor import to_local
from titanrun.training.replicas.healed_engine import HealedEngine


class SyncedEngine(HealedEngine):
    """Engine that takes steps on its group's batches only.

    Its checkpoints and evaluations use the weights of the last sync. `synced_weights` returns
    copies of this rank's parts of them by name; None: the weights at a sync are those.

    Args:
        has_outer_momentum: whether the outer optimizer keeps a momentum, which is saved.
        arguments: see `Engine`.
    """

    synced_weights: Callable[[], Mapping[str, Tensor]] | None = None

    def __init__(self, *arguments: Any, has_outer_momentum: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._has_outer_momentum = has_outer_momentum

    @cached_property
    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters, each by one name."""
        named = self.model.state_dict(keep_vars=True).items()
        names: dict[Tensor, str] = {}
        for name, tensor in named:
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                names.setdefault(tensor, name)
        return {name: tensor for name, tensor in named if names.get(tensor) == name}

    @cached_property
    def outer_momentum(self) -> dict[str, Tensor]:
        """Momentum of the outer optimizer by name of the parameter, as of its last update."""
        if not self._has_outer_momentum:
            return {}
        return {
            name: torch.zeros_like(parameter.detach())
            for name, parameter in self.trained_parameters.items()
        }

    def named_state_tensors(self, *, with_optimizer: bool = True) -> dict[str, Tensor]:
        """Return weights and the state of both optimizers. See `EngineState`."""
        tensors = super().named_state_tensors(with_optimizer=with_optimizer)
        if with_optimizer:
            for name, momentum in self.outer_momentum.items():
                tensors[f"{OPTIMIZER_PREFIX}{name}.outer_momentum"] = momentum
        return tensors

    def state_to_heal(self) -> dict[str, Any]:
        """Return copies: this rank trains on while another one reads them."""
        return {name: part.clone() for name, part in super().state_to_heal().items()}

    @contextmanager
    def use_synced_weights(self) -> Iterator[None]:
        """Replace the weights within the block by those of the last sync."""
        if self.synced_weights is None:
            yield
            return
        own = {name: to_local(tensor).clone() for name, tensor in self._get_parts()}
        self._copy_weights(self.synced_weights())
        try:
            yield
        finally:
            self._copy_weights(own)

    def _get_parts(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trained_parameters.items():
            yield name, to_local(parameter.detach())

    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, part in self._get_parts():
            part.copy_(weights[name])
        self.notify_weights_changed()

    @contextmanager
    def _set_mode(self, *, training: bool) -> Iterator[None]:
        weights: AbstractContextManager[None] = (
            nullcontext() if training else self.use_synced_weights()
        )
        with super()._set_mode(training=training), weights:
            yield
