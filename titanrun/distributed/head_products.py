"""Matrix products of an output head, in the dtype of its inputs or with logits in fp32.

Shapes: C tokens, D model width, V vocabulary or this rank's part of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.dtensor import is_sharded, to_local


@dataclass(frozen=True, slots=True)
class HeadProducts:
    """How a head multiplies.

    Args:
        operands: dtype to which both operands are rounded; results are fp32. None: operands and
            results have the dtype of the inputs.
        fp32_precision: precision of fp32 products on CUDA devices, `ieee` or `tf32`. None: that of
            the process.
    """

    operands: torch.dtype | None = None
    fp32_precision: str | None = None

    def convert(self, tensor: Tensor) -> Tensor:
        """Return the tensor as an operand, without a copy if it is one."""
        return tensor if self.operands is None else tensor.to(self.operands)

    def compute_logits(self, stream_CD: Tensor, weight_VD: Tensor) -> Tensor:
        """Return the logits of operands."""
        if self.operands is None:
            return stream_CD @ weight_VD.t()
        with self._use_precision():
            return multiply_in_fp32(stream_CD, weight_VD.t())

    def compute_stream_gradient_(
        self, gradient_CD: Tensor, slope_CV: Tensor, weight_VD: Tensor
    ) -> None:
        """Write slope weight into `gradient_CD`; `weight_VD` is an operand."""
        with self._use_precision():
            slope_CV = self.convert(slope_CV)
            if gradient_CD.dtype == slope_CV.dtype:
                torch.mm(slope_CV, weight_VD, out=gradient_CD)
            else:
                gradient_CD.copy_(slope_CV @ weight_VD)

    def add_weight_gradient_(self, total_VD: Tensor, slope_CV: Tensor, stream_CD: Tensor) -> None:
        """Add slope^T stream to an fp32 sum; `stream_CD` is an operand."""
        with self._use_precision():
            slope_VC = self.convert(slope_CV).t()
            if slope_VC.dtype == torch.float32 or not is_accelerator(slope_VC.device):
                # torch has no products of bf16 with fp32 results for CPUs
                total_VD.addmm_(slope_VC.float(), stream_CD.float())
            else:
                total_VD.add_(multiply_in_fp32(slope_VC, stream_CD))

    @contextmanager
    def _use_precision(self) -> Iterator[None]:
        """Set the precision of fp32 products within the block."""
        if self.fp32_precision is None:
            yield
            return
        # the attribute `allow_tf32` must not be set as well: torch refuses to read either then
        settings: Any = torch.backends.cuda.matmul
        before = settings.fp32_precision
        settings.fp32_precision = self.fp32_precision
        try:
            yield
        finally:
            settings.fp32_precision = before


PLAIN_PRODUCTS = HeadProducts()


def multiply_in_fp32(left: Tensor, right: Tensor) -> Tensor:
    """Return the product in fp32, without rounding it to the dtype of the operands."""
    if left.dtype != torch.float32 and is_accelerator(left.device):
        product: Tensor = torch.mm(left, right, out_dtype=torch.float32)
        return product
    return left.float() @ right.float()


def splits_vocabulary(weight_VD: Any) -> bool:
    """Return whether a DTensor is split by rows over one group of ranks."""
    return len(weight_VD.placements) == 1 and bool(weight_VD.placements[0].is_shard(0))


class HeadProduct(torch.autograd.Function):
    """Logits of a head, and the products of its backward pass, as `HeadProducts` says.

    With tensor parallelism the stream is replicated, the weight is split over the vocabulary, and
    so are the logits. The gradient of the stream is a partial sum.
    """

    if TYPE_CHECKING:

        @staticmethod
        def apply(stream: Tensor, weight_VD: Tensor, products: HeadProducts) -> Tensor:
            """Return the logits [..., V] of a stream [..., D]."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, weight_VD: Tensor, products: HeadProducts) -> Tensor:
        """Compute the logits; operands are converted again in the backward pass."""
        assert is_sharded(stream) == is_sharded(weight_VD), "both are DTensors, or none"
        ctx.products = products
        ctx.save_for_backward(stream, weight_VD)
        stream_CD = products.convert(to_local(stream).flatten(0, -2))
        logits = products.compute_logits(stream_CD, products.convert(to_local(weight_VD)))
        shape = (*stream.shape[:-1], weight_VD.size(0))
        return place_like(weight_VD, logits.view(*shape[:-1], -1), "columns", shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of stream and weight in their dtypes."""
        stream, weight_VD = ctx.saved_tensors
        products: HeadProducts = ctx.products
        slope = gradients[0]
        if is_sharded(weight_VD):
            shard = import_module("torch.distributed.tensor").Shard
            slope = slope.redistribute(placements=[shard(slope.ndim - 1)])
        slope_CV = to_local(slope).flatten(0, -2)
        stream_grad, weight_grad = None, None
        if ctx.needs_input_grad[0]:
            weight = products.convert(to_local(weight_VD))
            part = torch.empty_like(to_local(stream))
            products.compute_stream_gradient_(part.flatten(0, -2), slope_CV, weight)
            stream_grad = place_like(weight_VD, part, "summand", tuple(stream.shape))
        if ctx.needs_input_grad[1]:
            part = torch.zeros_like(to_local(weight_VD), dtype=torch.float32)
            stream_CD = products.convert(to_local(stream).flatten(0, -2))
            products.add_weight_gradient_(part, slope_CV, stream_CD)
            weight_grad = place_like(
                weight_VD, part.to(weight_VD.dtype), "rows", tuple(weight_VD.shape)
            )
        return stream_grad, weight_grad, None


def place_like(weight_VD: Any, part: Tensor, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Return this rank's part as a DTensor on the mesh of the weight.

    A part of a weight that is no DTensor is returned as it is.

    Args:
        weight_VD: weight of the head.
        part: the local tensor.
        kind: `columns` and `rows` are split along the last and the first dim, a `summand` has the
            whole shape.
        shape: shape of the whole tensor.
    """
    if not is_sharded(weight_VD):
        return part
    tensor = import_module("torch.distributed.tensor")
    placements = {
        "columns": tensor.Shard(len(shape) - 1),
        "rows": tensor.Shard(0),
        "summand": tensor.Partial(),
    }
    whole: Tensor = tensor.DTensor.from_local(
        part,
        weight_VD.device_mesh,
        [placements[kind]],
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )
    return whole
