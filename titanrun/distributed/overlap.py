"""Two passes at once: while tokens of one travel between experts, the other computes (https://arxiv.org/abs/2412.19437, section 3.2.1).

The pipeline schedule DualPipeV pairs the forward pass of a microbatch through one stage with the backward pass of another through the
other stage of the rank. Each runs in a thread of its own.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining.schedules import (
    OVERLAP_F_B,
    _Action,
    _PipelineContext,
    _PipelineScheduleRuntime,
    _wait_batch_p2p,
)

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.expert_parallel import Exchange, ExpertLayer

PASSES = 2


class Turns:
    """Keeps two passes in step: each waits for the other before and after its tokens travel, until one of them has ended.

    Of a layer, a forward pass computes, sends tokens, computes, and gets them back; a backward pass begins with a gradient that it
    sends. So at any time one of them computes where the other communicates, and the ranks, whose threads are not equally fast, all
    communicate in the same order.
    """

    def __init__(self) -> None:
        self.meetings = 0
        self._changed = Condition()
        self._passes = 0
        self._is_awaited = False
        self._backward_has_begun = False

    def begin(self) -> None:
        """Two passes are about to start."""
        self._passes, self._is_awaited, self._backward_has_begun = PASSES, False, False

    def end(self) -> None:
        """One of them has ended; the other goes on alone."""
        with self._changed:
            self._passes -= 1
            self._is_awaited = False
            self._changed.notify_all()

    def meet(self) -> None:
        """Waits until the other pass is here too, or has ended; not at all for a pass alone."""
        with self._changed:
            if self._passes < PASSES:
                return
            if self._is_awaited:
                self._is_awaited = False
                self.meetings += 1
                self._changed.notify_all()
                return
            self._is_awaited, number = True, self.meetings
            self._changed.wait_for(lambda: self.meetings > number or self._passes < PASSES)

    def meet_backward(self) -> None:
        """The same for a backward pass, which does not wait before it first communicates: the forward pass computes first."""
        if self._backward_has_begun:
            self.meet()
        self._backward_has_begun = True

    def mark(self, tensor: Tensor) -> Tensor:
        """The tensor. Both its forward and its backward pass meet the other pass here."""
        marked: Tensor = Meeting.apply(tensor, self)
        return marked


class Meeting(torch.autograd.Function):
    """Changes nothing about a tensor."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, turns: Turns) -> Tensor:
        context.turns = turns
        turns.meet()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        context.turns.meet_backward()
        return gradient, None


def take_turns(layers: Sequence[ExpertLayer]) -> Turns:
    """Lets passes through these layers meet where their tokens travel."""
    turns = Turns()
    for layer in layers:
        assert isinstance(layer.exchange, Exchange), (
            "a rule refuses tensor parallelism beside two passes at once"
        )
        layer.exchange = replace(layer.exchange, mark=turns.mark)
    return turns


def overlap_pairs(schedule: _PipelineScheduleRuntime, turns: Turns) -> None:
    """Makes a schedule run its pairs of passes at once, instead of one after the other."""
    schedule.register_custom_function(OVERLAP_F_B, partial(run_pair, turns))


def run_pair(turns: Turns, action: _Action, context: _PipelineContext) -> None:
    """The forward pass in this thread, the backward pass in another. Raises what either of them raises."""
    assert action.sub_actions is not None
    first, second = action.sub_actions
    schedule: Any = context.schedule_ref
    stages = {stage.stage_index: stage for stage in schedule._stages}
    forward, backward = stages[first.stage_index], stages[second.stage_index]
    for stage in (forward, backward):
        schedule._assert_unsharded(stage)
    await_inputs(schedule, stages, first, second)
    loss = schedule._maybe_get_loss(backward, second.microbatch_index)
    schedule.backward_counter[second.stage_index] += 1
    is_last = schedule.backward_counter[second.stage_index] == schedule._n_microbatches

    def go_backward() -> None:
        # which accelerator is current is known to each thread by itself
        if is_accelerator(backward.device):
            torch.accelerator.set_device_index(backward.device.index)
        try:
            backward.backward_one_chunk(
                second.microbatch_index, loss=loss, full_backward=True, last_backward=is_last
            )
        finally:
            turns.end()

    turns.begin()
    with ThreadPoolExecutor(max_workers=1) as other:
        has_gone = other.submit(go_backward)
        try:
            output = go_forward(forward, first, context)
        finally:
            turns.end()
    has_gone.result()
    hand_on(stages, first, second, output)


def go_forward(stage: Any, action: _Action, context: _PipelineContext) -> Any:
    """The pass of a microbatch through a stage, and its loss after the last one."""
    schedule: Any = context.schedule_ref
    number = action.microbatch_index
    assert context.arg_mbs is not None and context.kwarg_mbs is not None and number is not None
    output = stage.forward_one_chunk(
        number, context.arg_mbs[number], context.kwarg_mbs[number], save_forward_output=False
    )
    schedule._maybe_compute_loss(stage, output, context.target_mbs, number)
    return output


def await_inputs(schedule: Any, stages: dict[int, Any], first: _Action, second: _Action) -> None:
    """Waits for what other ranks send to both passes."""
    if not stages[first.stage_index].is_first and first.stage_index - 1 not in stages:
        _wait_batch_p2p(schedule.fwd_recv_ops.pop((first.stage_index, first.microbatch_index)))
    if not stages[second.stage_index].is_last and second.stage_index + 1 not in stages:
        _wait_batch_p2p(schedule.bwd_recv_ops.pop((second.stage_index, second.microbatch_index)))


def hand_on(stages: dict[int, Any], first: _Action, second: _Action, output: Any) -> None:
    """Gives results to those neighbour stages that are on this rank; what others get, the schedule sends."""
    if first.stage_index + 1 in stages:
        stages[first.stage_index + 1].set_local_fwd_input(output, first.microbatch_index)
    if second.stage_index - 1 in stages:
        before = stages[second.stage_index - 1]
        before.set_local_bwd_input(
            stages[second.stage_index].get_local_bwd_output(second.microbatch_index),
            second.microbatch_index,
        )
