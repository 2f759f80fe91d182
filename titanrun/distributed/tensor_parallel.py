"""Tensor parallelism: ranks split each matrix (https://arxiv.org/abs/1909.08053), by a plan that a model family gives as data.

Between the matrices lies the residual stream. With sequence parallelism (https://arxiv.org/abs/2205.05198) each rank holds a piece of
every row of it, and norms work on pieces; without it, each rank holds the whole.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from titanrun.distributed.expert_parallel import tell_gradients
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.shards import hush_gathers, is_split


class Role(Enum):
    """What a module does for tensor parallelism, and so how its weights are split and what passes in and out of it."""

    EMBEDDING = auto()
    """Rows of the vocabulary; from token ids to the stream."""
    STREAM_NORM = auto()
    """Whole weights; from stream to stream."""
    SUMMAND_NORM = auto()
    """Whole weights; normalises what is added to the stream then."""
    READS_STREAM = auto()
    """What it is called with is gathered from the stream once, for all the matrices in it; weights of its own, beside these, have a
    number for each attention head, and each rank has those of its heads."""
    COLUMNS = auto()
    """Linear, split over its outputs."""
    ROWS = auto()
    """Linear, split over its inputs; into the stream."""
    STREAM_ROWS = auto()
    """Linear, split over its inputs, which are as the stream is; into the stream."""
    HEAD_NORM = auto()
    """Whole weights; normalises each attention head [B, T, N, H] on the rank that has it."""
    OUTPUT = auto()
    """Linear, split over the vocabulary; from the stream to logits."""
    EXPERTS_LAYER = auto()
    """Mixture of experts: from stream to stream. Within it each rank computes a summand, of values as well as of gradients."""
    SUMMAND_WHOLE = auto()
    """Whole weights; its inputs and outputs are whole, and their gradients on each rank a summand: a router, and what makes or normalises
    a vector that attention heads share."""
    SUMMAND_COLUMNS = auto()
    """Linear, split over its outputs, where the gradients of whole inputs are summands."""
    SUMMAND_ROWS = auto()
    """Linear within a mixture of experts, split over its inputs."""
    EXPERTS = auto()
    """Stacked matrices, each split along the dim that `shared_dims` of the module names, the hidden width of each expert; whole where it
    names none."""


Plan = Mapping[str, Role]
"""Roles by module name; `*` is any one step of it. Lines that name no module are for a family's other models."""


# the matrices of a low-rank adapter: into its rank, and out of it
ADAPTER = ("lora_a", "lora_b")
SPLIT_BEHIND, SPLIT_BEFORE, WHOLE = (
    dict(zip(ADAPTER, placements, strict=True))
    for placements in ((Replicate(), Shard(0)), (Shard(1), Replicate()), (Replicate(), Replicate()))
)
ADAPTERS: Mapping[Role, Mapping[str, Placement]] = {
    Role.COLUMNS: SPLIT_BEHIND,
    Role.OUTPUT: SPLIT_BEHIND,
    Role.SUMMAND_COLUMNS: SPLIT_BEHIND,
    Role.ROWS: SPLIT_BEFORE,
    Role.STREAM_ROWS: SPLIT_BEFORE,
    Role.SUMMAND_ROWS: SPLIT_BEFORE,
    Role.SUMMAND_WHOLE: WHOLE,
}
"""How the matrices of an adapter are split beside those of a module: each along the width that the module's ranks have parts of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """How the ranks divide what lies between the matrices.

    Args:
        sequence: whether each rank holds a piece of each row of the stream, instead of all of it.
        vocabulary: whether each rank keeps its part of the logits, instead of all of them.
    """

    sequence: bool = True
    vocabulary: bool = True


def split_matrices(model: nn.Module, plan: Plan, how: TensorParallel, meshes: Meshes) -> None:
    """Splits a model on the meta device over the tensor-parallel ranks, as its family plans; leaves it alone where there are none."""
    mesh = meshes.axes(meshes.dense, "tp")
    if mesh is None:
        return
    hush()
    shared = shared_weights(model)
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    styles = styles_of(how)
    for name, module in model.named_modules():
        line = line_for(name, plan)
        if line is not None:
            role = plan[line]
            apart = take_adapter(module)
            parallelize_module(module, mesh, styles[role])
            for adapter, weight in apart.items():
                module.register_parameter(adapter, weight)
            place_weights(module, mesh, {adapter: ADAPTERS[role][adapter] for adapter in apart})
    for name in frozen:
        # some of torch's styles make what they split trained again
        model.get_parameter(name).requires_grad_(False)
    share_again(model, shared)
    forgotten = [name for name, weight in model.named_parameters() if not is_split(weight)]
    assert not forgotten, f"the family's plan says nothing of {', '.join(forgotten)}"


def take_adapter(module: nn.Module) -> dict[str, nn.Parameter]:
    """The matrices of a low-rank adapter, which the module lacks from here on: they are not split as its own are."""
    own = dict(module.named_parameters(recurse=False))
    found = {name: own[name] for name in ADAPTER if name in own}
    for name in found:
        delattr(module, name)
    return found


def hush() -> None:
    """Keeps torch from warning of what is so on purpose."""
    # the embedding gives this rank's part of the stream, which nobody changes in place
    warnings.filterwarnings(
        "ignore", message=r"FSDP2-wrapped module \(FSDPEmbedding\) returned a view tensor"
    )
    hush_gathers()


def line_for(name: str, plan: Plan) -> str | None:
    """The plan's line for the module `name`; None where it has none."""
    steps = name.split(".")
    for line in plan:
        wanted = line.split(".")
        if len(wanted) == len(steps) and all(map(fnmatchcase, steps, wanted)):
            return line
    return None


