"""Tensor parallelism: ranks split each matrix, by a plan that the model family defines.

The method is described in https://arxiv.org/abs/1909.08053. Between the matrices is the residual
stream. With sequence parallelism (https://arxiv.org/abs/2205.05198) each rank holds a part of every
sequence of it, and norms work on parts. Without it, each rank holds the whole stream.
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

from titanrun.distributed.dtensor import is_sharded, silence_gather_warnings
from titanrun.distributed.expert_parallel import set_expert_grad_placements
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.torch_versions import select_from_local


class TPRole(Enum):
    """Role of a module in tensor parallelism, which defines how weights and activations split."""

    EMBEDDING = auto()
    """Split over the vocabulary. From token ids to the stream."""
    RESIDUAL_NORM = auto()
    """Whole weights. From stream to stream."""
    POST_NORM = auto()
    """Whole weights. Normalizes an output that is then added to the stream."""
    GATHER_INPUT = auto()
    """Gathers its input from the stream once for all its matrices. Its other weights have one
    element per attention head, and each rank holds those of its heads.
    """
    COLWISE = auto()
    """Linear, split over its outputs."""
    ROWWISE = auto()
    """Linear, split over its inputs. Output into the stream."""
    RESIDUAL_ROWWISE = auto()
    """Linear, split over its inputs, which are laid out as the stream. Output into the stream."""
    QK_NORM = auto()
    """Whole weights. Normalizes each attention head [B, T, N, H] on the rank that holds it."""
    OUTPUT = auto()
    """Linear, split over the vocabulary. From the stream to logits."""
    MOE_LAYER = auto()
    """Mixture of experts from stream to stream, with partial sums of values and gradients."""
    REPLICATED_PARTIAL_GRAD = auto()
    """Whole weights, inputs and outputs whose gradients are partial sums: routers, and projections
    or norms of a vector that attention heads share.
    """
    COLWISE_PARTIAL_GRAD = auto()
    """Linear, split over its outputs, with whole inputs whose gradients are partial sums."""
    ROWWISE_PARTIAL_OUTPUT = auto()
    """Linear within a mixture of experts, split over its inputs."""
    EXPERTS = auto()
    """Stacked matrices, split along the dims in `etp_dims` of the module, the hidden width of each
    expert. Whole if the dim is None.
    """


TPPlan = Mapping[str, TPRole]
"""Roles by module name, in which `*` matches any one component.

Patterns that match no module are for other models of the family.
"""


# parameters of a low-rank adapter: down to its rank, up from it, and norms of output rows
ADAPTER_NAMES = ("lora_a", "lora_b", "lora_magnitude")
COLWISE_ADAPTER = dict(zip(ADAPTER_NAMES, (Replicate(), Shard(0), Shard(0)), strict=True))
ROWWISE_ADAPTER = dict(zip(ADAPTER_NAMES, (Shard(1), Replicate(), Replicate()), strict=True))
REPLICATED_ADAPTER = dict.fromkeys(ADAPTER_NAMES, Replicate())
ADAPTER_PLACEMENTS: Mapping[TPRole, Mapping[str, Placement]] = {
    TPRole.COLWISE: COLWISE_ADAPTER,
    TPRole.OUTPUT: COLWISE_ADAPTER,
    TPRole.COLWISE_PARTIAL_GRAD: COLWISE_ADAPTER,
    TPRole.ROWWISE: ROWWISE_ADAPTER,
    TPRole.RESIDUAL_ROWWISE: ROWWISE_ADAPTER,
    TPRole.ROWWISE_PARTIAL_OUTPUT: ROWWISE_ADAPTER,
    TPRole.REPLICATED_PARTIAL_GRAD: REPLICATED_ADAPTER,
}
"""Placements of an adapter's parameters, split along the same dim as the module's matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelOptions:
    """Layout of activations between the matrices.

    Args:
        uses_sequence_parallel: whether each rank holds a part of each sequence of the stream,
            instead of all of it.
        uses_loss_parallel: whether each rank keeps its part of the logits, instead of all of them.
    """

    uses_sequence_parallel: bool = True
    uses_loss_parallel: bool = True


