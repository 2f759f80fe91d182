"""Tensor-parallel plan of Llama 3."""

from titanrun.distributed.tensor_parallel import TPPlan
from titanrun.models.shared.tensor_parallel_plans import DECODER

TENSOR_PLAN: TPPlan = DECODER
