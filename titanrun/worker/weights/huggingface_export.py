"""Export of a model's weights to a Hugging Face folder."""

import json
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import (
    merge_adapters,
)
from titanrun.components.checkpoints.huggingface import (
    CONFIG_FILE,
    write_hf_folder,
)
from titanrun.components.checkpoints.optimizer_state import OPTIMIZER_PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.spec.weight_files import WEIGHT_FILE_STEMS
from titanrun.components.converters.config import AdapterConfig
from titanrun.components.tokenizers.chat_template import read_chat_template
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.stop_tokens import list_eos_ids
from titanrun.components.tokenizers.spec.tokenizer_files import (
    CHAT_TEMPLATE,
    TOKENIZER_CONFIG,
    load_json_object,
    load_special_token_ids,
    open_tokenizer_folder,
)
from titanrun.config.problems import ProblemsFound, problem_error
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
    end_ids: Collection[int] = (),
) -> None:
    """Write a folder that transformers can load: config.json, weights, tokenizer files.

    The tokenizer's files are left out if they are unknown. `end_ids` end a reply. Adapters are
    merged into the weights.
    Collective: all ranks must call this, because each may hold a part of the weights. One rank is
    the writer.
    """
    family = load_family_module(type(model_config), "huggingface")
    state = gather_huggingface_weights(
        engine, model_config, dtype=get_dtype(dtype_name), lora=lora, is_kept=is_writer
    )
    if not is_writer:
        return
    files, texts = collect_huggingface_files(tokenizer, model_config, end_ids)
    config = build_config_json(model_config, dtype_name, tokenizer, end_ids)
    stem = get_weights_file_stem(family)
    write_hf_folder(folder, state, config, files, texts, stem=stem)
    log.info(
        "wrote %s, loadable with %s",
        folder,
        "transformers" if stem == WEIGHT_FILE_STEMS[0] else "diffusers",
    )


def build_config_json(
    model_config: ModelConfig,
    dtype_name: str,
    tokenizer: TokenizerConfig | None,
    end_ids: Collection[int] = (),
) -> dict[str, Any]:
    """Return the content of config.json for weights of a dtype.

    A model of text has the ids that begin and end a text. A model with a scalar head gets a padding
    id: transformers takes the score of the last token with another id.

    Raises:
        ProblemsFound: A data problem if a scalar head needs a padding id, but the tokenizer has no
            token for it.
    """
    family = load_family_module(type(model_config), "huggingface")
    config: dict[str, Any] = family.to_huggingface_config(model_config, dtype_name)
    if model_config.modality == "tokens":
        config |= choose_boundary_ids(config, model_config, tokenizer)
    if getattr(model_config, "head", "lm") != "scalar":
        return config
    ids = {} if tokenizer is None else load_special_token_ids(tokenizer.folder)
    ends = {*end_ids, ids.get("eos_token")}
    # the last two never end a conversation either
    candidates = [ids.get(role) for role in ("pad_token", "unk_token", "bos_token")]
    found = next((each for each in candidates if each is not None and each not in ends), None)
    if found is None:
        raise problem_error(
            "data",
            "transformers needs a padding token to read the scores, and the tokenizer has none",
            path=("tokenizer",),
            hint="add a pad_token to tokenizer_config.json that is not the end-of-text token",
        )
    return {**config, "pad_token_id": found}


def choose_boundary_ids(
    config: Mapping[str, Any], model_config: ModelConfig, tokenizer: TokenizerConfig | None
) -> dict[str, Any]:
    """Return the ids that begin and end a text, where config.json has none.

    They are those of the model that the weights came from, else those of a readable tokenizer.
    """
    given = Path(model_config.hf_assets_path or "") / CONFIG_FILE
    has_given = model_config.hf_assets_path is not None and given.is_file()
    settings = load_json_object(given) if has_given else {}
    ids: Mapping[str, int] = {}
    with suppress(ProblemsFound):
        ids = {} if tokenizer is None else load_special_token_ids(tokenizer.folder)
    chosen = {}
    for role in ("bos_token", "eos_token"):
        key = f"{role}_id"
        if config.get(key) is None:
            found = settings.get(key)
            chosen[key] = ids.get(role) if found is None else found
    return chosen


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
        dtype: target dtype. None: that of the trained weights.
        lora: the adapters, None if the model has no adapters.
        is_kept: whether this rank keeps the weights. If False, the result is empty.
    """
    state: dict[str, Tensor] = {}
    # adapters are merged in their own dtype, so that weights are rounded only once
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
    tokenizer: TokenizerConfig | None,
    model_config: ModelConfig,
    end_ids: Collection[int] = (),
) -> tuple[list[Path], dict[str, bytes]]:
    """Return the files next to the weights: the tokenizer's files, and generation_config.json.

    generation_config.json is that of the folder that the model came from, else a new one with the
    ids of the tokenizer's special tokens, so that `generate` knows where a text ends. `end_ids`,
    which end a reply, are added to its `eos_token_id`. A model that does not generate text has
    neither. A chat template that the tokenizer's config names replaces the one in its folder.

    Raises:
        ProblemsFound: A data problem if the tokenizer or the template cannot be read.
    """
    if model_config.modality != "tokens":
        return [], {}
    files = [] if tokenizer is None else open_tokenizer_folder(tokenizer.folder).all_files
    texts: dict[str, bytes] = {}
    if tokenizer is not None and tokenizer.chat_template is not None:
        files, texts = replace_chat_template(files, tokenizer.chat_template)
    given = Path(model_config.hf_assets_path or "") / GENERATION_FILE
    if model_config.hf_assets_path is not None and given.is_file():
        settings = load_json_object(given)
        if set(end_ids) <= set(list_eos_ids(settings)):
            return [*files, given], texts
    else:
        ids = {} if tokenizer is None else load_special_token_ids(tokenizer.folder)
        roles = ("bos_token", "eos_token", "pad_token")
        settings = {f"{role}_id": ids.get(role) for role in roles}
    text = json.dumps(add_end_ids(settings, end_ids), indent=2)
    return files, {**texts, GENERATION_FILE: f"{text}\n".encode()}


def add_end_ids(settings: Mapping[str, Any], end_ids: Collection[int]) -> dict[str, Any]:
    """Return the content of generation_config.json with further ids that end a text."""
    known = list_eos_ids(settings)
    further = sorted(set(end_ids) - set(known))
    return {**settings, "eos_token_id": [*known, *further]} if further else dict(settings)


def replace_chat_template(files: list[Path], template: str) -> tuple[list[Path], dict[str, bytes]]:
    """Return the files of a tokenizer without its chat template, and those that hold the new one.

    Raises:
        ProblemsFound: A data problem if the template cannot be read.
    """
    texts = {CHAT_TEMPLATE: read_chat_template(template).encode()}
    kept = [file for file in files if file.name not in (CHAT_TEMPLATE, "chat_template.json")]
    for file in kept:
        if file.name == TOKENIZER_CONFIG:
            # two copies of a template contradict each other
            settings = load_json_object(file)
            settings.pop("chat_template", None)
            content = json.dumps(settings, indent=2, ensure_ascii=False)
            texts[TOKENIZER_CONFIG] = f"{content}\n".encode()
    return [file for file in kept if file.name not in texts], texts