def styles_of(how: TensorParallel) -> dict[Role, ParallelStyle]:
    """What is done to a module of each role."""
    stream = Shard(1) if how.sequence else Replicate()
    return {
        Role.EMBEDDING: AwaitedRows(input_layouts=Replicate(), output_layouts=stream),
        Role.STREAM_NORM: SequenceParallel() if how.sequence else Placed(Replicate()),
        Role.SUMMAND_NORM: SequenceParallel(use_local_output=True)
        if how.sequence
        else Placed(Replicate()),
        Role.READS_STREAM: ReadsStream(stream),
        Role.COLUMNS: ColwiseParallel(),
        Role.ROWS: RowwiseParallel(output_layouts=stream),
        Role.STREAM_ROWS: RowwiseParallel(input_layouts=stream, output_layouts=stream),
        Role.HEAD_NORM: SequenceParallel(sequence_dim=2, use_local_output=True),
        Role.OUTPUT: Vocabulary(
            input_layouts=stream,
            output_layouts=Shard(-1) if how.vocabulary else Replicate(),
            use_local_output=not how.vocabulary,
        ),
        Role.EXPERTS_LAYER: SumsUp(stream),
        Role.SUMMAND_WHOLE: Placed(Replicate(), gradients=Partial()),
        Role.SUMMAND_COLUMNS: Placed(Shard(0), gradients=Partial()),
        Role.SUMMAND_ROWS: Placed(Shard(1)),
        Role.EXPERTS: SplitExperts(),
    }


class AwaitedRows(RowwiseParallel):
    """As torch's, but what it gives is there. The first layer needs it at once, and torch's compiler loses the gradient of a view of
    what is still under way."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: tuple[Placement, ...],
        use_local_output: bool,
        mod: nn.Module,
        outputs: DTensor,
        device_mesh: DeviceMesh,
    ) -> Tensor:
        outputs = outputs.redistribute(placements=output_layouts)
        return outputs.to_local() if use_local_output else outputs


class Vocabulary(ColwiseParallel):
    """As torch's, but a loss that the head gives in place of logits is left alone."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: tuple[Placement, ...],
        use_local_output: bool,
        mod: nn.Module,
        outputs: Tensor,
        device_mesh: DeviceMesh,
    ) -> Tensor:
        if not is_split(outputs):
            return outputs
        prepared: Tensor = ColwiseParallel._prepare_output_fn(
            output_layouts, use_local_output, mod, outputs, device_mesh
        )
        return prepared


