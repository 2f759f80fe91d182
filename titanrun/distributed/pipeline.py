"""Pipeline parallelism: this rank's stages of a model, and how microbatches go through them (torch.distributed.pipelining).

Shapes: M rows of a microbatch, T tokens of a row; what stages hand on to each other has any shape.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
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

from titanrun.distributed.schedule_file import read_schedule, stages_held
from titanrun.distributed.shards import own_part
from titanrun.distributed.stages import SCHEDULES, PipelinePlan, stages_of_rank
from titanrun.distributed.tied_ends import ENDS, are_tied

T = TypeVar("T")
LossOf = Callable[[Tensor, int], Tensor]
Overlap = Callable[[Any], None]
Autocast = Callable[[], AbstractContextManager[object]]


class Inputs(NamedTuple):
    """A microbatch: tokens [M, T], which the first stage is given, and by name what every stage is, each with M rows."""

    tokens: Tensor
    named: dict[str, Tensor]


def cut(model: nn.Module, plan: PipelinePlan, *, rank: int, ranks: int) -> dict[int, nn.Module]:
    """Takes what other ranks hold out of the model. Gives this rank's stages: views of what is left, which share its parts.

    Whatever is done to the model (split over ranks, recomputed, compiled, allocated, filled with weights) is done to its stages.
    They have hooks of their own, and FSDP of their own. Who holds one of two parts that share a matrix keeps the other one too, outside
    its stages: so the matrix has the names, the first numbers and the optimizer state that it has in the whole model.
    """
    own = (
        stages_held(read_schedule(Path(plan.file)), rank)
        if plan.file is not None
        else named_stages(plan, rank, ranks)
    )
    kept = {name for stage in own for name in plan.stages[stage]}
    shared = set(ENDS) if are_tied(model) else set()
    keep_modules(model, kept | shared if kept & shared else kept)
    return {stage: view(model, plan.stages[stage]) for stage in own}


def named_stages(plan: PipelinePlan, rank: int, ranks: int) -> tuple[int, ...]:
    """The stages of a rank under a named schedule, ascending."""
    return tuple(
        sorted(
            stages_of_rank(
                rank, ranks, len(plan.stages), v_shaped=SCHEDULES[plan.schedule].v_shaped
            )
        )
    )


def keep_modules(model: nn.Module, names: Iterable[str]) -> None:
    """Drops the parts and layers of a model that have none of the names; a part that is dropped becomes None."""
    kept = set(names)
    for part in list(model._modules):
        if part != "layers" and part not in kept:
            setattr(model, part, None)
    layers = model.get_submodule("layers")
    for layer in list(layers._modules):
        if f"layers.{layer}" not in kept:
            del layers._modules[layer]


def view(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """The model with some of its parts and layers only. They are the model's own, as are its buffers; hooks are not."""
    stage = copy.copy(model)
    for name, held in vars(stage).items():
        if isinstance(held, dict) and name not in ("_parameters", "_buffers"):
            vars(stage)[name] = held.copy()
    layers = nn.ModuleDict()
    layers._modules.update(model.get_submodule("layers")._modules)
    stage._modules["layers"] = layers
    keep_modules(stage, names)
    return stage


