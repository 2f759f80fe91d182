"""How a decoder of ingredients is split over ranks, as data."""

from titanrun.distributed.tensor_parallel import Plan, Role
from titanrun.models.decoder.model import ComposedDecoder
from titanrun.models.shared.parallelize import (
    DECODER,
    LATENT_ATTENTION,
    MIXTURE_OF_EXPERTS,
    POST_NORMS,
)

HEAD_NORMS: Plan = {
    "layers.*.attention.q_norm": Role.HEAD_NORM,
    "layers.*.attention.k_norm": Role.HEAD_NORM,
}


def tensor_plan(model: ComposedDecoder) -> Plan:
    """The plan of its kind of attention: in both a norm of queries has the same name, and in one it is of each head."""
    of_attention = HEAD_NORMS if model.config.attention.latent is None else LATENT_ATTENTION
    return {**DECODER, **MIXTURE_OF_EXPERTS, **POST_NORMS, **of_attention}
