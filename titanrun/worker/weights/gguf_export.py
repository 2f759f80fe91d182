"""Export of a model to one GGUF file, the format of llama.cpp and Ollama."""

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.worker.weights.gguf_families import FAMILIES, ROPE_TYPES, GgufFamily
from titanrun.worker.weights.gguf_tokenizer import add_tokenizer

MISSING = "exports to GGUF need the package gguf, which is not installed"
# names of the format by those of torch, and its one quantized dtype here
GGUF_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
FILE_TYPES = {
    "F32": "ALL_F32",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    "Q8_0": "MOSTLY_Q8_0",
}
Q8_0_BLOCK = 32
# llama.cpp computes routers in fp32
FP32_NAMES = ("mlp.gate.weight", "mlp.router.weight")
SUFFIXES = (".weight", ".bias")


def load_gguf() -> Any:
    """Import the package.

    Raises:
        ProblemsFound: If it is not installed.
    """
    try:
        return import_module("gguf")
    except ImportError:
        raise problem_error("usage", MISSING, hint='pip install "titanrun[gguf]"') from None


def write_gguf(
    out: Path,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    dtype: str,
    tokenizer: Path,
    template: str | None,
    end_ids: Collection[int],
    name: str,
) -> None:
    """Write a model of transformers' names to one file.

    Args:
        out: The file; it appears once it is complete.
        weights: The weights by transformers' names.
        config: The content of config.json.
        dtype: A key of GGUF_DTYPES. Vectors and routers stay in fp32.
        tokenizer: Folder of the tokenizer.
        template: The chat template, if there is one.
        end_ids: Ids that end a reply.
        name: Name of the model in the file.

    Raises:
        ProblemsFound: If the format lacks the family or the tokenizer, or the package is missing.
    """
    gguf, family = load_gguf(), get_family(config)
    part = out.with_name(f"{out.name}.part")
    try:
        writer = gguf.GGUFWriter(part, family.architecture, use_temp_file=True)
        writer.add_type("model")
        writer.add_name(name)
        writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[GGUF_DTYPES[dtype]]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        family.add_settings(gguf, writer, config)
        add_tokenizer(
            writer,
            tokenizer,
            vocab_size=config["vocab_size"],
            template=template,
            end_ids=end_ids,
        )
        add_weights(gguf, writer, family, weights, config, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)


def get_family(config: Mapping[str, Any]) -> GgufFamily:
    """Return the family of a model.

    Raises:
        ProblemsFound: If titanrun does not write it, or its RoPE.
    """
    kind, scaling = config["model_type"], (config.get("rope_scaling") or {}).get("rope_type")
    family = FAMILIES.get(kind)
    if family is None:
        known = format_word_list(list(FAMILIES), conjunction="and")
        raise unwritten_model_error(f"model type {kind} is not written as GGUF; these are: {known}")
    if scaling not in ROPE_TYPES.get(kind, (None, "default")):
        raise unwritten_model_error(f"RoPE scaling {scaling} of {kind} is not written as GGUF")
    if differs := family.find_difference(config):
        raise unwritten_model_error(f"llama.cpp computes {kind} with other values of: {differs}")
    return family


def unwritten_model_error(message: str) -> ProblemsFound:
    """Return the problem of a model that is not written."""
    return problem_error(
        "usage",
        message,
        hint="export with --format hf and use convert_hf_to_gguf.py of llama.cpp",
    )


def add_weights(
    gguf: Any,
    writer: Any,
    family: GgufFamily,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    dtype: str,
) -> None:
    """Write the weights under the format's names."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.enum_name], config["num_hidden_layers"])
    for name, weight in family.iter_weights(weights, config):
        found = name if name == "rope_freqs.weight" else names.get_name(name, SUFFIXES)
        assert found is not None, f"{name} has a name in the format"
        kind = gguf.GGMLQuantizationType[select_dtype(name, weight, GGUF_DTYPES[dtype])]
        values = weight.detach().to(torch.float32).contiguous().numpy()
        writer.add_tensor(found, gguf.quants.quantize(values, kind), raw_dtype=kind)


def select_dtype(name: str, weight: Tensor, dtype: str) -> str:
    """Return the dtype of one weight: fp32 for vectors and routers, fp16 for odd widths."""
    if weight.ndim == 1 or name.endswith((".bias", *FP32_NAMES)):
        return "F32"
    return "F16" if dtype == "Q8_0" and weight.size(-1) % Q8_0_BLOCK else dtype
