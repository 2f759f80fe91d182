"""How Llama 3 is split over ranks, as data."""

from titanrun.distributed.tensor_parallel import Plan
from titanrun.models.shared.parallelize import DECODER

TENSOR_PLAN: Plan = DECODER
