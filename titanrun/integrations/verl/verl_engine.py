"""Engine with the interface of verl's engines.

It follows verl 0.9.1, workers/engine/base.py and its torchtitan engine. Its losses are means over
all ranks' tokens times the number of data-parallel ranks: sums over ranks are divided by that
number.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.integrations.verl.engine_handle_protocol import EngineHandleProtocol
from titanrun.integrations.verl.engine_modes import EngineMode
from titanrun.integrations.verl.microbatch_runner import LossFunction, MicrobatchRunner
from titanrun.integrations.verl.microbatching import split_into_microbatches
from titanrun.integrations.verl.rank_position import RankPosition
from titanrun.integrations.verl.verl_batches import DocumentRule, EntropyOptions
from titanrun.integrations.verl.verl_checkpoints import CheckpointContents
from titanrun.integrations.verl.verl_sequences import (
    VerlBatch,
    count_loss_tokens,
    move_batch,
    select_sequences,
    set_batch_settings,
)
from titanrun.training.preference_inputs import disable_adapters

log = logging.getLogger(__name__)
GLOBAL_STEP_PATTERN = re.compile(r"global_step_(\d+)")
TIED_HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(slots=True, kw_only=True)
class VerlEngine:
    """Engine with the methods that verl calls. All ranks must call each method together.

    Args:
        build_handle: builds the engine with its weights; called by `initialize`.
        param_offload: keep weights and gradients in host memory outside of `train_mode` and
            `eval_mode`.
        optimizer_offload: keep optimizer state in host memory outside of `train_mode`.
        forward_only: make no updates.
        document_rule: which `position_ids` start a document.
        entropy: how the entropy is computed.
        contents: what checkpoints hold, and what of them is loaded.
        find_position: returns this rank's place before `initialize`.
    """

    build_handle: Callable[[], EngineHandleProtocol]
    find_position: Callable[[], RankPosition] = lambda: RankPosition(0, 1, is_output_rank=True)
    param_offload: bool = False
    optimizer_offload: bool = False
    forward_only: bool = False
    document_rule: DocumentRule = "difference"
    entropy: EntropyOptions = field(default_factory=EntropyOptions)
    contents: CheckpointContents = field(default_factory=CheckpointContents)
    mode: str | None = None
    _handle: EngineHandleProtocol | None = field(default=None)

    def initialize(self) -> None:
        """Build the model with weights and optimizer, and offload to host memory if configured.

        A second call builds them anew, from the start.

        Raises:
            ProblemsFound: the recipe cannot be built, or uses context parallelism.
        """
        self.close()
        self._handle = self.build_handle()
        parallelism = self._handle.recipe.parallelism
        if parallelism.context_parallel_degree > 1:
            # verl's losses need whole sequences on every rank
            raise problem_error(
                "conflict",
                "verl's losses need whole sequences on each rank",
                path=("parallelism", "context_parallel_degree"),
            )
        self._move("cpu", model=self.param_offload, optimizer=self.optimizer_offload)

    @property
    def handle(self) -> EngineHandleProtocol:
        """Handle built by `initialize`.

        Raises:
            ValueError: before `initialize`.
        """
        if self._handle is None:
            raise ValueError("call initialize() first")
        return self._handle

    @property
    def is_param_offload_enabled(self) -> bool:
        """Whether weights are in host memory between modes."""
        return self.param_offload

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        """Whether optimizer state is in host memory outside of `train_mode`."""
        return self.optimizer_offload

    def train_mode(self, **options: bool) -> AbstractContextManager[None]:
        """Return a context of training mode.

        On exit gradients are dropped (`zero_grad_on_exit`) and state is offloaded unless
        `disable_auto_offload` is set.
        """
        return EngineMode(self, "train", **options)

    def eval_mode(self, **options: bool) -> AbstractContextManager[None]:
        """Return a context of evaluation mode.

        On exit gathered weights are freed and state is offloaded.
        """
        return EngineMode(self, "eval", **options)

    def disable_adapter(self) -> AbstractContextManager[None]:
        """Return a context in which adapters have no effect."""
        return disable_adapters(self.handle.engine.model)

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Return whether this rank provides the outputs of its sequences."""
        return self._get_position().is_output_rank

    def get_data_parallel_rank(self) -> int:
        """Return the data-parallel rank."""
        return self._get_position().dp_rank

    def get_data_parallel_size(self) -> int:
        """Return the number of data-parallel ranks."""
        return self._get_position().dp_size

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """Return the data-parallel group.

        For a single rank this is the world group, if there is one, so that verl may reduce over it.
        """
        group = self.handle.engine.loss_group
        is_everybody = (
            group is None and dist.is_initialized() and dist.get_world_size() == self.handle.dp_size
        )
        return dist.group.WORLD if is_everybody else group

    def train_batch(self, data: VerlBatch, loss_function: LossFunction) -> dict[str, Any]:
        """Run one update; see `forward_backward_batch`.

        Ranks with outputs add `grad_norm` to the metrics.
        """
        self.optimizer_zero_grad()
        found = self.forward_backward_batch(data, loss_function)
        norm = self.optimizer_step()
        if self.is_mp_src_rank_with_outputs():
            found["metrics"]["grad_norm"] = norm
        return found

    def infer_batch(
        self, data: VerlBatch, loss_function: LossFunction | None = None
    ) -> dict[str, Any]:
        """Run `forward_backward_batch` without gradients. Without a loss all losses are 1."""
        return self.forward_backward_batch(data, loss_function, forward_only=True)

    def forward_backward_batch(
        self, data: VerlBatch, loss_function: LossFunction | None, forward_only: bool = False
    ) -> dict[str, Any]:
        """Add the gradients of each microbatch's loss, unless `forward_only` is set.

        Return `model_output` in the order and layout of `data`, `loss` with one value per
        microbatch, and lists of the losses' metrics. All are empty on pipeline ranks without the
        last stage.

        Args:
            data: the batch of this data-parallel rank: `input_ids`, `loss_mask` and, if positions
                do not count from 0, `position_ids`, jagged or padded with an `attention_mask`, and
                the settings of microbatches. `batch_num_tokens`, the sum of `loss_mask` over all
                ranks, and `dp_size` are added to it.
            loss_function: called with `model_output`, `data` of the microbatch and `dp_group`.
                Returns a loss times `dp_size`, and metrics.
            forward_only: compute only outputs and losses.

        Raises:
            ProblemsFound: the batch cannot be split as configured.
        """
        if loss_function is None and not forward_only:
            raise ValueError("gradients need a loss_function")
        tokens = count_loss_tokens(data)
        set_batch_settings(
            data,
            batch_num_tokens=self._all_reduce(tokens, "all_reduce_sum_"),
            dp_size=self.handle.dp_size,
        )
        stages = self._get_num_stages()
        microbatches = split_into_microbatches(
            data,
            all_reduce_max=lambda count: self._all_reduce(count, "all_reduce_max_"),
            tp_size=self._get_tp_size(),
            min_microbatches=stages,
        )
        runner = MicrobatchRunner(
            self,
            [
                move_batch(select_sequences(data, each), self.handle.engine.device)
                for each in microbatches
            ],
            loss_function,
        )
        runner.run(forward_only=forward_only, uses_pipeline=stages > 1)
        return runner.merge_outputs(microbatches, data)

    def optimizer_zero_grad(self) -> None:
        """Drop the gradients."""
        self.handle.engine.zero_grad()

    def optimizer_step(self) -> float:
        """Clip gradients, update weights and return the gradient norm.

        If the norm is not finite, log a warning and skip the update.
        """
        if self.forward_only:
            raise ValueError("a forward-only engine has no optimizer")
        update = self.handle.engine.optim_step(
            should_update=lambda norm: bool(norm.isfinite()), step_scheduler=False
        )
        if update.is_skipped:
            log.warning("gradient norm is %s: optimizer step skipped", float(update.grad_norm))
        return float(update.grad_norm)

    def lr_scheduler_step(self) -> float:
        """Advance the LR schedule and return the learning rate of the next update."""
        return self.handle.engine.lr_scheduler_step()

    def to(
        self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True
    ) -> None:
        """Move weights, optimizer state or both to `cpu` or back to the engine's device.

        Gradients move with their weights.
        """
        if grad and not model:
            raise ValueError("gradients move with their weights: grad needs model")
        self._move(device, model=model, optimizer=optimizer)

    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
        **further: Any,
    ) -> None:
        """Save `step-N`, with the global step N, in the parent of `local_path`.

        `local_path` may be an address of an object store. `max_ckpt_to_keep` checkpoints are kept.

        Raises:
            ProblemsFound: the step is already saved.
            ValueError: `hdfs_path` is set.
        """
        check_no_hdfs_path(hdfs_path)
        with self._state_on_device():
            self.handle.save(
                get_parent_path(local_path),
                step=global_step,
                keep=max_ckpt_to_keep or 0,
                model_only=self.contents.saves_model_only,
            )

    def load_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        del_local_after_load: bool = True,
        **further: Any,
    ) -> None:
        """Load a checkpoint from the parent of `local_path`.

        The step is N if `local_path` contains `global_step_N`, else the latest. Nothing is deleted,
        regardless of `del_local_after_load`, as in verl's torchtitan engine.
        """
        check_no_hdfs_path(hdfs_path)
        named = GLOBAL_STEP_PATTERN.search(local_path)
        with self._state_on_device():
            self.handle.load(
                get_parent_path(local_path),
                step=None if named is None else int(named[1]),
                scope="model" if self.contents.loads_model_only else "all",
            )

    def get_per_tensor_param(self, **further: Any) -> tuple[Iterator[tuple[str, Tensor]], None]:
        """Return an iterator of the full weights in bfloat16 under Hugging Face names.

        The order is equal on all ranks, which must read to the end. Adapters are merged, and a tied
        head is a second copy of the embedding.
        """
        return self._iter_exported_weights(), None

    def close(self) -> None:
        """Release all resources."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _get_position(self) -> "EngineHandleProtocol | RankPosition":
        """Return what knows this rank's place: the engine, or before `initialize` the degrees."""
        return self.find_position() if self._handle is None else self._handle

    def _iter_exported_weights(self) -> Iterator[tuple[str, Tensor]]:
        with self._state_on_device():
            for name, tensor in self.handle.state_dict_stream(names="hf", dtype=torch.bfloat16):
                yield name, tensor
                if name == EMBEDDING and getattr(
                    self.handle.recipe.model, "tie_word_embeddings", False
                ):
                    yield TIED_HEAD, tensor

    @contextmanager
    def _state_on_device(self) -> Iterator[None]:
        """Keep all state on the device within the block, then move it back."""
        is_away = self.mode is None
        if is_away:
            self._move(
                str(self.handle.engine.device),
                model=self.param_offload,
                optimizer=self.optimizer_offload,
            )
        try:
            yield
        finally:
            if is_away:
                self._move("cpu", model=self.param_offload, optimizer=self.optimizer_offload)

    def _move(self, device: str, *, model: bool, optimizer: bool) -> None:
        self.handle.engine.to(device, model=model, optimizer=optimizer, grad=model)

    def _get_num_stages(self) -> int:
        """Return the number of pipeline stages, each of which needs a microbatch."""
        runner: Any = self.handle.engine.runner
        return len(runner.pipeline.plan.stages) if runner.accepts_microbatches else 1

    def _get_tp_size(self) -> int:
        meshes = self.handle.meshes
        return 1 if meshes is None else meshes.parallel_dims.tp

    def _all_reduce(self, value: int, reduction: str) -> int:
        """Reduce a number over the ranks with different sequences."""
        meshes = self.handle.meshes
        if meshes is None:
            return value
        return int(getattr(meshes, reduction)(torch.tensor(value, device=meshes.device), "loss"))


def get_parent_path(path: str) -> str:
    """Return the parent of a path or an address."""
    return path.rstrip("/").rpartition("/")[0] or "."


def check_no_hdfs_path(path: str | None) -> None:
    """Raise ValueError if a copy in HDFS is requested."""
    if path is not None:
        raise ValueError(
            "hdfs_path is not supported: use an address of an object store as local_path"
        )
