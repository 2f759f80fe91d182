"""Tensor-parallel plan of Llama 4."""

from titanrun.distributed.tensor_parallel import TPPlan
from titanrun.models.shared.tensor_parallel_plans import DECODER, MIXTURE_OF_EXPERTS

TENSOR_PLAN: TPPlan = {**DECODER, **MIXTURE_OF_EXPERTS}