class ReadsStream(ParallelStyle):
    """Gathers the first argument of a module from the stream; what the module gives is left to its parts. Its own weights are split."""

    def __init__(self, stream: Placement) -> None:
        self.stream = stream

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            return gathered_stream(arguments[0], device_mesh, self.stream), *arguments[1:]

        place_weights(
            module,
            device_mesh,
            {name: Shard(0) for name, _ in module.named_parameters(recurse=False)},
        )
        module.register_forward_pre_hook(gather)
        return module


class SumsUp(ParallelStyle):
    """Gathers the first argument from the stream, as a plain tensor, and adds up into the stream what the ranks make of it."""

    def __init__(self, stream: Placement) -> None:
        self.stream = stream

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            # its parts are compiled one by one, and read views of it: as in AwaitedRows
            whole = gathered_stream(arguments[0], device_mesh, self.stream, wait=True)
            # each rank's gradient is of its own summand
            return whole.to_local(grad_placements=[Partial()]), *arguments[1:]

        def add_up(_: nn.Module, __: tuple[Any, ...], summand: Tensor) -> Tensor:
            total = DTensor.from_local(summand, device_mesh, [Partial()], run_check=False)
            return total.redistribute(placements=[self.stream]).to_local()

        module.register_forward_pre_hook(gather)
        module.register_forward_hook(add_up)
        return module


class Placed(ParallelStyle):
    """A module whose weights are split along one dimension or whole, from plain tensors, or the gathered stream, to plain tensors.

    Args:
        weight: how the weights are placed.
        gradients: Partial where the gradients of the ranks' inputs and whole outputs are summands.
    """

    def __init__(self, weight: Placement, *, gradients: Placement | None = None) -> None:
        self.weight = weight
        self.gradients = Replicate() if gradients is None else gradients

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        place_weights(
            module, device_mesh, {name: self.weight for name, _ in module.named_parameters()}
        )
        reads_parts = self.weight.is_shard(1)

        def wrap(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            if isinstance(arguments[0], DTensor):  # what reads the stream is placed already
                return arguments
            placed = Shard(arguments[0].ndim - 1) if reads_parts else Replicate()
            grads = [placed if reads_parts else self.gradients]
            return DTensor.from_local(
                arguments[0], device_mesh, [placed], run_check=False, grad_placements=grads
            ), *arguments[1:]

        def unwrap(_: nn.Module, __: tuple[Any, ...], output: DTensor) -> Tensor:
            return output.to_local(
                grad_placements=[self.gradients] if output.placements[0].is_replicate() else None
            )

        module.register_forward_pre_hook(wrap)
        module.register_forward_hook(unwrap)
        return module


class SplitExperts(ParallelStyle):
    """Splits the stacked matrices of experts, whose module multiplies by its rank's parts; those that expert parallelism split stay."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dims: Any = module.shared_dims
        whole = {name for name, weight in module.named_parameters() if not is_split(weight)}
        placements = {
            name: Replicate() if dim is None else Shard(dim)
            for name, dim in dims.items()
            if name in whole
        }
        place_weights(module, device_mesh, placements)
        if whole:
            tell_gradients(module, {name: [placed] for name, placed in placements.items()})
        return module


def gathered_stream(
    stream: Tensor, mesh: DeviceMesh, placed: Placement, *, wait: bool = False
) -> DTensor:
    """The whole of the stream on each rank, as a DTensor whose gradients may be summands; it may still be under way unless `wait`."""
    if not isinstance(stream, DTensor):
        stream = DTensor.from_local(stream, mesh, [placed], run_check=False)
    return stream.redistribute(placements=[Replicate()], async_op=not wait)


def place_weights(module: nn.Module, mesh: DeviceMesh, placements: Mapping[str, Placement]) -> None:
    """Splits the named parameters of a module."""
    for name, placement in placements.items():
        weight = module.get_parameter(name)
        split = distribute_tensor(weight, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, requires_grad=weight.requires_grad))


def shared_weights(model: nn.Module) -> list[list[str]]:
    """The names of each parameter that several modules use."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def share_again(model: nn.Module, shared: list[list[str]]) -> None:
    """Lets modules use one parameter again, which each of them split for itself in the same way."""
    for first, *others in shared:
        weight = model.get_parameter(first)
        for name in others:
            owner, _, attribute = name.rpartition(".")
            model.get_submodule(owner).register_parameter(attribute, weight)
