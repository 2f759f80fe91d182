"""titanrun's engine in verl's registry, as the backend `titanrun` of language models.

This is the only module that imports verl. `import verl` loads it through the entry point group
`verl.plugins`.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor
from verl.workers.config.engine import EngineConfig, TorchtitanEngineConfig
from verl.workers.engine.base import BaseEngine, EngineRegistry

from titanrun.integrations.verl.build_verl_engine import build_verl_engine

log = logging.getLogger(__name__)

BACKEND = "titanrun"
TORCHTITAN = "torchtitan"
MODEL_TYPE = "language_model"
DEVICES = ["cpu", "cuda"]
# what verl's checkpoint engines of changed elements call
NO_SHARD_EXPORT = (
    "the backend titanrun exports whole weights only: "
    "use a checkpoint engine of verl that is not one of the delta engines"
)


@dataclass
class TitanrunEngineConfig(TorchtitanEngineConfig):  # type: ignore[misc]
    """Engine config of verl's torchtitan strategy, for this backend.

    Args:
        strategy: name of the backend.
        recipe: file of a recipe, for what verl's configs do not say. None: titanrun's defaults.
        overrides: overrides `path=value` of the recipe that the other fields describe.
    """

    strategy: str = BACKEND
    recipe: str | None = None
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Skip the parent's assertions about its own strategy."""
        EngineConfig.__post_init__(self)


class TitanrunEngine(BaseEngine):  # type: ignore[misc]
    """Engine that verl's workers construct and call.

    `train_batch` and `infer_batch` are verl's own. Exports of shards and of changed elements raise
    NotImplementedError.

    Args:
        model_config: verl's HFModelConfig.
        engine_config: TitanrunEngineConfig, or verl's TorchtitanEngineConfig.
        optimizer_config: verl's TorchtitanOptimizerConfig. Read by `initialize`.
        checkpoint_config: verl's CheckpointConfig.
    """

    def __init__(
        self,
        model_config: Any,
        engine_config: Any,
        optimizer_config: Any = None,
        checkpoint_config: Any = None,
    ) -> None:
        super().__init__()
        self.engine = build_verl_engine(
            model_config, engine_config, optimizer_config, checkpoint_config
        )

    @property
    def mode(self) -> str | None:
        """The mode of the innermost block, None outside of all."""
        return self.engine.mode

    @property
    def is_param_offload_enabled(self) -> bool:
        """Whether weights are in host memory between modes."""
        return self.engine.is_param_offload_enabled

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        """Whether optimizer state is in host memory outside of `train_mode`."""
        return self.engine.is_optimizer_offload_enabled

    def initialize(self) -> None:
        """Build model, optimizer and schedule. A second call builds them anew."""
        self.engine.initialize()

    def train_mode(self, **kwargs: bool) -> AbstractContextManager[None]:
        """Return a context of training mode; see `VerlEngine.train_mode`."""
        return self.engine.train_mode(**kwargs)

    def eval_mode(self, **kwargs: bool) -> AbstractContextManager[None]:
        """Return a context of evaluation mode."""
        return self.engine.eval_mode(**kwargs)

    def disable_adapter(self) -> AbstractContextManager[None]:
        """Return a context in which adapters have no effect."""
        return self.engine.disable_adapter()

    def forward_backward_batch(
        self, data: Any, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> dict[str, Any]:
        """Compute outputs and losses, and gradients unless `forward_only` is set."""
        return self.engine.forward_backward_batch(data, loss_function, forward_only=forward_only)

    def optimizer_zero_grad(self) -> None:
        """Drop the gradients."""
        self.engine.optimizer_zero_grad()

    def optimizer_step(self) -> float:
        """Clip gradients, update weights and return the gradient norm."""
        return self.engine.optimizer_step()

    def lr_scheduler_step(self) -> float:
        """Advance the LR schedule and return the learning rate of the next update."""
        return self.engine.lr_scheduler_step()

    def get_data_parallel_rank(self) -> int:
        """Return the data-parallel rank, also before `initialize`."""
        return self.engine.get_data_parallel_rank()

    def get_data_parallel_size(self) -> int:
        """Return the number of data-parallel ranks, also before `initialize`."""
        return self.engine.get_data_parallel_size()

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """Return the data-parallel group."""
        return self.engine.get_data_parallel_group()

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Return whether this rank provides the outputs of its sequences."""
        return self.engine.is_mp_src_rank_with_outputs()

    def to(
        self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True
    ) -> None:
        """Move weights, optimizer state or both. A forward-only engine is not moved, as in verl."""
        if not self.engine.forward_only:
            self.engine.to(device, model=model, optimizer=optimizer, grad=grad)

    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Save `step-N` beside `local_path`; see `VerlEngine.save_checkpoint`."""
        self.engine.save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep, **kwargs)

    def load_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        del_local_after_load: bool = True,
        **kwargs: Any,
    ) -> None:
        """Load a checkpoint; see `VerlEngine.load_checkpoint`."""
        self.engine.load_checkpoint(local_path, hdfs_path, del_local_after_load, **kwargs)

    def get_per_tensor_param(self, **kwargs: Any) -> tuple[Iterator[tuple[str, Tensor]], None]:
        """Return an iterator of the full weights in bfloat16 under Hugging Face names."""
        return self.engine.get_per_tensor_param(**kwargs)

    def get_per_tensor_param_shard(self, **kwargs: Any) -> Any:
        """Raise NotImplementedError, also for `prime_delta_snapshots`, which reads the shards."""
        raise NotImplementedError(NO_SHARD_EXPORT)

    def get_per_tensor_param_delta_shard(self, **kwargs: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(NO_SHARD_EXPORT)


def take_torchtitan_place() -> list[str]:
    """Register the engine as verl's backend `torchtitan` too, where verl has none.

    Configs of that strategy then need no other `_target_`. verl has an engine of its own on
    accelerators if torchtitan is installed; a device that has one is left alone, with a warning.

    Returns:
        The devices for which the engine was registered, none in a second call.
    """
    found = EngineRegistry._engines.get(MODEL_TYPE, {}).get(TORCHTITAN, {})
    # a key is a device, or a device and its vendor
    taken = {
        key if isinstance(key, str) else key[0]: engine_class for key, engine_class in found.items()
    }
    for device in DEVICES:
        if device in taken and taken[device] is not TitanrunEngine:
            name = taken[device].__name__
            log.warning("verl's backend torchtitan on %s stays its own %s", device, name)
    free = [device for device in DEVICES if device not in taken]
    if free:
        EngineRegistry.register(model_type=MODEL_TYPE, backend=TORCHTITAN, device=free)(
            TitanrunEngine
        )
    return free


EngineRegistry.register(model_type=MODEL_TYPE, backend=BACKEND, device=DEVICES)(TitanrunEngine)
