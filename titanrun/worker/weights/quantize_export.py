"""Export of linear weights in torchao's quantized formats, for inference only."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from titanrun.components.checkpoints.adapter_weights import is_adapter
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.converters.quantization_config import (
    DEFAULT_GROUP_SIZE,
    GROUPED_SCHEMES,
    LM_HEAD,
)
from titanrun.components.converters.torchao_quantization import (
    build_torchao_config,
    quantize_weight,
    select_quantizable_modules,
)
from titanrun.config.problems import problem_error
from titanrun.distributed.torchao_import import import_torchao
from titanrun.recipe.recipe import Recipe, find_qat_converter


@dataclass(frozen=True, slots=True)
class ExportQuantization:
    """Quantization of exported weights.

    Args:
        config: torchao's description.
        modules: titanrun's names of the linear modules to quantize.
    """

    config: Any
    modules: tuple[str, ...]

    def quantize_weights(
        self, weights: Mapping[str, Tensor], hf_names: Mapping[str, str] | None = None
    ) -> dict[str, Tensor]:
        """Return the weights with those of `modules` quantized.

        Args:
            weights: weights by name.
            hf_names: weight names by titanrun's names, if the names of `weights` differ from these.
        """
        names = {f"{name}.weight" for name in self.modules}
        chosen = names if hf_names is None else {hf_names[name] for name in names}
        return {
            name: quantize_weight(tensor, self.config) if name in chosen else tensor
            for name, tensor in weights.items()
        }

    def to_transformers_config(self) -> dict[str, Any]:
        """Return the `quantization_config` for config.json."""
        described = import_torchao("core.config").config_to_dict(self.config)
        return {
            "quant_method": "torchao",
            "quant_type": {"default": described},
            "modules_to_not_convert": None,
            "include_input_output_embeddings": False,
            "untie_embedding_weights": False,
        }


def flatten_quantized_tensors(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Split quantized tensors into plain tensors for safetensors.

    Codes and scales are separate tensors. The metadata lets torchao and transformers reassemble
    them.
    """
    parts, metadata = import_torchao(
        "prototype.safetensors.safetensors_support"
    ).flatten_tensor_state_dict(dict(tensors))
    return parts, metadata


def build_export_quantization(
    recipe: Recipe,
    model: nn.Module,
    scheme: str,
    group_size: int | None,
    weights: Mapping[str, Tensor],
) -> ExportQuantization:
    """Build the quantization that `--quantize` requests.

    Raises:
        ProblemsFound: it is not possible, or differs from the quantization in training.
    """
    if any(map(is_adapter, weights)):
        raise problem_error(
            "usage", "adapters cannot be quantized", hint="add --merge, or remove --quantize"
        )
    qat = find_qat_converter(recipe)
    if qat is not None and qat.scheme != scheme:
        raise problem_error(
            "usage",
            f"the run was trained for {qat.scheme}, not for {scheme}",
            hint=f"use --quantize {qat.scheme}",
        )
    if qat is not None and group_size not in (None, qat.group_size):
        message = f"the run was trained for groups of {qat.group_size}, not of {group_size}"
        raise problem_error("usage", message, hint="remove --group-size")
    size = group_size or (DEFAULT_GROUP_SIZE if qat is None else qat.group_size)
    selected, skipped = select_quantizable_modules(
        model, scheme, size, (LM_HEAD,) if qat is None else qat.filter_fqns
    )
    conversion = ConversionReport(converted=tuple(selected), skipped=skipped)
    if not selected:
        message = f"{scheme} cannot quantize any linear module of the model"
        raise problem_error(
            "usage",
            message,
            hint=conversion.summary.partition("; ")[2]
            or "the model has no linear module but its head",
        )
    kind = f"{scheme}, groups of {size}" if scheme in GROUPED_SCHEMES else scheme
    sys.stderr.write(f"{kind}: {conversion.summary}\n")
    return ExportQuantization(build_torchao_config(scheme, size), tuple(selected))  # type: ignore[arg-type]
