"""Pipeline parallelism: this rank's stages of a model and their microbatch schedule.

Based on torch.distributed.pipelining.

Shapes: M sequences of a microbatch, T tokens of a sequence. The tensors between stages may have any
shape.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Size, Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    _PipelineSchedule,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from titanrun.distributed.dtensor import to_local
from titanrun.distributed.spec.pipeline_schedule_csv import get_stages_in_order, read_schedule_csv
from titanrun.distributed.spec.pipeline_stages import (
    PIPELINE_SCHEDULES,
    PipelinePlan,
    get_stages_for_rank,
)
from titanrun.distributed.tied_embeddings import TIED_MODULES, has_tied_embeddings

T = TypeVar("T")
MicrobatchLossFn = Callable[[Tensor, int], Tensor]
EnableOverlapFn = Callable[[Any], None]


class StageInputs(NamedTuple):
    """Inputs of a microbatch: tokens [M, T] of the first stage, and keyword arguments.

    Every stage receives the keyword arguments, each with M sequences.
    """

    tokens: Tensor
    kwargs: dict[str, Tensor]


def split_into_stages(
    model: nn.Module, plan: PipelinePlan, *, pp_rank: int, pp_size: int
) -> dict[int, nn.Module]:
    """Remove the modules of other ranks from the model and return this rank's stages.

    The stages are views of the remaining model that share its modules. Whatever is done to the
    model (parallelizing, activation checkpointing, compiling, allocating, loading weights) is done
    to its stages. They have their own hooks and their own FSDP. A rank that holds one of two
    modules that share a matrix keeps the other one too, outside its stages: so the matrix has the
    names, the initial values and the optimizer state that it has in the whole model.
    """
    own = (
        get_stages_in_order(read_schedule_csv(Path(plan.schedule_csv)), pp_rank)
        if plan.schedule_csv is not None
        else get_local_stages(plan, pp_rank, pp_size)
    )
    kept = {name for stage in own for name in plan.stages[stage]}
    shared = set(TIED_MODULES) if has_tied_embeddings(model) else set()
    prune_modules(model, kept | shared if kept & shared else kept)
    return {stage: view_stage(model, plan.stages[stage]) for stage in own}


def get_local_stages(plan: PipelinePlan, pp_rank: int, pp_size: int) -> tuple[int, ...]:
    """Return the stages of a rank under a named schedule, in ascending order."""
    return tuple(
        sorted(
            get_stages_for_rank(
                pp_rank,
                pp_size,
                len(plan.stages),
                is_v_shaped=PIPELINE_SCHEDULES[plan.schedule].is_v_shaped,
            )
        )
    )


def prune_modules(model: nn.Module, names: Iterable[str]) -> None:
    """Drop the parts and layers of a model that are not named. A dropped part becomes None."""
    kept = set(names)
    for part in list(model._modules):
        if part != "layers" and part not in kept:
            setattr(model, part, None)
    layers = model.get_submodule("layers")
    for layer in list(layers._modules):
        if f"layers.{layer}" not in kept:
            del layers._modules[layer]


def view_stage(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """Return a view of the model that has some of its parts and layers only.

    The view shares modules and buffers with the model, but not hooks.
    """
    stage = copy.copy(model)
    for name, held in vars(stage).items():
        if isinstance(held, dict) and name not in ("_parameters", "_buffers"):
            vars(stage)[name] = held.copy()
    layers = nn.ModuleDict()
    held_layers: dict[str, Any] = layers._modules
    held_layers.update(model.get_submodule("layers")._modules)
    stage._modules["layers"] = layers
    prune_modules(stage, names)
    return stage


class Pipeline:
    """Runner of microbatches through the stages of all pipeline ranks.

    All pipeline ranks must call each method with the same shapes.

    Args:
        stages: this rank's stages by their index in the pipeline.
        plan: all stages, and the schedule of microbatches.
        group: the pipeline ranks.
        device: device of the stages.
        enable_overlap: makes a schedule run its pairs of passes concurrently.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        plan: PipelinePlan,
        *,
        group: ProcessGroup,
        device: torch.device,
        enable_overlap: EnableOverlapFn | None = None,
    ) -> None:
        self.stages = dict(sorted(stages.items()))
        self.plan = plan
        self.group = group
        self.device = device
        self.enable_overlap = enable_overlap
        self.last_stage = len(plan.stages) - 1
        self._stage_to_rank = map_stages_to_ranks(plan, group.size())
        self._loss_fn: MicrobatchLossFn | None = None
        # input and output of a stage as tensors without memory, by the shape of a microbatch's
        # tokens
        self._stage_io: dict[tuple[int, Size], tuple[Tensor, Tensor]] = {}
        self._schedules: dict[tuple[int, Size], _PipelineSchedule] = {}

    @property
    def last_rank(self) -> int:
        """Rank in the group that has the model's output."""
        return self._stage_to_rank[self.last_stage]

    def forward_backward(
        self, microbatches: Sequence[StageInputs], loss_fn: MicrobatchLossFn
    ) -> None:
        """Accumulate the gradients of the loss of each microbatch.

        Args:
            microbatches: inputs of the microbatches, all of one shape.
            loss_fn: loss of the model's output for the microbatch with that index, called on the
                last stage's rank only.
        """
        schedule = self._get_schedule(microbatches)
        tokens = torch.cat([given.tokens for given in microbatches])
        named: dict[str, Any] = {
            name: torch.cat([given.kwargs[name] for given in microbatches])
            for name in microbatches[0].kwargs
        }
        self._loss_fn = loss_fn
        # a schedule passes on the part of `target` that belongs to a microbatch: here its index
        schedule.step(
            *[tokens][: 0 in self.stages],
            target=torch.arange(len(microbatches)),
            return_outputs=False,
            **named,
        )
        self._loss_fn = None

    @torch.no_grad()
    def forward(
        self, microbatches: Sequence[StageInputs], output_fn: Callable[[Tensor, int], T]
    ) -> list[T]:
        """Run the forward passes only and return `output_fn` of each microbatch's output.

        Return an empty list on all ranks but that of the last stage.
        """
        passed: list[Tensor] = []
        taken: list[T] = []
        sending: list[Any] = []
        for index, stage in self.stages.items():
            entering, passed = passed, []
            for number, (tokens, named) in enumerate(microbatches):
                is_new = (index, tokens.shape) not in self._stage_io
                given = (
                    tokens
                    if index == 0
                    else entering[number]
                    if entering
                    else self._receive(index, tokens.shape)
                )
                output = (
                    to_local(stage(given, **named))
                    if index < self.last_stage
                    else stage(given, **named)
                )
                self._stage_io[index, tokens.shape] = (
                    to_meta_tensor(given),
                    to_meta_tensor(to_local(output)),
                )
                if index == self.last_stage:
                    taken.append(output_fn(output, number))
                elif index + 1 in self.stages:
                    passed.append(output)
                else:
                    sending.append(self._send(output, index, is_new=is_new))
            reshard_fsdp_modules(stage)
        for work, _ in sending:
            work.wait()
        return taken

    def _send(self, output: Tensor, index: int, *, is_new: bool) -> tuple[Any, Tensor]:
        """Start sending the output of stage `index` to the next stage, preceded by a new shape.

        The returned tensor must be kept until it is sent.
        """
        to, output = self._stage_to_rank[index + 1], output.contiguous()
        if is_new:
            dist.send_object_list(
                [(output.shape, output.dtype)], group=self.group, group_dst=to, device=self.device
            )
        return dist.isend(output, group=self.group, group_dst=to), output

    def _receive(self, index: int, tokens: Size) -> Tensor:
        """Receive the output of the stage before `index`."""
        source, known = self._stage_to_rank[index - 1], self._stage_io.get((index, tokens))
        if known is None:
            box: list[Any] = [None]
            dist.recv_object_list(box, group=self.group, group_src=source, device=self.device)
            shape, dtype = box[0]
        else:
            shape, dtype = known[0].shape, known[0].dtype
        received = torch.empty(shape, dtype=dtype, device=self.device)
        dist.recv(received, group=self.group, group_src=source)
        return received

    def _get_schedule(self, microbatches: Sequence[StageInputs]) -> _PipelineSchedule:
        """Return the schedule for this number and shape of microbatches, built on first use."""
        shape = microbatches[0].tokens.shape
        key = (len(microbatches), shape)
        if key not in self._schedules:
            # torch would run each stage with gradients to learn its shapes, which counts tokens of
            # experts twice
            self.forward(microbatches[:1], lambda output, number: None)
            stages = [
                self._build_torch_stage(index, stage, shape) for index, stage in self.stages.items()
            ]
            self._schedules[key] = made = build_pipeline_schedule(
                self.plan, stages, len(microbatches), self._compute_loss
            )
            if self.enable_overlap is not None:
                self.enable_overlap(made)
        return self._schedules[key]

    def _build_torch_stage(self, index: int, stage: nn.Module, tokens: Size) -> PipelineStage:
        entering, leaving = self._stage_io[index, tokens]
        return PipelineStage(
            stage,
            index,
            self.last_stage + 1,
            self.device,
            input_args=entering,
            output_args=leaving,
            group=self.group,
        )

    def _compute_loss(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss_fn is not None, (
            "a schedule computes losses within `forward_backward` only"
        )
        return self._loss_fn(output, int(number))


def build_pipeline_schedule(
    plan: PipelinePlan,
    stages: list[PipelineStage],
    num_microbatches: int,
    loss_fn: Callable[..., Tensor],
) -> _PipelineSchedule:
    """Build the schedule of forward and backward passes.

    Gradients are sums: they are not divided by the number of microbatches.
    """
    options: dict[str, Any] = {
        "n_microbatches": num_microbatches,
        "loss_fn": loss_fn,
        "scale_grads": False,
    }
    if plan.schedule_csv is not None:
        schedule = _PipelineScheduleRuntime(stages, **options)
        schedule._load_csv(plan.schedule_csv)
        return schedule
    kind: Any = get_schedule_class(plan.schedule)
    made: _PipelineSchedule = kind(
        stages[0] if issubclass(kind, PipelineScheduleSingle) else stages, **options
    )
    return made


def map_stages_to_ranks(plan: PipelinePlan, pp_size: int) -> list[int]:
    """Return the rank in the group that holds each stage."""
    order = None if plan.schedule_csv is None else read_schedule_csv(Path(plan.schedule_csv))
    held = [
        get_local_stages(plan, rank, pp_size) if order is None else get_stages_in_order(order, rank)
        for rank in range(pp_size)
    ]
    stage_to_rank = {stage: rank for rank, stages in enumerate(held) for stage in stages}
    return [stage_to_rank[stage] for stage in range(len(plan.stages))]


def to_meta_tensor(tensor: Tensor) -> Tensor:
    """Return a meta tensor of the same shape and dtype that requires gradients if it can."""
    return torch.empty_like(tensor, device="meta", requires_grad=tensor.is_floating_point())


def reshard_fsdp_modules(stage: nn.Module) -> None:
    """Free gathered weights.

    Without a backward pass nothing else frees them, and after an update they would be stale.
    """
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
