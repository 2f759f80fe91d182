"""The engine of a recipe by the names and rules of verl's engines (verl 0.9.1, workers/engine/base.py and its torchtitan engine).

Its losses are means over all ranks' tokens times the number of data-parallel ranks: what ranks add up is divided by that number.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.config.problems import fail
from titanrun.distributed.mesh import Meshes
from titanrun.engines.verl.cutting import microbatches
from titanrun.engines.verl.layout import NUMBER, Layout, Rule, token_outputs
from titanrun.engines.verl.modes import Mode, without_adapters
from titanrun.engines.verl.rows import Data, chosen, like_given, moved, sequences, with_settings
from titanrun.training.engine import Engine

log = logging.getLogger(__name__)
GLOBAL_STEP = re.compile(r"global_step_(\d+)")
LossFunction = Callable[..., tuple[Tensor, dict[str, Any]]]
TIED_HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class Opened(Protocol):
    """An engine with its ranks, its checkpoints and its names: titanrun.worker.open_engine.OpenEngine."""

    engine: Engine
    meshes: Meshes | None

    @property
    def dp_rank(self) -> int: ...

    @property
    def dp_size(self) -> int: ...

    @property
    def is_output_rank(self) -> bool: ...

    @property
    def recipe(self) -> Any: ...

    def state_dict_stream(
        self, *, names: Any, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]: ...

    def save(self, folder: Path | str, *, step: int, keep: int = 0) -> Any: ...

    def load(self, folder: Path | str, *, step: int | None = None) -> int: ...

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class VerlEngine:
    """What verl calls of an engine. Every rank calls each method.

    Args:
        open: makes the engine, with its weights; called by `initialize`.
        param_offload: weights and gradients lie in host memory outside of `train_mode` and `eval_mode`.
        optimizer_offload: optimizer state lies there outside of `train_mode`.
        forward_only: there are no updates.
        rule: what begins a document in `position_ids`.
    """

    open: Callable[[], Opened]
    param_offload: bool = False
    optimizer_offload: bool = False
    forward_only: bool = False
    rule: Rule = "difference"
    mode: str | None = None
    _opened: Opened | None = field(default=None)

    def initialize(self) -> None:
        """Builds the model with its weights and optimizer, and moves away what is kept in host memory. Raises ProblemsFound."""
        self._opened = self.open()
        parallelism = self._opened.recipe.parallelism
        if parallelism.context_parallel_degree > 1:
            # a loss of verl is given whole sequences on every rank
            raise fail(
                "conflict",
                "losses of verl need whole sequences on each rank",
                path=("parallelism", "context_parallel_degree"),
            )
        self._move("cpu", model=self.param_offload, optimizer=self.optimizer_offload)

    @property
    def opened(self) -> Opened:
        """What `initialize` made. Raises ValueError before."""
        if self._opened is None:
            raise ValueError("initialize comes first")
        return self._opened

    @property
    def is_param_offload_enabled(self) -> bool:
        """Whether weights lie in host memory between modes."""
        return self.param_offload

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        """Whether optimizer state lies there outside of `train_mode`."""
        return self.optimizer_offload

    def train_mode(self, **options: bool) -> AbstractContextManager[None]:
        """Training; afterwards gradients are gone (`zero_grad_on_exit`) and what is offloaded is away (`disable_auto_offload`)."""
        return Mode(self, "train", **options)

    def eval_mode(self, **options: bool) -> AbstractContextManager[None]:
        """Evaluation; afterwards gathered weights are let go of, and what is offloaded is away."""
        return Mode(self, "eval", **options)

    def disable_adapter(self) -> AbstractContextManager[None]:
        """The weights without what adapters add, within the block."""
        return without_adapters(self.opened.engine.model)

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Whether outputs are taken from this one of the ranks that compute the same rows."""
        return self.opened.is_output_rank

    def get_data_parallel_rank(self) -> int:
        """Which rows of each batch are this rank's."""
        return self.opened.dp_rank

    def get_data_parallel_size(self) -> int:
        """How many ranks have different rows."""
        return self.opened.dp_size

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """Their group; of one rank alone the whole one, if there is one, so that verl may reduce over it."""
        group = self.opened.engine.loss_group
        is_everybody = (
            group is None and dist.is_initialized() and dist.get_world_size() == self.opened.dp_size
        )
        return dist.group.WORLD if is_everybody else group

    def train_batch(self, data: Data, loss_function: LossFunction) -> dict[str, Any]:
        """One update: as `forward_backward_batch`, with `grad_norm` among the metrics of ranks that have outputs."""
        self.optimizer_zero_grad()
        found = self.forward_backward_batch(data, loss_function)
        norm = self.optimizer_step()
        if self.is_mp_src_rank_with_outputs():
            found["metrics"]["grad_norm"] = norm
        return found

    def infer_batch(self, data: Data, loss_function: LossFunction | None = None) -> dict[str, Any]:
        """As `forward_backward_batch`, without gradients; without a loss its losses are 1."""
        return self.forward_backward_batch(data, loss_function, forward_only=True)

    def forward_backward_batch(
        self, data: Data, loss_function: LossFunction | None, forward_only: bool = False
    ) -> dict[str, Any]:
        """Adds the gradients of each microbatch's loss, or none.

        Args:
            data: of this data-parallel rank: `input_ids`, `loss_mask` and, if positions do not count from 0, `position_ids`, jagged, or
                filled up with an `attention_mask`; and how it is cut into microbatches. It is given `batch_num_tokens`, the sum of
                `loss_mask` over all ranks, and `dp_size`.
            loss_function: called with `model_output`, `data` of the microbatch and `dp_group`; gives a loss times `dp_size`, and metrics.
            forward_only: nothing but outputs and losses is wanted.

        Returns `model_output`, in the order and layout of `data`, `loss`, one for each microbatch, and lists of what the losses measured:
        all empty on pipeline ranks without the last stage. Raises ProblemsFound for a batch that cannot be cut as it says.
        """
        if loss_function is None and not forward_only:
            raise ValueError("gradients need a loss_function")
        tokens = sum(int(mask.sum()) for mask in sequences(data, "loss_mask"))
        with_settings(
            data, batch_num_tokens=self._over_ranks(tokens, "sum_"), dp_size=self.opened.dp_size
        )
        stages = self._stages()
        cut = microbatches(
            data,
            most=lambda count: self._over_ranks(count, "largest_"),
            room=self._tensor_size(),
            least=stages,
        )
        found = Found(
            self,
            [moved(chosen(data, rows), self.opened.engine.device) for rows in cut],
            loss_function,
        )
        found.run(forward_only=forward_only, together=stages > 1)
        return found.in_order(cut, data)

    def optimizer_zero_grad(self) -> None:
        """Drops the gradients."""
        self.opened.engine.zero_grad()

    def optimizer_step(self) -> float:
        """Clips and updates; the gradients' norm. One that is no number is warned of, and leaves weights and optimizer as they are."""
        if self.forward_only:
            raise ValueError("a forward-only engine has no optimizer")
        update = self.opened.engine.optim_step(
            accepts=lambda norm: bool(norm.isfinite()), moves_schedule=False
        )
        if update.is_skipped:
            log.warning("the gradients' norm is %s: nothing is updated", float(update.grad_norm))
        return float(update.grad_norm)

    def lr_scheduler_step(self) -> float:
        """Moves the schedule on; the learning rate of the next update."""
        return self.opened.engine.lr_step()

    def to(
        self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True
    ) -> None:
        """Moves weights, optimizer state or both to `cpu` or back to the engine's device; gradients go with their weights."""
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
        """Saves everything as `step-N`, N the global step, in the folder that `local_path` lies in; `max_ckpt_to_keep` of them stay.

        Raises ProblemsFound where that step is there, ValueError for `hdfs_path`: `local_path` may be an address of a store.
        """
        refuse_hdfs(hdfs_path)
        with self._at_hand():
            self.opened.save(parent(local_path), step=global_step, keep=max_ckpt_to_keep or 0)

    def load_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        del_local_after_load: bool = True,
        **further: Any,
    ) -> None:
        """Takes up step N of the folder that `local_path`, with `global_step_N` in it, lies in; without N the latest.

        Nothing is deleted, whatever `del_local_after_load` says, as verl's torchtitan engine does.
        """
        refuse_hdfs(hdfs_path)
        named = GLOBAL_STEP.search(local_path)
        with self._at_hand():
            self.opened.load(parent(local_path), step=None if named is None else int(named[1]))

    def get_per_tensor_param(self, **further: Any) -> tuple[Iterator[tuple[str, Tensor]], None]:
        """The whole weights under Hugging Face's names in bfloat16, in the same order on all ranks, which must read to the end.

        Adapters are merged, and a tied head is the embedding once more.
        """
        return self._exported(), None

    def close(self) -> None:
        """Ends what `initialize` began."""
        if self._opened is not None:
            self._opened.close()

    def _exported(self) -> Iterator[tuple[str, Tensor]]:
        with self._at_hand():
            for name, tensor in self.opened.state_dict_stream(names="hf", dtype=torch.bfloat16):
                yield name, tensor
                if name == EMBEDDING and getattr(
                    self.opened.recipe.model, "tie_word_embeddings", False
                ):
                    yield TIED_HEAD, tensor

    @contextmanager
    def _at_hand(self) -> Iterator[None]:
        """All state on the device within the block, back where it was after it."""
        is_away = self.mode is None
        if is_away:
            self._move(
                str(self.opened.engine.device),
                model=self.param_offload,
                optimizer=self.optimizer_offload,
            )
        try:
            yield
        finally:
            if is_away:
                self._move("cpu", model=self.param_offload, optimizer=self.optimizer_offload)

    def _move(self, device: str, *, model: bool, optimizer: bool) -> None:
        self.opened.engine.to(device, model=model, optimizer=optimizer, grad=model)

    def _stages(self) -> int:
        """Of the pipeline; each needs a microbatch to be busy with."""
        passes: Any = self.opened.engine.passes
        return len(passes.pipeline.plan.stages) if passes.takes_microbatches else 1

    def _tensor_size(self) -> int:
        meshes = self.opened.meshes
        return 1 if meshes is None else meshes.degrees.tensor

    def _over_ranks(self, value: int, how: str) -> int:
        """A number of this rank's rows, over all that have others."""
        meshes = self.opened.meshes
        if meshes is None:
            return value
        return int(getattr(meshes, how)(torch.tensor(value, device=meshes.device), "loss"))