def apply_tensor_parallel(
    model: nn.Module, plan: TPPlan, options: TensorParallelOptions, meshes: ParallelMeshes
) -> None:
    """Split a meta model over the tensor-parallel ranks by the plan of its family.

    Without tensor-parallel ranks the model is unchanged.
    """
    mesh = meshes.get_submesh(meshes.dense_mesh, "tp")
    if mesh is None:
        return
    silence_tp_warnings()
    shared = get_shared_weight_names(model)
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    styles = build_parallel_styles(options)
    for name, module in model.named_modules():
        line = find_plan_pattern(name, plan)
        if line is not None:
            role = plan[line]
            apart = pop_adapter_weights(module)
            parallelize_module(module, mesh, styles[role])
            for adapter, weight in apart.items():
                module.register_parameter(adapter, weight)
            distribute_weights(
                module, mesh, {adapter: ADAPTER_PLACEMENTS[role][adapter] for adapter in apart}
            )
    for name in frozen:
        # some of torch's styles set requires_grad on the weights that they split
        model.get_parameter(name).requires_grad_(False)
    share_weights_again(model, shared)
    forgotten = [name for name, weight in model.named_parameters() if not is_sharded(weight)]
    assert not forgotten, (
        f"the family's tensor-parallel plan does not contain {', '.join(forgotten)}"
    )


def pop_adapter_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Remove and return the parameters of a low-rank adapter.

    They are split differently from the module's own weights.
    """
    own = dict(module.named_parameters(recurse=False))
    found = {name: own[name] for name in ADAPTER_NAMES if name in own}
    for name in found:
        delattr(module, name)
    return found


def silence_tp_warnings() -> None:
    """Silence torch's warnings about intended behavior."""
    # the embedding returns this rank's part of the stream, which is never changed in place
    warnings.filterwarnings(
        "ignore", message=r"FSDP2-wrapped module \(FSDPEmbedding\) returned a view tensor"
    )
    silence_gather_warnings()


def find_plan_pattern(name: str, plan: TPPlan) -> str | None:
    """Return the plan's pattern that matches the module `name`, or None."""
    steps = name.split(".")
    for line in plan:
        wanted = line.split(".")
        if len(wanted) == len(steps) and all(map(fnmatchcase, steps, wanted)):
            return line
    return None


def build_parallel_styles(options: TensorParallelOptions) -> dict[TPRole, ParallelStyle]:
    """Build the parallel style of each role."""
    stream = Shard(1) if options.uses_sequence_parallel else Replicate()
    return {
        TPRole.EMBEDDING: SyncRowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        TPRole.RESIDUAL_NORM: SequenceParallel()
        if options.uses_sequence_parallel
        else PlainWeights(Replicate()),
        TPRole.POST_NORM: SequenceParallel(use_local_output=True)
        if options.uses_sequence_parallel
        else PlainWeights(Replicate()),
        TPRole.GATHER_INPUT: GatherInput(stream),
        TPRole.COLWISE: ColwiseParallel(),
        TPRole.ROWWISE: RowwiseParallel(output_layouts=stream),
        TPRole.RESIDUAL_ROWWISE: RowwiseParallel(input_layouts=stream, output_layouts=stream),
        TPRole.QK_NORM: SequenceParallel(sequence_dim=2, use_local_output=True),
        TPRole.OUTPUT: VocabColwiseParallel(
            input_layouts=stream,
            output_layouts=Shard(-1) if options.uses_loss_parallel else Replicate(),
            use_local_output=not options.uses_loss_parallel,
        ),
        TPRole.MOE_LAYER: GatherInputReduceOutput(stream),
        TPRole.REPLICATED_PARTIAL_GRAD: PlainWeights(Replicate(), grad_placement=Partial()),
        TPRole.COLWISE_PARTIAL_GRAD: PlainWeights(Shard(0), grad_placement=Partial()),
        TPRole.ROWWISE_PARTIAL_OUTPUT: PlainWeights(Shard(1)),
        TPRole.EXPERTS: ExpertTensorParallel(),
    }


class SyncRowwiseParallel(RowwiseParallel):
    """RowwiseParallel whose output is complete when it returns, which the first layer needs.

    torch's compiler loses the gradient of a view of an asynchronous result.
    """

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


