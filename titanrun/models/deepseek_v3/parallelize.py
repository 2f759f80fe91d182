"""Tensor-parallel plan of DeepSeek-V3."""

from titanrun.distributed.tensor_parallel import TPPlan, TPRole
from titanrun.models.shared.tensor_parallel_plans import (
    DECODER,
    LATENT_ATTENTION,
    MIXTURE_OF_EXPERTS,
)

TENSOR_PLAN: TPPlan = {
    **DECODER,
    **MIXTURE_OF_EXPERTS,
    **LATENT_ATTENTION,
    "layers.*.embedding_norm": TPRole.RESIDUAL_NORM,
    "layers.*.stream_norm": TPRole.RESIDUAL_NORM,
    "layers.*.out_norm": TPRole.RESIDUAL_NORM,
    "layers.*.join": TPRole.RESIDUAL_ROWWISE,
}
