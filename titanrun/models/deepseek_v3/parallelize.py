"""How DeepSeek-V3 is split over ranks, as data."""

from titanrun.distributed.tensor_parallel import Plan
from titanrun.models.shared.parallelize import DECODER, LATENT_ATTENTION, MIXTURE_OF_EXPERTS

TENSOR_PLAN: Plan = {**DECODER, **MIXTURE_OF_EXPERTS, **LATENT_ATTENTION}