class VocabColwiseParallel(ColwiseParallel):
    """ColwiseParallel that passes on a loss which the head returns instead of logits."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: tuple[Placement, ...],
        use_local_output: bool,
        mod: nn.Module,
        outputs: Tensor,
        device_mesh: DeviceMesh,
    ) -> Tensor:
        if not is_sharded(outputs):
            return outputs
        prepared: Tensor = ColwiseParallel._prepare_output_fn(
            output_layouts, use_local_output, mod, outputs, device_mesh
        )
        return prepared


class GatherInput(ParallelStyle):
    """Style that gathers a module's first argument from the stream and splits its weights.

    The module's children determine the placement of its output.
    """

    def __init__(self, stream: Placement) -> None:
        self.stream = stream

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            return gather_stream(arguments[0], device_mesh, self.stream), *arguments[1:]

        distribute_weights(
            module,
            device_mesh,
            {name: Shard(0) for name, _ in module.named_parameters(recurse=False)},
        )
        module.register_forward_pre_hook(gather)
        return module


class GatherInputReduceOutput(ParallelStyle):
    """Style that gathers the first argument from the stream and sums the ranks' outputs.

    The argument becomes a plain tensor. The sum has the layout of the stream.
    """

    def __init__(self, stream: Placement) -> None:
        self.stream = stream

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            # its parts are compiled one by one and read views of it: as in SyncRowwiseParallel
            whole = gather_stream(arguments[0], device_mesh, self.stream, wait=True)
            # each rank's gradient is a partial sum
            return whole.to_local(grad_placements=[Partial()]), *arguments[1:]

        def add_up(_: nn.Module, __: tuple[Any, ...], summand: Tensor) -> Tensor:
            total = DTensor.from_local(summand, device_mesh, [Partial()], run_check=False)
            return total.redistribute(placements=[self.stream]).to_local()

        module.register_forward_pre_hook(gather)
        module.register_forward_hook(add_up)
        return module


class PlainWeights(ParallelStyle):
    """Style of a module with weights that are whole or split along one dim.

    Its input is a plain tensor, or the gathered stream. Its output is a plain tensor.

    Args:
        weight_placement: placement of the weights.
        grad_placement: Partial if the gradients of the inputs and of whole outputs are partial
            sums.
    """

    def __init__(
        self, weight_placement: Placement, *, grad_placement: Placement | None = None
    ) -> None:
        self.weight_placement = weight_placement
        self.grad_placement = Replicate() if grad_placement is None else grad_placement

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        distribute_weights(
            module,
            device_mesh,
            {name: self.weight_placement for name, _ in module.named_parameters()},
        )
        reads_parts = self.weight_placement.is_shard(1)
        from_local = select_from_local()

        def wrap(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            if isinstance(arguments[0], DTensor):  # the gathered stream is a DTensor already
                return arguments
            placed = Shard(arguments[0].ndim - 1) if reads_parts else Replicate()
            grads = [placed if reads_parts else self.grad_placement]
            whole = from_local(arguments[0], device_mesh, [placed], grad_placements=grads)
            return whole, *arguments[1:]

        def unwrap(_: nn.Module, __: tuple[Any, ...], output: DTensor) -> Tensor:
            return output.to_local(
                grad_placements=[self.grad_placement]
                if output.placements[0].is_replicate()
                else None
            )

        module.register_forward_pre_hook(wrap)
        module.register_forward_hook(unwrap)
        return module


class ExpertTensorParallel(ParallelStyle):
    """Style that splits the stacked matrices of experts, whose module computes with its part.

    Matrices that expert parallelism has split are unchanged.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dims: Any = module.etp_dims
        whole = {name for name, weight in module.named_parameters() if not is_sharded(weight)}
        placements = {
            name: Replicate() if dim is None else Shard(dim)
            for name, dim in dims.items()
            if name in whole
        }
        distribute_weights(module, device_mesh, placements)
        if whole:
            set_expert_grad_placements(
                module, {name: [placed] for name, placed in placements.items()}
            )
        return module


def gather_stream(
    stream: Tensor, mesh: DeviceMesh, placement: Placement, *, wait: bool = False
) -> DTensor:
    """All-gather the stream as a DTensor whose gradients may be partial sums.

    The result may be asynchronous unless `wait` is set. Collective over tp.
    """
    if not isinstance(stream, DTensor):
        stream = DTensor.from_local(stream, mesh, [placement], run_check=False)
    return stream.redistribute(placements=[Replicate()], async_op=not wait)


def distribute_weights(
    module: nn.Module, mesh: DeviceMesh, placements: Mapping[str, Placement]
) -> None:
    """Split the named parameters of a module."""
    for name, placement in placements.items():
        weight = module.get_parameter(name)
        split = distribute_tensor(weight, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, requires_grad=weight.requires_grad))


def get_shared_weight_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that several modules share."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def share_weights_again(model: nn.Module, shared: list[list[str]]) -> None:
    """Make modules share one parameter again after each was split in the same way."""
    for first, *others in shared:
        weight = model.get_parameter(first)
        for name in others:
            owner, _, attribute = name.rpartition(".")
            model.get_submodule(owner).register_parameter(attribute, weight)
