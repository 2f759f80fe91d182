"""Quantization schemes of linear modules, by torchao's names. Torch-free."""

from typing import Literal, TypeAlias, get_args

QatScheme: TypeAlias = Literal["int4_weight_only", "int8_dynamic_activation_int4_weight"]
"""Schemes for quantization-aware training."""
QuantizationScheme: TypeAlias = Literal[
    QatScheme, "int8_weight_only", "int8_dynamic_activation_int8_weight", "float8_weight_only"
]
SCHEMES: tuple[str, ...] = get_args(QuantizationScheme)
GROUPED_SCHEMES: tuple[str, ...] = get_args(QatScheme)
"""Schemes with a scale for each group of numbers in a row. The others have one per row."""
GroupSize: TypeAlias = Literal[32, 64, 128, 256]
GROUP_SIZES: tuple[int, ...] = get_args(GroupSize)
DEFAULT_GROUP_SIZE: GroupSize = 32
LM_HEAD = "output"
"""Module that is not quantized by default."""
