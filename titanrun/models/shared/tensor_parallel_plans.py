"""Tensor-parallel plans that decoder-only families share."""

from titanrun.distributed.tensor_parallel import TPPlan, TPRole

DECODER: TPPlan = {
    "tok_embeddings": TPRole.EMBEDDING,
    "norm": TPRole.RESIDUAL_NORM,
    "output": TPRole.OUTPUT,
    "layers.*.attention_norm": TPRole.RESIDUAL_NORM,
    "layers.*.ffn_norm": TPRole.RESIDUAL_NORM,
    "layers.*.attention": TPRole.GATHER_INPUT,
    "layers.*.attention.wq": TPRole.COLWISE,
    "layers.*.attention.wk": TPRole.COLWISE,
    "layers.*.attention.wv": TPRole.COLWISE,
    "layers.*.attention.wo": TPRole.ROWWISE,
    "layers.*.feed_forward": TPRole.GATHER_INPUT,
    "layers.*.feed_forward.w1": TPRole.COLWISE,
    "layers.*.feed_forward.w2": TPRole.ROWWISE,
    "layers.*.feed_forward.w3": TPRole.COLWISE,
}

POST_NORMS: TPPlan = {
    "layers.*.attention_post_norm": TPRole.POST_NORM,
    "layers.*.ffn_post_norm": TPRole.POST_NORM,
}

MIXTURE_OF_EXPERTS: TPPlan = {
    "layers.*.moe": TPRole.MOE_LAYER,
    "layers.*.moe.router.gate": TPRole.REPLICATED_PARTIAL_GRAD,
    "layers.*.moe.experts": TPRole.EXPERTS,
    "layers.*.moe.shared_experts.w1": TPRole.COLWISE_PARTIAL_GRAD,
    "layers.*.moe.shared_experts.w2": TPRole.ROWWISE_PARTIAL_OUTPUT,
    "layers.*.moe.shared_experts.w3": TPRole.COLWISE_PARTIAL_GRAD,
}

LATENT_ATTENTION: TPPlan = {
    "layers.*.attention.wq_a": TPRole.REPLICATED_PARTIAL_GRAD,
    "layers.*.attention.q_norm": TPRole.REPLICATED_PARTIAL_GRAD,
    "layers.*.attention.wq_b": TPRole.COLWISE_PARTIAL_GRAD,
    "layers.*.attention.wkv_a": TPRole.REPLICATED_PARTIAL_GRAD,
    "layers.*.attention.kv_norm": TPRole.REPLICATED_PARTIAL_GRAD,
    "layers.*.attention.wkv_b": TPRole.COLWISE_PARTIAL_GRAD,
}
"""Plan in which heads are split, but compressed keys, values and queries are not."""
