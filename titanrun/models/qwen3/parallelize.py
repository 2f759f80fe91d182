"""Tensor-parallel plan of Qwen3, dense or with experts."""

from titanrun.distributed.tensor_parallel import TPPlan, TPRole
from titanrun.models.shared.tensor_parallel_plans import DECODER, MIXTURE_OF_EXPERTS

TENSOR_PLAN: TPPlan = {
    **DECODER,
    **MIXTURE_OF_EXPERTS,
    "layers.*.attention.q_norm": TPRole.QK_NORM,
    "layers.*.attention.k_norm": TPRole.QK_NORM,
}
