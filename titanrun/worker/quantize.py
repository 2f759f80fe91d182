"""Weights of linear modules in torchao's quantised forms, for who runs a model and trains it no longer."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from titanrun.components.checkpoints.adapters import is_adapter
from titanrun.components.converters.conversion import Conversion
from titanrun.components.converters.quantized_linear import quantizable, quantized, torchao_config
from titanrun.components.converters.schemes import GROUP_SIZE, HEAD, IN_GROUPS
from titanrun.config.problems import fail
from titanrun.distributed.torchao_parts import torchao_part
from titanrun.recipe.adapters import qat_of
from titanrun.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are quantised, and which.

    Args:
        config: torchao's description.
        modules: the linear modules whose matrices are, by titanrun's names.
    """

    config: Any
    modules: tuple[str, ...]

    def of(
        self, weights: Mapping[str, Tensor], theirs: Mapping[str, str] | None = None
    ) -> dict[str, Tensor]:
        """The weights with those matrices quantised; `theirs` says what a matrix is called where names are others."""
        names = {f"{name}.weight" for name in self.modules}
        chosen = names if theirs is None else {theirs[name] for name in names}
        return {
            name: quantized(tensor, self.config) if name in chosen else tensor
            for name, tensor in weights.items()
        }

    def for_transformers(self) -> dict[str, Any]:
        """What config.json says of it."""
        described = torchao_part("core.config").config_to_dict(self.config)
        return {
            "quant_method": "torchao",
            "quant_type": {"default": described},
            "modules_to_not_convert": None,
            "include_input_output_embeddings": False,
            "untie_embedding_weights": False,
        }


def flattened(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Plain tensors for safetensors, codes and scales apart, and the metadata by which torchao and transformers put them together."""
    parts, metadata = torchao_part(
        "prototype.safetensors.safetensors_support"
    ).flatten_tensor_state_dict(dict(tensors))
    return parts, metadata


def quantization_for(
    recipe: Recipe,
    model: nn.Module,
    scheme: str,
    group_size: int | None,
    weights: Mapping[str, Tensor],
) -> Quantization:
    """What `--quantize` asks for of the recipe's model. Raises a problem for what cannot be, or was not trained so."""
    if any(map(is_adapter, weights)):
        raise fail(
            "usage", "adapters are not quantised", help="give --merge too, or leave --quantize out"
        )
    qat = qat_of(recipe)
    if qat is not None and qat.scheme != scheme:
        raise fail(
            "usage",
            f"the run was trained for {qat.scheme}, not for {scheme}",
            help=f"give --quantize {qat.scheme}",
        )
    if qat is not None and group_size not in (None, qat.group_size):
        message = f"the run was trained for groups of {qat.group_size}, not of {group_size}"
        raise fail("usage", message, help="leave --group-size out")
    size = group_size or (GROUP_SIZE if qat is None else qat.group_size)
    taken, left = quantizable(model, scheme, size, (HEAD,) if qat is None else qat.filter_fqns)
    conversion = Conversion(taken=tuple(taken), left=left)
    if not taken:
        message = f"{scheme} fits none of the model's linear modules"
        raise fail(
            "usage",
            message,
            help=conversion.summary.partition("; ")[2] or "it has none but its head",
        )
    kind = f"{scheme}, groups of {size}" if scheme in IN_GROUPS else scheme
    sys.stderr.write(f"{kind}: {conversion.summary}\n")
    return Quantization(torchao_config(scheme, size), tuple(taken))  # type: ignore[arg-type]
