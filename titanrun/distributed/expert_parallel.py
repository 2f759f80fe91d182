"""Expert parallelism: ranks split the experts of a layer and exchange tokens.

Shapes: S slots (one token at one expert), D model width, E experts, R ranks that share the experts,
L experts of one rank.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor

from titanrun.distributed.dtensor import silence_gather_warnings
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.row_permutation import invert_permutation, permute_rows

EXPERT_DIM = 0

RunExpertsFn = Callable[[Tensor, Tensor], Tensor]


class ExpertLayer(Protocol):
    """Layer that runs its experts by `token_dispatcher(experts, slots_SD, counts_E)`.

    Slots are sorted by expert. Dim 0 of each weight of `experts` counts experts. `experts.etp_dims`
    names the dim that ranks split which share an expert, None if each of them has the whole weight.
    """

    experts: Any
    token_dispatcher: Any


def apply_expert_parallel(layers: Sequence[ExpertLayer], meshes: ParallelMeshes) -> None:
    """Split the experts of each layer over the axes ep and etp.

    A single rank keeps all of them.
    """
    mesh = meshes.get_submesh(meshes.sparse_mesh, "ep", "etp")
    if mesh is None:
        return
    silence_gather_warnings()
    for layer in layers:
        shard_expert_weights(layer.experts, mesh)
        layer.token_dispatcher = build_token_dispatcher(mesh, meshes)


def build_token_dispatcher(
    mesh: DeviceMesh, meshes: ParallelMeshes
) -> Callable[[RunExpertsFn, Tensor, Tensor], Tensor]:
    """Return the dispatcher that sends slots to the experts of the axis ep."""
    exchange = TokenDispatcher(mesh.get_group("ep"))
    tensor = meshes.get_group("tp")
    if tensor is None or meshes.parallel_dims.etp > 1:
        return exchange
    return TPTokenDispatcher(exchange, tensor.rank(), tensor.size())


def shard_expert_weights(experts: Any, mesh: DeviceMesh) -> None:
    """Replace each weight by this rank's experts, split further over the axis etp."""
    placements: dict[str, list[Placement]] = {}
    for name, weight in list(experts.named_parameters(recurse=False)):
        dims = {"ep": EXPERT_DIM, "etp": experts.etp_dims[name]}
        placements[name] = [
            Replicate() if dims[axis] is None else Shard(dims[axis])
            for axis in mesh.mesh_dim_names or ()
        ]
        split = distribute_tensor(weight.detach(), mesh, placements[name], src_data_rank=None)
        experts.register_parameter(name, nn.Parameter(split, requires_grad=weight.requires_grad))
    set_expert_grad_placements(experts, placements)


def set_expert_grad_placements(experts: Any, placements: Mapping[str, Sequence[Placement]]) -> None:
    """Record the placements of weight gradients that are partial sums on the etp ranks.

    This concerns replicated weights of `partial_grad_names` only.
    """
    partial = {
        name: placed
        for name, placed in placements.items()
        if name in getattr(experts, "partial_grad_names", ())
    }
    experts.gradient_placements = {
        name: [Partial() if each.is_replicate() else each for each in placed]
        for name, placed in partial.items()
    }


def insert_no_barrier(slots_SD: Tensor) -> Tensor:
    """Return the slots unchanged."""
    return slots_SD


@dataclass(frozen=True, slots=True)
class TokenDispatcher:
    """Runner of experts that the ranks of `group` share. No token is dropped.

    Collectives need the sizes of the messages on the host: each layer waits for the device once.
    `insert_barrier` is called with the tokens before and after each exchange, in both directions,
    and returns them.
    """

    group: ProcessGroup
    insert_barrier: Callable[[Tensor], Tensor] = insert_no_barrier

    def __call__(self, experts: RunExpertsFn, slots_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Return the outputs [S, D] of the experts for slots sorted by expert, in the same order.

        `counts_E` are the slots of each expert. Collective over `group`: all ranks must call this.
        """
        slots_SD = self.insert_barrier(slots_SD)
        sent_RL = counts_E.unflatten(0, (self.group.size(), -1))
        received_RL = all_to_all_single(sent_RL, None, None, self.group)
        sent, received = torch.stack([sent_RL.sum(1), received_RL.sum(1)]).tolist()
        arrived_SD = self.insert_barrier(
            all_to_all_single_autograd(slots_SD, received, sent, self.group)
        )
        order_S = argsort_by_expert(received_RL, sum(received))
        inverse_S = invert_permutation(order_S)
        sorted_SD = permute_rows(arrived_SD, order_S, inverse_S)
        out_SD = experts(sorted_SD, received_RL.sum(0))
        out_SD = self.insert_barrier(permute_rows(out_SD, inverse_S, order_S))
        return self.insert_barrier(all_to_all_single_autograd(out_SD, sent, received, self.group))


@dataclass(frozen=True, slots=True)
class TPTokenDispatcher:
    """Token dispatcher of tensor-parallel ranks with equal slots: each sends every n-th one.

    The output of a rank is zero for the slots of other ranks. The layer sums the outputs of all
    ranks later.
    """

    dispatcher: TokenDispatcher
    tp_rank: int
    tp_size: int

    def __call__(self, experts: RunExpertsFn, slots_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Return the outputs [S, D] for this rank's slots, and zero for all others."""
        own_SD = slots_SD[self.tp_rank :: self.tp_size].contiguous()
        out_SD = self.dispatcher(
            experts, own_SD, split_slots_over_tp(counts_E, self.tp_rank, self.tp_size)
        )
        return torch.zeros_like(slots_SD).slice_scatter(
            out_SD, start=self.tp_rank, step=self.tp_size
        )


def split_slots_over_tp(counts_E: Tensor, tp_rank: int, tp_size: int) -> Tensor:
    """Count the slots of each expert [E] among those of one tensor-parallel rank.

    The slots, sorted by expert, are distributed one by one.
    """
    before_E = (counts_E.cumsum(0) + tp_size - 1 - tp_rank) // tp_size
    return before_E.diff(prepend=before_E.new_zeros(1))


def argsort_by_expert(received_RL: Tensor, num_slots: int) -> Tensor:
    """Return the order [S] that sorts received slots by expert.

    Slots arrive ordered by rank, and within each rank by expert.
    """
    ranks, experts = received_RL.shape
    expert_of_part = torch.arange(experts, device=received_RL.device).repeat(ranks)
    return expert_of_part.repeat_interleave(received_RL.flatten(), output_size=num_slots).argsort(
        stable=True
    )
