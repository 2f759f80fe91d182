"""How DeepSeek-V3 is split over ranks, as data: heads are, what keys, values and queries are compressed to is not."""

from titanrun.distributed.tensor_parallel import Plan, Role
from titanrun.models.shared.parallelize import DECODER, MIXTURE_OF_EXPERTS

TENSOR_PLAN: Plan = {
    **DECODER,
    **MIXTURE_OF_EXPERTS,
    "layers.*.attention.wq_a": Role.SUMMAND_WHOLE,
    "layers.*.attention.q_norm": Role.SUMMAND_WHOLE,
    "layers.*.attention.wq_b": Role.SUMMAND_COLUMNS,
    "layers.*.attention.wkv_a": Role.SUMMAND_WHOLE,
    "layers.*.attention.kv_norm": Role.SUMMAND_WHOLE,
    "layers.*.attention.wkv_b": Role.SUMMAND_COLUMNS,
    "layers.*.embedding_norm": Role.STREAM_NORM,
    "layers.*.stream_norm": Role.STREAM_NORM,
    "layers.*.out_norm": Role.STREAM_NORM,
    "layers.*.join": Role.STREAM_ROWS,
}
