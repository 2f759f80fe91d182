"""Expert parallelism: each rank holds some experts of a layer, and tokens travel to the ranks that hold theirs and back.

Shapes: S slots (one token at one expert), D model width, E experts, R ranks that share the experts, L experts of one rank.
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

from titanrun.distributed.mesh import Meshes
from titanrun.distributed.shards import hush_gathers

EXPERT_DIM = 0

Run = Callable[[Tensor, Tensor], Tensor]


class ExpertLayer(Protocol):
    """A layer that calls `exchange(experts, slots_SD, counts_E)` to run its experts on slots sorted by expert.

    Dim 0 of each weight of `experts` counts experts; `experts.shared_dims` names the dim that ranks split which share an expert, None
    where each of them has the whole.
    """

    experts: Any
    exchange: Any


def spread_experts(layers: Sequence[ExpertLayer], meshes: Meshes) -> None:
    """Splits the experts of each layer over the ranks of the axes ep and etp; a rank alone keeps all of them."""
    mesh = meshes.axes(meshes.sparse, "ep", "etp")
    if mesh is None:
        return
    hush_gathers()
    for layer in layers:
        split_weights(layer.experts, mesh)
        layer.exchange = exchange_over(mesh, meshes)


def exchange_over(mesh: DeviceMesh, meshes: Meshes) -> Callable[[Run, Tensor, Tensor], Tensor]:
    """What brings slots to the experts of the axis ep."""
    exchange = Exchange(mesh.get_group("ep"))
    tensor = meshes.group("tp")
    if tensor is None or meshes.degrees.expert_tensor > 1:
        return exchange
    return DealtExchange(exchange, tensor.rank(), tensor.size())


def split_weights(experts: Any, mesh: DeviceMesh) -> None:
    """Replaces each weight by this rank's experts, and its part of them where several ranks share one."""
    placements: dict[str, list[Placement]] = {}
    for name, weight in list(experts.named_parameters(recurse=False)):
        dims = {"ep": EXPERT_DIM, "etp": experts.shared_dims[name]}
        placements[name] = [
            Replicate() if dims[axis] is None else Shard(dims[axis])
            for axis in mesh.mesh_dim_names or ()
        ]
        split = distribute_tensor(weight.detach(), mesh, placements[name], src_data_rank=None)
        experts.register_parameter(name, nn.Parameter(split, requires_grad=weight.requires_grad))
    tell_gradients(experts, placements)


def tell_gradients(experts: Any, placements: Mapping[str, Sequence[Placement]]) -> None:
    """Tells experts how the gradients of those whole weights lie that are summands on the ranks which share an expert."""
    told = {
        name: placed
        for name, placed in placements.items()
        if name in getattr(experts, "summands", ())
    }
    experts.gradient_placements = {
        name: [Partial() if each.is_replicate() else each for each in placed]
        for name, placed in told.items()
    }


def unmarked(slots_SD: Tensor) -> Tensor:
    """Nothing happens where tokens travel."""
    return slots_SD


@dataclass(frozen=True, slots=True)
class Exchange:
    """Runs experts that the ranks of `group` share. No token is dropped, however many go to one expert.

    Collectives need the sizes of what is sent on the host: each layer waits for the device once. `mark` is called with the tokens
    before and after they travel, either way, and gives them back.
    """

    group: ProcessGroup
    mark: Callable[[Tensor], Tensor] = unmarked

    def __call__(self, experts: Run, slots_SD: Tensor, counts_E: Tensor) -> Tensor:
        """What the experts make of slots sorted by expert, in the same order; `counts_E` to each expert."""
        slots_SD = self.mark(slots_SD)
        sent_RL = counts_E.unflatten(0, (self.group.size(), -1))
        received_RL = all_to_all_single(sent_RL, None, None, self.group)
        sent, received = torch.stack([sent_RL.sum(1), received_RL.sum(1)]).tolist()
        arrived_SD = self.mark(all_to_all_single_autograd(slots_SD, received, sent, self.group))
        order_S = by_expert(received_RL, sum(received))
        out_SD = self.mark(experts(arrived_SD[order_S], received_RL.sum(0))[order_S.argsort()])
        return self.mark(all_to_all_single_autograd(out_SD, sent, received, self.group))


@dataclass(frozen=True, slots=True)
class DealtExchange:
    """An exchange for tensor-parallel ranks, all of which have the same slots: each sends every n-th one.

    What a rank gives is zero for the slots of others; the layer adds the ranks' outputs up anyway.
    """

    exchange: Exchange
    rank: int
    ranks: int

    def __call__(self, experts: Run, slots_SD: Tensor, counts_E: Tensor) -> Tensor:
        """As `Exchange`, of this rank's slots."""
        own_SD = slots_SD[self.rank :: self.ranks].contiguous()
        out_SD = self.exchange(experts, own_SD, dealt(counts_E, self.rank, self.ranks))
        return torch.zeros_like(slots_SD).slice_scatter(out_SD, start=self.rank, step=self.ranks)


def dealt(counts_E: Tensor, rank: int, ranks: int) -> Tensor:
    """Slots of each expert among those that `rank` of `ranks` takes, if slots sorted by expert are dealt out one by one."""
    before_E = (counts_E.cumsum(0) + ranks - 1 - rank) // ranks
    return before_E.diff(prepend=before_E.new_zeros(1))


def by_expert(received_RL: Tensor, slots: int) -> Tensor:
    """The order [S] that sorts slots by expert which arrived by rank, and from each rank by expert."""
    ranks, experts = received_RL.shape
    expert_of_part = torch.arange(experts, device=received_RL.device).repeat(ranks)
    return expert_of_part.repeat_interleave(received_RL.flatten(), output_size=slots).argsort(
        stable=True
    )
