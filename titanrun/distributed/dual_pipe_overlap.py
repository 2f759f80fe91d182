"""Overlap of two pipeline passes: one computes while the other exchanges tokens.

The method is described in https://arxiv.org/abs/2412.19437, section 3.2.1. The pipeline schedule
DualPipeV pairs the forward pass of a microbatch through one stage with the backward pass of another
through the other stage of the rank. Each runs in its own thread.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any

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
from titanrun.distributed.expert_parallel import ExpertLayer, TokenDispatcher

NUM_PASSES = 2


class OverlapBarrier:
    """Barrier of two passes: each waits for the other before and after it exchanges tokens.

    The barrier ends when one of the passes has ended. In a layer, a forward pass computes, sends
    tokens, computes, and gets them back. A backward pass begins with a gradient that it sends. So
    at any time one of them computes while the other communicates, and the ranks, whose threads are
    not equally fast, all communicate in the same order.
    """

    def __init__(self) -> None:
        self.num_syncs = 0
        self._changed = Condition()
        self._passes = 0
        self._is_awaited = False
        self._backward_has_begun = False

    def start_pair(self) -> None:
        """Prepare for a new pair of passes."""
        self._passes, self._is_awaited, self._backward_has_begun = NUM_PASSES, False, False

    def finish_pass(self) -> None:
        """Mark one of the passes as ended. The other continues alone."""
        with self._changed:
            self._passes -= 1
            self._is_awaited = False
            self._changed.notify_all()

    def wait_for_peer(self) -> None:
        """Wait until the other pass is here too or has ended. A pass alone does not wait."""
        with self._changed:
            if self._passes < NUM_PASSES:
                return
            if self._is_awaited:
                self._is_awaited = False
                self.num_syncs += 1
                self._changed.notify_all()
                return
            self._is_awaited, number = True, self.num_syncs
            self._changed.wait_for(lambda: self.num_syncs > number or self._passes < NUM_PASSES)

    def wait_for_peer_in_backward(self) -> None:
        """Wait like `wait_for_peer`, but not before the first communication of a backward pass.

        The forward pass computes first.
        """
        if self._backward_has_begun:
            self.wait_for_peer()
        self._backward_has_begun = True

    def insert_barrier(self, tensor: Tensor) -> Tensor:
        """Return the tensor. Its forward and its backward pass wait for the other pass here."""
        return BarrierFunction.apply(tensor, self)


class BarrierFunction(torch.autograd.Function):
    """Identity function that waits for the other pass, forward and backward."""

    if TYPE_CHECKING:

        @staticmethod
        def apply(tensor: Tensor, turns: OverlapBarrier) -> Tensor:
            """Return the tensor after waiting for the other pass."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, turns: OverlapBarrier) -> Tensor:
        """Wait for the other pass and return a view of the tensor."""
        context.turns = turns
        turns.wait_for_peer()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Wait for the other pass and return the gradient."""
        context.turns.wait_for_peer_in_backward()
        return gradient, None


def install_barriers(layers: Sequence[ExpertLayer]) -> OverlapBarrier:
    """Make passes through these layers wait for each other at the token exchange."""
    turns = OverlapBarrier()
    for layer in layers:
        assert isinstance(layer.token_dispatcher, TokenDispatcher), (
            "a rule rejects tensor parallelism with overlapped passes"
        )
        layer.token_dispatcher = replace(
            layer.token_dispatcher, insert_barrier=turns.insert_barrier
        )
    return turns


def enable_pass_overlap(schedule: _PipelineScheduleRuntime, barrier: OverlapBarrier) -> None:
    """Make a schedule run its pairs of passes concurrently."""
    schedule.register_custom_function(OVERLAP_F_B, partial(run_overlapped_pair, barrier))


def run_overlapped_pair(
    barrier: OverlapBarrier, action: _Action, context: _PipelineContext
) -> None:
    """Run the forward pass in this thread and the backward pass in another.

    An exception of either pass is raised.
    """
    assert action.sub_actions is not None
    first, second = action.sub_actions
    schedule: Any = context.schedule_ref
    stages = {stage.stage_index: stage for stage in schedule._stages}
    forward, backward = stages[first.stage_index], stages[second.stage_index]
    for stage in (forward, backward):
        schedule._assert_unsharded(stage)
    wait_for_inputs(schedule, stages, first, second)
    loss = schedule._maybe_get_loss(backward, second.microbatch_index)
    schedule.backward_counter[second.stage_index] += 1
    is_last = schedule.backward_counter[second.stage_index] == schedule._n_microbatches

    def go_backward() -> None:
        # the current accelerator is a setting of each thread
        if is_accelerator(backward.device):
            torch.accelerator.set_device_index(backward.device.index)
        try:
            backward.backward_one_chunk(
                second.microbatch_index, loss=loss, full_backward=True, last_backward=is_last
            )
        finally:
            barrier.finish_pass()

    barrier.start_pair()
    with ThreadPoolExecutor(max_workers=1) as other:
        has_gone = other.submit(go_backward)
        try:
            output = run_forward_pass(forward, first, context)
        finally:
            barrier.finish_pass()
    has_gone.result()
    send_to_local_stages(stages, first, second, output)


def run_forward_pass(stage: Any, action: _Action, context: _PipelineContext) -> Any:
    """Run a microbatch through a stage and return the output. The last stage adds its loss."""
    schedule: Any = context.schedule_ref
    number = action.microbatch_index
    assert context.arg_mbs is not None and context.kwarg_mbs is not None and number is not None
    output = stage.forward_one_chunk(
        number, context.arg_mbs[number], context.kwarg_mbs[number], save_forward_output=False
    )
    schedule._maybe_compute_loss(stage, output, context.target_mbs, number)
    return output


def wait_for_inputs(schedule: Any, stages: dict[int, Any], first: _Action, second: _Action) -> None:
    """Wait for the inputs of both passes from other ranks."""
    if not stages[first.stage_index].is_first and first.stage_index - 1 not in stages:
        _wait_batch_p2p(schedule.fwd_recv_ops.pop((first.stage_index, first.microbatch_index)))
    if not stages[second.stage_index].is_last and second.stage_index + 1 not in stages:
        _wait_batch_p2p(schedule.bwd_recv_ops.pop((second.stage_index, second.microbatch_index)))


def send_to_local_stages(
    stages: dict[int, Any], first: _Action, second: _Action, output: Any
) -> None:
    """Pass results to neighbor stages on this rank. The schedule sends those for other ranks."""
    if first.stage_index + 1 in stages:
        stages[first.stage_index + 1].set_local_fwd_input(output, first.microbatch_index)
    if second.stage_index - 1 in stages:
        before = stages[second.stage_index - 1]
        before.set_local_bwd_input(
            stages[second.stage_index].get_local_bwd_output(second.microbatch_index),
            second.microbatch_index,
        )