class Pipeline:
    """Runs microbatches through the stages of all pipeline ranks; every one of them calls each method with the same shapes.

    Args:
        stages: this rank's stages by their place in the pipeline.
        plan: which stages there are, and in which order microbatches go through them.
        group: the pipeline ranks.
        autocast: what each forward pass runs in.
        overlap: makes a schedule run its pairs of passes at once.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        plan: PipelinePlan,
        *,
        group: ProcessGroup,
        device: torch.device,
        autocast: Autocast,
        overlap: Overlap | None = None,
    ) -> None:
        self.stages = dict(sorted(stages.items()))
        self.plan = plan
        self.group = group
        self.device = device
        self.overlap = overlap
        self.last = len(plan.stages) - 1
        self._holders = holders(plan, group.size())
        self._loss_of: LossOf | None = None
        # what goes into a stage and comes out of it, as tensors without memory, by the shape of a microbatch's tokens
        self._ends: dict[tuple[int, Size], tuple[Tensor, Tensor]] = {}
        self._schedules: dict[tuple[int, Size], _PipelineSchedule] = {}
        for stage in self.stages.values():
            run_within(autocast, stage)

    @property
    def last_rank(self) -> int:
        """The rank in the group that has the model's output."""
        return self._holders[self.last]

    def backward(self, microbatches: Sequence[Inputs], loss_of: LossOf) -> None:
        """Adds the gradients of each microbatch's loss.

        Args:
            microbatches: all of one shape.
            loss_of: the loss of the model's output for the microbatch of that index; called on the last stage's rank only.
        """
        schedule = self._schedule(microbatches)
        tokens = torch.cat([given.tokens for given in microbatches])
        named = {
            name: torch.cat([given.named[name] for given in microbatches])
            for name in microbatches[0].named
        }
        self._loss_of = loss_of
        # a schedule hands on the part of `target` that belongs to a microbatch: here its index
        schedule.step(
            *[tokens][: 0 in self.stages],
            target=torch.arange(len(microbatches)),
            return_outputs=False,
            **named,
        )
        self._loss_of = None

    @torch.no_grad()
    def forward(self, microbatches: Sequence[Inputs], take: Callable[[Tensor, int], T]) -> list[T]:
        """What `take` makes of the model's output for each microbatch, on the last stage's rank; nothing on the others."""
        passed: list[Tensor] = []
        taken: list[T] = []
        sending: list[Any] = []
        for index, stage in self.stages.items():
            entering, passed = passed, []
            for number, (tokens, named) in enumerate(microbatches):
                is_new = (index, tokens.shape) not in self._ends
                given = (
                    tokens
                    if index == 0
                    else entering[number]
                    if entering
                    else self._receive(index, tokens.shape)
                )
                output = (
                    own_part(stage(given, **named)) if index < self.last else stage(given, **named)
                )
                self._ends[index, tokens.shape] = (
                    without_memory(given),
                    without_memory(own_part(output)),
                )
                if index == self.last:
                    taken.append(take(output, number))
                elif index + 1 in self.stages:
                    passed.append(output)
                else:
                    sending.append(self._send(output, index, is_new=is_new))
            drop_gathered(stage)
        for work, _ in sending:
            work.wait()
        return taken

    def _send(self, output: Tensor, index: int, *, is_new: bool) -> tuple[Any, Tensor]:
        """Begins to send what stage `index` computed to the next one, after its shape where that is new; to be kept until it is sent."""
        to, output = self._holders[index + 1], output.contiguous()
        if is_new:
            dist.send_object_list(
                [(output.shape, output.dtype)], group=self.group, group_dst=to, device=self.device
            )
        return dist.isend(output, group=self.group, group_dst=to), output

    def _receive(self, index: int, tokens: Size) -> Tensor:
        """What the stage before `index` computed."""
        source, known = self._holders[index - 1], self._ends.get((index, tokens))
        if known is None:
            box: list[Any] = [None]
            dist.recv_object_list(box, group=self.group, group_src=source, device=self.device)
            shape, dtype = box[0]
        else:
            shape, dtype = known[0].shape, known[0].dtype
        received = torch.empty(shape, dtype=dtype, device=self.device)
        dist.recv(received, group=self.group, group_src=source)
        return received

    def _schedule(self, microbatches: Sequence[Inputs]) -> _PipelineSchedule:
        """The order for so many microbatches of that shape, made when it is first needed."""
        shape = microbatches[0].tokens.shape
        key = (len(microbatches), shape)
        if key not in self._schedules:
            # torch would try each stage with gradients to learn its shapes, which counts tokens of experts twice
            self.forward(microbatches[:1], lambda output, number: None)
            stages = [
                self._torch_stage(index, stage, shape) for index, stage in self.stages.items()
            ]
            self._schedules[key] = made = make_schedule(
                self.plan, stages, len(microbatches), self._loss
            )
            if self.overlap is not None:
                self.overlap(made)
        return self._schedules[key]

    def _torch_stage(self, index: int, stage: nn.Module, tokens: Size) -> PipelineStage:
        entering, leaving = self._ends[index, tokens]
        return PipelineStage(
            stage,
            index,
            self.last + 1,
            self.device,
            input_args=entering,
            output_args=leaving,
            group=self.group,
        )

    def _loss(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss_of is not None, "a schedule computes losses within `backward` only"
        return self._loss_of(output, int(number))


def make_schedule(
    plan: PipelinePlan, stages: list[PipelineStage], microbatches: int, loss: Callable[..., Tensor]
) -> _PipelineSchedule:
    """The order of forward and backward passes. Gradients are sums: nothing is divided by the number of microbatches."""
    options: dict[str, Any] = {
        "n_microbatches": microbatches,
        "loss_fn": loss,
        "scale_grads": False,
    }
    if plan.file is not None:
        schedule = _PipelineScheduleRuntime(stages, **options)
        schedule._load_csv(plan.file)
        return schedule
    kind: Any = get_schedule_class(plan.schedule)
    made: _PipelineSchedule = kind(
        stages[0] if issubclass(kind, PipelineScheduleSingle) else stages, **options
    )
    return made


def holders(plan: PipelinePlan, ranks: int) -> list[int]:
    """The rank in the group that holds each stage."""
    order = None if plan.file is None else read_schedule(Path(plan.file))
    held = [
        named_stages(plan, rank, ranks) if order is None else stages_held(order, rank)
        for rank in range(ranks)
    ]
    of_stage = {stage: rank for rank, stages in enumerate(held) for stage in stages}
    return [of_stage[stage] for stage in range(len(plan.stages))]


def without_memory(tensor: Tensor) -> Tensor:
    """The tensor's shape and dtype on the meta device; what has gradients needs them."""
    return torch.empty_like(tensor, device="meta", requires_grad=tensor.is_floating_point())


def run_within(autocast: Autocast, stage: nn.Module) -> None:
    """Makes each forward pass of a stage run in `autocast`; its backward pass does not."""
    forward = stage.forward

    def run(*given: Tensor, **named: Tensor) -> Tensor:
        with autocast():
            output: Tensor = forward(*given, **named)
        return output

    # an instance attribute, not a wrapper module: a wrapper would put its name into every parameter's name
    stage.forward = run


def drop_gathered(stage: nn.Module) -> None:
    """Lets go of gathered weights: without a backward pass nobody else does, and after an update they would be old."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