@dataclass(slots=True)
class Found:
    """What microbatches, which are on the device, give: each with its number, outputs by sequence, loss and metrics."""

    engine: VerlEngine
    parts: list[Data]
    loss_function: LossFunction | None
    outputs: dict[int, dict[str, list[Tensor]]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """One after the other where attention tells documents by positions."""
        attention = getattr(self.engine.opened.recipe.model, "attention", None)
        return Layout(
            packs=getattr(attention, "documents", None) == "positions", rule=self.engine.rule
        )

    def run(self, *, forward_only: bool, together: bool) -> None:
        """Passes of all microbatches; `together`: through a pipeline, in one shape."""
        opened = self.engine.opened
        lengths = [[len(sequence) for sequence in sequences(part)] for part in self.parts]
        widths = [sum(each) if self.layout.packs else max(each) for each in lengths]
        rows = max(map(len, lengths)) if together else 0
        # tensor-parallel ranks share the tokens of a row
        multiple = self.engine._tensor_size()
        widths = [
            -(-(max(widths) if together else width) // multiple) * multiple for width in widths
        ]
        batches = [
            self.layout.batch(part, number, width=width, rows=rows)
            for number, (part, width) in enumerate(zip(self.parts, widths, strict=True))
        ]
        if forward_only:
            opened.engine.eval_forward(batches, loss=self._loss, microbatches=True)
        else:
            divisor = torch.tensor(opened.dp_size, device=opened.engine.device)
            opened.engine.forward_backward(
                batches, loss=self._loss, normalizer=divisor, microbatches=True
            )

    def _loss(self, logits_NTV: Tensor, batch: Any) -> Tensor:
        number = int(batch.extra[NUMBER][0, 0])
        part = self.parts[number]
        found = token_outputs(logits_NTV, batch, part, self.layout)
        self.outputs[number] = {
            name: [value.detach() for value in values] for name, values in found.items()
        }
        if self.loss_function is None:
            self.losses[number], self.metrics[number] = 1.0, {}
            return torch.zeros((), device=self.engine.opened.engine.device)
        model_output = {name: like_given(values, part) for name, values in found.items()}
        loss, metrics = self.loss_function(
            model_output=model_output, data=part, dp_group=self.engine.get_data_parallel_group()
        )
        self.losses[number], self.metrics[number] = float(loss.detach()), metrics
        return loss

    def in_order(self, cut: list[list[int]], data: Data) -> dict[str, Any]:
        """Outputs of all sequences in the order they were given; losses and metrics in that of the microbatches."""
        order = [row for number in self.outputs for row in cut[number]]
        model_output = {}
        for name in self.outputs[0] if self.outputs else ():
            values = [value for found in self.outputs.values() for value in found[name]]
            by_row = dict(zip(order, values, strict=True))
            model_output[name] = like_given([by_row[row] for row in sorted(by_row)], data)
        metrics: dict[str, Any] = {}
        for number in sorted(self.metrics):
            for name, value in self.metrics[number].items():
                metrics.setdefault(name, []).append(value)
        return {
            "model_output": model_output,
            "loss": [self.losses[number] for number in sorted(self.losses)],
            "metrics": metrics,
        }


def parent(path: str) -> str:
    """The folder, or the address, that a path lies in."""
    return path.rstrip("/").rpartition("/")[0] or "."


def refuse_hdfs(path: str | None) -> None:
    """Raises ValueError where a copy in HDFS is asked for."""
    if path is not None:
        raise ValueError(
            "hdfs_path is not taken: local_path may be an address of a store that titanrun writes to"
        )
