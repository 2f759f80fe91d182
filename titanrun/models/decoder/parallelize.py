"""How a decoder of ingredients is split over ranks, as data."""

from titanrun.distributed.tensor_parallel import Plan, Role
from titanrun.models.shared.parallelize import DECODER, MIXTURE_OF_EXPERTS, POST_NORMS

TENSOR_PLAN: Plan = {
    **DECODER,
    **MIXTURE_OF_EXPERTS,
    **POST_NORMS,
    "layers.*.attention.q_norm": Role.HEAD_NORM,
    "layers.*.attention.k_norm": Role.HEAD_NORM,
}
