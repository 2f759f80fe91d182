"""The forms that linear modules are quantised to, by torchao's names; no torch."""

from typing import Literal, TypeAlias, get_args

Trained: TypeAlias = Literal["int4_weight_only", "int8_dynamic_activation_int4_weight"]
"""Those that a model can be trained for."""
Scheme: TypeAlias = Literal[
    Trained, "int8_weight_only", "int8_dynamic_activation_int8_weight", "float8_weight_only"
]
SCHEMES: tuple[str, ...] = get_args(Scheme)
IN_GROUPS: tuple[str, ...] = get_args(Trained)
"""Those with a scale for each group of numbers in a row; the others have one for each row."""
GroupSize: TypeAlias = Literal[32, 64, 128, 256]
GROUP_SIZES: tuple[int, ...] = get_args(GroupSize)
GROUP_SIZE: GroupSize = 32
HEAD = "output"
"""What is not quantised unless somebody asks for it."""
