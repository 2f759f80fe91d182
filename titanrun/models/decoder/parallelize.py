"""Tensor-parallel plan of custom decoders."""

from titanrun.distributed.tensor_parallel import TPPlan, TPRole
from titanrun.models.decoder.model import CustomDecoder
from titanrun.models.shared.tensor_parallel_plans import (
    DECODER,
    LATENT_ATTENTION,
    MIXTURE_OF_EXPERTS,
    POST_NORMS,
)

HEAD_NORMS: TPPlan = {
    "layers.*.attention.q_norm": TPRole.QK_NORM,
    "layers.*.attention.k_norm": TPRole.QK_NORM,
}


def build_tensor_plan(model: CustomDecoder) -> TPPlan:
    """Build the plan for the model's kind of attention.

    The query norm has the same name in both kinds, but only one normalizes each head.
    """
    of_attention = HEAD_NORMS if model.config.attention.latent is None else LATENT_ATTENTION
    return {**DECODER, **MIXTURE_OF_EXPERTS, **POST_NORMS, **of_attention}
