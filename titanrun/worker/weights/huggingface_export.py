"""Export of a model's weights to a Hugging Face folder."""

import json
import logging
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import (
    merge_adapters,
)
from titanrun.components.checkpoints.huggingface import (
    WEIGHT_FILE_STEMS,
    write_hf_folder,
)
from titanrun.components.checkpoints.optimizer_state import OPTIMIZER_PREFIX as OPTIMIZER_PREFIX
from titanrun.components.converters.config import AdapterConfig
from titanrun.components.tokenizers.chat_template import read_template_file
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import (
    CHAT_TEMPLATE,
    TOKENIZER_CONFIG,
    load_json_object,
    load_special_token_ids,
    open_tokenizer_folder,
)
from titanrun.distributed.dtypes import get_dtype
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.family import load_family_module
from titanrun.training.engine import Engine

log = logging.getLogger(__name__)

GENERATION_FILE = "generation_config.json"


def export_huggingface(
    folder: Path,
    *,
    engine: Engine,
    model_config: ModelConfig,
    tokenizer: TokenizerConfig | None,
    dtype_name: str,
    is_writer: bool,
    lora: AdapterConfig | None = None,
    template: Path | None = None,
) -> None:
    """Write a folder that transformers can load: config.json, weights, tokenizer files.

    The tokenizer's files are left out if they are unknown. `template` is a chat template in place
    of the tokenizer's own. Adapters are merged into the weights.
    Collective: all ranks must call this, because each may hold a part of the weights. One rank is
    the writer.
    """
    family = load_family_module(type(model_config), "huggingface")
    state = gather_huggingface_weights(
        engine, model_config, dtype=get_dtype(dtype_name), lora=lora, is_kept=is_writer
    )
    if not is_writer:
        return
    files, texts = collect_huggingface_files(tokenizer, model_config, template)
    config = family.to_huggingface_config(model_config, dtype_name)
    stem = get_weights_file_stem(family)
    write_hf_folder(folder, state, config, files, texts, stem=stem)
    log.info(
        "wrote %s, loadable with %s",
        folder,
        "transformers" if stem == WEIGHT_FILE_STEMS[0] else "diffusers",
    )


def gather_huggingface_weights(
    engine: Engine,
    model_config: ModelConfig,
    *,
    dtype: torch.dtype | None,
    lora: AdapterConfig | None = None,
    is_kept: bool = True,
) -> dict[str, Tensor]:
    """Gather the full weights in host memory under Hugging Face names, with adapters merged.

    A tied head has no name. Collective: all ranks must call this.

    Args:
        engine: the engine of the model.
        model_config: the model section.
        dtype: target dtype. None: the training dtype.
        lora: the adapters, None if the model has no adapters.
        is_kept: whether this rank keeps the weights. If False, the result is empty.
    """
    state: dict[str, Tensor] = {}
    # adapters are merged in the training dtype, so that weights are rounded only once
    for name, tensor in engine.state_dict_stream(dtype=dtype if lora is None else None):
        if is_kept:
            state[name] = tensor.cpu()
    if not is_kept:
        return {}
    if lora is not None:
        state = {
            name: tensor if dtype is None else tensor.to(dtype)
            for name, tensor in merge_adapters(state, scale=lora.scale).items()
        }
    found: dict[str, Tensor] = load_family_module(type(model_config), "huggingface").to_huggingface(
        model_config, state
    )
    return found


def get_weights_file_stem(family: ModuleType) -> str:
    """Return the file name stem of weights: that of transformers unless the family sets one."""
    return str(getattr(family, "WEIGHTS_NAME", WEIGHT_FILE_STEMS[0]))


def collect_huggingface_files(
    tokenizer: TokenizerConfig | None, model_config: ModelConfig, template: Path | None = None
) -> tuple[list[Path], dict[str, bytes]]:
    """Return the files next to the weights: the tokenizer's files, and generation_config.json.

    generation_config.json is that of the folder that the model came from, else a new one with the
    ids of the tokenizer's special tokens, so that `generate` knows where a text ends. A model that
    does not generate text has neither. A chat template replaces the tokenizer's own.

    Raises:
        ProblemsFound: A data problem if the tokenizer or the template cannot be read.
    """
    if model_config.modality != "tokens":
        return [], {}
    files = [] if tokenizer is None else open_tokenizer_folder(tokenizer.folder).all_files
    texts: dict[str, bytes] = {}
    if tokenizer is not None and template is not None:
        files, texts = replace_chat_template(files, template)
    given = Path(model_config.hf_assets_path or "") / GENERATION_FILE
    if model_config.hf_assets_path is not None and given.is_file():
        return [*files, given], texts
    ids = {} if tokenizer is None else load_special_token_ids(tokenizer.folder)
    text = json.dumps(
        {f"{role}_id": ids.get(role) for role in ("bos_token", "eos_token", "pad_token")}, indent=2
    )
    return files, {**texts, GENERATION_FILE: f"{text}\n".encode()}


def replace_chat_template(files: list[Path], template: Path) -> tuple[list[Path], dict[str, bytes]]:
    """Return the files of a tokenizer without its chat template, and those that hold the new one.

    Raises:
        ProblemsFound: A data problem if the template cannot be read.
    """
    texts = {CHAT_TEMPLATE: read_template_file(str(template)).encode()}
    kept = [file for file in files if file.name not in (CHAT_TEMPLATE, "chat_template.json")]
    for file in kept:
        if file.name == TOKENIZER_CONFIG:
            # two copies of a template contradict each other
            settings = load_json_object(file)
            settings.pop("chat_template", None)
            content = json.dumps(settings, indent=2, ensure_ascii=False)
            texts[TOKENIZER_CONFIG] = f"{content}\n".encode()
    return [file for file in kept if file.name not in texts], texts
