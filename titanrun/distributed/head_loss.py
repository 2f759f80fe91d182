"""Output head and cross entropy in one, with gradients computed in the forward pass.

The logits of a chunk of tokens exist once, and are used for the loss and for both gradients: a
recomputation of the head's product is saved.

Shapes: X tokens of all sequences, C tokens of a chunk, D model width, V vocabulary or this rank's
part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from titanrun.distributed.head_products import PLAIN_PRODUCTS, HeadProducts
from titanrun.distributed.split_logits import (
    VocabPart,
    add_at_labels,
    compute_part_gradients,
    reduce_part_summaries,
    summarize_logit_part,
)
from titanrun.distributed.token_accuracy import TokenAccuracy

LogitGradientFn = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class HeadLossOptions:
    """Options of a cross entropy.

    Args:
        num_chunks: number of chunks of the tokens.
        label_smoothing: share of the target that is spread evenly over the vocabulary.
        z_loss: weight of the squared log-sum-exp.
        compute: computes loss and gradient of a chunk's logits, `compute_logit_gradients` or that
            function compiled.
        summarize_part: `summarize_logit_part`, or that function compiled.
        compute_part: `compute_part_gradients`, or that function compiled.
        products: how the head multiplies.
        part: the part of the vocabulary that this rank's weight is for. The gradient of the stream
            is a partial sum then. None: all of it.
        accuracy: counts the labels that are the likeliest tokens.
    """

    num_chunks: int
    label_smoothing: float
    z_loss: float
    compute: LogitGradientFn
    summarize_part: Callable[..., Tensor] = summarize_logit_part
    compute_part: LogitGradientFn = compute_part_gradients
    products: HeadProducts = PLAIN_PRODUCTS
    part: VocabPart | None = None
    accuracy: TokenAccuracy | None = None

    def compute_gradients(
        self,
        logits_CV: Tensor,
        labels_C: Tensor,
        weights_C: Tensor,
        scale: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss sum of a chunk, and its gradient with respect to this rank's logits.

        Collective over the ranks of `part`.
        """
        settings = {"label_smoothing": self.label_smoothing, "z_loss": self.z_loss}
        part = self.part
        if part is None:
            return self.compute(logits_CV, labels_C, weights_C, scale, **settings)
        own_labels_C = labels_C - part.start
        summary_SC = reduce_part_summaries(self.summarize_part(logits_CV, own_labels_C), part.group)
        return self.compute_part(
            logits_CV, own_labels_C, weights_C, scale, summary_SC, part.vocab_size, **settings
        )

    def count_accuracy(self, logits_CV: Tensor, labels_C: Tensor, weights_C: Tensor) -> None:
        """Count the labels of a chunk that are the likeliest tokens, if asked for.

        Collective over the ranks of `part`.
        """
        if self.accuracy is not None:
            self.accuracy.add(logits_CV, labels_C, weights_C != 0, part=self.part)


class HeadLoss(torch.autograd.Function):
    """Cross entropy of a linear head as a sum over tokens.

    Gradients are those of the sum times `scale`. The incoming gradient is taken to be 1: dividing
    the loss by the tokens of the step afterwards would round bf16 gradients twice.
    """

    if TYPE_CHECKING:

        @staticmethod
        def apply(
            stream_XD: Tensor,
            weight_VD: Tensor,
            labels_X: Tensor,
            weights_X: Tensor,
            scale: Tensor | None,
            options: HeadLossOptions,
        ) -> Tensor:
            """Return the loss sum in fp32."""

    @staticmethod
    def forward(
        ctx: Any,
        stream_XD: Tensor,
        weight_VD: Tensor,
        labels_X: Tensor,
        weights_X: Tensor,
        scale: Tensor | None,
        options: HeadLossOptions,
    ) -> Tensor:
        """Compute the loss and both gradients, chunk by chunk.

        Collective over the ranks of `options.part`.

        Args:
            ctx: keeps the gradients.
            stream_XD: input of the head.
            weight_VD: weight of the head.
            labels_X: labels, valid ids of the vocabulary.
            weights_X: weight of each token in fp32, 0 if it does not count.
            scale: factor of the gradients. None: compute no gradients.
            options: how the loss is computed.
        """
        products = options.products
        needs = [scale is not None and needed for needed in ctx.needs_input_grad[:2]]
        gradient_scale = scale if any(needs) else None
        operand_VD = products.convert(weight_VD)
        total = torch.zeros((), dtype=torch.float32, device=stream_XD.device)
        stream_grad_XD = torch.empty_like(stream_XD) if needs[0] else None
        # bf16 sums of the chunks' gradients would lose as many digits as there are chunks
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needs[1] else None
        each = -(-stream_XD.size(0) // options.num_chunks)
        for start in range(0, stream_XD.size(0), each):
            rows = slice(start, start + each)
            chunk_CD = products.convert(stream_XD[rows])
            logits_CV = products.compute_logits(chunk_CD, operand_VD)
            options.count_accuracy(logits_CV, labels_X[rows], weights_X[rows])
            loss, slope_CV = options.compute_gradients(
                logits_CV, labels_X[rows], weights_X[rows], gradient_scale
            )
            total += loss
            if stream_grad_XD is not None and slope_CV is not None:
                products.compute_stream_gradient_(stream_grad_XD[rows], slope_CV, operand_VD)
            if weight_grad_VD is not None and slope_CV is not None:
                products.add_weight_gradient_(weight_grad_VD, slope_CV, chunk_CD)
            # not beside those of the next chunk
            del logits_CV, slope_CV
        # as FSDP reduces it, and as a working copy's gradient is: rounded once
        rounded_VD = None if weight_grad_VD is None else weight_grad_VD.to(weight_VD.dtype)
        ctx.gradients = (stream_grad_XD, rounded_VD)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Any) -> Any:
        """Return the gradients of the forward pass."""
        gradients, ctx.gradients = ctx.gradients, None
        return *gradients, *(None,) * 4


def compute_logit_gradients(
    logits_CV: Tensor,
    labels_C: Tensor,
    weights_C: Tensor,
    scale: Tensor | None,
    *,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the fp32 loss sum of a chunk, and its gradient with respect to the logits.

    The gradient is multiplied by `scale` and rounded once, to the dtype of the logits. It is None
    if `scale` is. The memory of fp32 logits is used for it.
    """
    exact_CV = logits_CV.float()
    log_sum_C = exact_CV.logsumexp(-1)
    labels_C1 = labels_C.unsqueeze(-1)
    losses_C = log_sum_C - (1 - label_smoothing) * exact_CV.gather(-1, labels_C1).squeeze(-1)
    if label_smoothing:
        losses_C = losses_C - label_smoothing * exact_CV.mean(-1)
    if z_loss:
        losses_C = losses_C + z_loss * log_sum_C.square()
    loss = (losses_C * weights_C).masked_fill(weights_C == 0, 0.0).sum()
    if scale is None:
        return loss, None
    # in place: of a large vocabulary every further copy counts
    slope_CV = exact_CV.sub_(log_sum_C.unsqueeze(-1)).exp_()
    if z_loss:
        slope_CV.mul_((1 + 2 * z_loss * log_sum_C).unsqueeze(-1))
    if label_smoothing:
        slope_CV.sub_(label_smoothing / logits_CV.size(-1))
    slope_CV = add_at_labels(slope_CV, labels_C, label_smoothing - 1)
    return loss, slope_CV.mul_((weights_C * scale).unsqueeze(-1)).to(logits_CV.dtype)
