"""The tensor-parallel plan of what decoder-only families share."""

from titanrun.distributed.tensor_parallel import Plan, Role

DECODER: Plan = {
    "tok_embeddings": Role.EMBEDDING,
    "norm": Role.STREAM_NORM,
    "output": Role.OUTPUT,
    "layers.*.attention_norm": Role.STREAM_NORM,
    "layers.*.ffn_norm": Role.STREAM_NORM,
    "layers.*.attention": Role.READS_STREAM,
    "layers.*.attention.wq": Role.COLUMNS,
    "layers.*.attention.wk": Role.COLUMNS,
    "layers.*.attention.wv": Role.COLUMNS,
    "layers.*.attention.wo": Role.ROWS,
    "layers.*.feed_forward": Role.READS_STREAM,
    "layers.*.feed_forward.w1": Role.COLUMNS,
    "layers.*.feed_forward.w2": Role.ROWS,
    "layers.*.feed_forward.w3": Role.COLUMNS,
}

POST_NORMS: Plan = {
    "layers.*.attention_post_norm": Role.SUMMAND_NORM,
    "layers.*.ffn_post_norm": Role.SUMMAND_NORM,
}

MIXTURE_OF_EXPERTS: Plan = {
    "layers.*.moe": Role.EXPERTS_LAYER,
    "layers.*.moe.router.gate": Role.SUMMAND_WHOLE,
    "layers.*.moe.experts": Role.EXPERTS,
    "layers.*.moe.shared_experts.w1": Role.SUMMAND_COLUMNS,
    "layers.*.moe.shared_experts.w2": Role.SUMMAND_ROWS,
    "layers.*.moe.shared_experts.w3": Role.SUMMAND_COLUMNS,
}

LATENT_ATTENTION: Plan = {
    "layers.*.attention.wq_a": Role.SUMMAND_WHOLE,
    "layers.*.attention.q_norm": Role.SUMMAND_WHOLE,
    "layers.*.attention.wq_b": Role.SUMMAND_COLUMNS,
    "layers.*.attention.wkv_a": Role.SUMMAND_WHOLE,
    "layers.*.attention.kv_norm": Role.SUMMAND_WHOLE,
    "layers.*.attention.wkv_b": Role.SUMMAND_COLUMNS,
}
"""Heads are split; what keys, values and queries are compressed to is not."""
