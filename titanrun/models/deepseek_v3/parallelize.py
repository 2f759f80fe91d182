"""How DeepSeek-V3 is split over ranks, as data."""

from titanrun.distributed.tensor_parallel import Plan, Role
from titanrun.models.shared.parallelize import DECODER, LATENT_ATTENTION, MIXTURE_OF_EXPERTS

TENSOR_PLAN: Plan = {
    **DECODER,
    **MIXTURE_OF_EXPERTS,
    **LATENT_ATTENTION,
    "layers.*.embedding_norm": Role.STREAM_NORM,
    "layers.*.stream_norm": Role.STREAM_NORM,
    "layers.*.out_norm": Role.STREAM_NORM,
    "layers.*.join": Role.STREAM_ROWS,
}
