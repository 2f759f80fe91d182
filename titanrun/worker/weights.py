"""Weights from outside into a new model, and a finished model's weights out into a Hugging Face folder."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from titanrun.components.checkpoints.adapters import is_adapter, merged, split_adapters
from titanrun.components.checkpoints.addresses import Place, is_address, place
from titanrun.components.checkpoints.checkpoint import Checkpoint, Tolerance
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.dequantize import expanded
from titanrun.components.checkpoints.huggingface import STEMS, read_folder, write_folder
from titanrun.components.checkpoints.manifest import damage
from titanrun.components.checkpoints.optimizer_state import PREFIX as OPTIMIZER_PREFIX
from titanrun.components.checkpoints.quantization import agreed_quantization
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.components.converters.config import AdapterConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.vocabulary import open_folder, special_token_ids
from titanrun.config.problems import fail
from titanrun.distributed.agreement import Ranks
from titanrun.distributed.dtypes import dtype_named
from titanrun.distributed.packed import Packed
from titanrun.distributed.shards import fill
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.family import family_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.saved import resolved_file
from titanrun.training.engine import MODEL_PREFIX, Engine
from titanrun.training.run_checkpoints import shortened

log = logging.getLogger(__name__)

GENERATION_FILE = "generation_config.json"
INITIAL_LOAD_PATH = ("checkpoint", "initial_load_path")


def load_initial_weights(
    config: CheckpointConfig, *, model_config: ModelConfig, engine: Engine, ranks: Ranks, seed: int
) -> None:
    """Fills the model from `initial_load_path`, or from the model's Hugging Face folder; leaves it alone where neither is asked for.

    Args:
        config: the checkpoint section.
        model_config: the model section.
        engine: whose model is filled.
        ranks: who loads together, in a group that waits as long as a large load takes.
        seed: what the model's weights were drawn from.
    """
    if config.initial_load_in_hf:
        folder = huggingface_folder(config, model_config)
        quantized = config.initial_load_in_hf_quantized
        # each rank reads for itself, and none goes on before the slowest: the waits of a step are too short for that
        ranks.together(
            lambda: load_huggingface(
                folder, model_config=model_config, engine=engine, is_quantized=quantized
            )
        )
    elif config.initial_load_path is not None:
        checkpoint = named_checkpoint(config, ranks)
        if all(is_adapter(name) for name in checkpoint.layouts() if name.startswith(MODEL_PREFIX)):
            load_what_adapters_stand_beside(checkpoint, engine=engine, ranks=ranks, seed=seed)
        load_checkpoint(checkpoint, engine, config, ranks)


def load_what_adapters_stand_beside(
    checkpoint: Checkpoint, *, engine: Engine, ranks: Ranks, seed: int
) -> None:
    """Fills the model with the frozen weights that a checkpoint of adapters leaves out, from where its run took them."""
    parent = recipe_of(checkpoint)
    drawn = not parent.checkpoint.initial_load_in_hf and parent.checkpoint.initial_load_path is None
    if drawn and parent.debug.seed != seed:
        message = f"{checkpoint.folder} holds adapters alone, beside weights that its run drew from debug.seed {parent.debug.seed}"
        raise fail(
            "checkpoint",
            message,
            path=INITIAL_LOAD_PATH,
            help=f"set debug.seed: {parent.debug.seed}",
        )
    load_initial_weights(
        parent.checkpoint, model_config=parent.model, engine=engine, ranks=ranks, seed=seed
    )


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """The recipe of the run that saved it."""
    return read_resolved(Path(resolved_file(checkpoint.folder)))


def huggingface_folder(config: CheckpointConfig, model_config: ModelConfig) -> Place:
    """The Hugging Face folder that the recipe names for the initial weights."""
    named = config.initial_load_path or model_config.hf_assets_path
    if named is None:
        message = "checkpoint.initial_load_in_hf is on but no folder is named"
        raise fail(
            "checkpoint",
            message,
            path=("checkpoint", "initial_load_in_hf"),
            help="set checkpoint.initial_load_path or model.hf_assets_path",
        )
    return place(named)


def load_huggingface(
    folder: Place, *, model_config: ModelConfig, engine: Engine, is_quantized: bool = False
) -> None:
    """Copies the weights of a Hugging Face folder into the model, in the model's dtype; quantised ones are expanded before."""
    own = family_module(type(model_config), "huggingface").from_huggingface(
        model_config, read_plain(folder, is_quantized=is_quantized)
    )
    base, _ = split_adapters(engine.tensors(with_optimizer=False))
    copy_into(base, {MODEL_PREFIX + name: tensor for name, tensor in own.items()})
    log.info("took the initial weights from %s", folder)


def read_plain(folder: Place, *, is_quantized: bool) -> dict[str, Tensor]:
    """The weights of a Hugging Face folder, expanded where they are quantised. Raises where the folder says otherwise than the recipe."""
    weights = read_folder(folder)
    quantization = agreed_quantization(folder, is_quantized=is_quantized)
    return weights if quantization is None else expanded(weights, quantization)


def named_checkpoint(config: CheckpointConfig, ranks: Ranks) -> Checkpoint:
    """The checkpoint at initial_load_path, which the ranks verify together. Raises a problem where there is none, or it is damaged."""
    assert config.initial_load_path is not None
    named = place(config.initial_load_path)
    checkpoint = ranks.from_first(lambda: find_checkpoint(named, config.folder))
    manifest = ranks.from_first(checkpoint.manifest)
    parts = ranks.together(
        lambda: damage(
            checkpoint.folder, manifest, config.verify, share=ranks.rank, shares=ranks.count
        )
    )
    reasons = [reason for part in parts for reason in part]
    if reasons:
        raise fail(
            "checkpoint",
            f"{checkpoint.folder} cannot be used: {'; '.join(reasons)}",
            path=INITIAL_LOAD_PATH,
        )
    return checkpoint


def find_checkpoint(path: Place, folder: str) -> Checkpoint:
    """The checkpoint at `path`: a folder step-N, or the latest one of a run directory or of its checkpoint folder."""
    checkpoint = Checkpoint(path)
    if checkpoint.is_complete():
        return checkpoint
    inside = {folder, CheckpointConfig().folder} - {name for name in (folder,) if is_address(name)}
    for candidate in (path, *(path / name for name in sorted(inside))):
        store = CheckpointStore(folder=candidate)
        latest = store.latest()
        if latest is not None:
            return store.checkpoint(latest)
    message = f"{path} is neither a checkpoint nor a run directory with one"
    raise fail(
        "checkpoint",
        message,
        path=INITIAL_LOAD_PATH,
        help="name a folder step-N, or set checkpoint.initial_load_in_hf for Hugging Face files",
    )


def load_checkpoint(
    checkpoint: Checkpoint, engine: Engine, config: CheckpointConfig, ranks: Ranks
) -> None:
    """Fills the model with the weights of a checkpoint, in the model's dtype; its optimizer state is left alone."""
    tolerance = Tolerance(
        extra=config.allow_extra,
        cast=True,
        ignore_prefix=OPTIMIZER_PREFIX,
        elsewhere=engine.names_elsewhere(),
    )
    wanted, saved = engine.tensors(with_optimizer=False), checkpoint.layouts()
    base, adapters = split_adapters(wanted)
    if not any(map(is_adapter, saved)):
        # those of a plain model: adapters begin as they were drawn
        wanted = base
    elif all(is_adapter(name) for name in saved if name.startswith(MODEL_PREFIX)):
        wanted = adapters
    # what is read goes into plain memory, and from there into codes
    plain = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype)
        if isinstance(tensor, Packed)
        else tensor
        for name, tensor in wanted.items()
    }
    checkpoint.load_tensors(plain, tolerance=tolerance, ranks=ranks)
    copy_into(
        {name: tensor for name, tensor in wanted.items() if isinstance(tensor, Packed)}, plain
    )
    log.info("took the initial weights from %s", checkpoint.folder)


@torch.no_grad()
def copy_into(own: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Copies each given tensor into the model's tensor of that name."""
    for name, tensor in own.items():
        if given[name] is not tensor:
            fill(tensor, given[name])


@torch.no_grad()
def take_stream(
    weights: Iterable[tuple[str, Tensor]],
    engine: Engine,
    *,
    strict: bool,
    keeps_adapters: bool = False,
) -> None:
    """Copies whole weights, under the model's own names, into the model as they come: each rank its part, in the model's dtypes.

    Raises a problem `checkpoint` for another shape, and where it is strict for a name that is unknown or missing; what came before it is
    in the model by then. Every rank must call it. `keeps_adapters`: those are not among the names.
    """
    own = {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in engine.tensors(with_optimizer=False).items()
    }
    elsewhere = {name.removeprefix(MODEL_PREFIX) for name in engine.names_elsewhere()}
    missing, unknown = {name for name in own if not (keeps_adapters and is_adapter(name))}, []
    for name, tensor in weights:
        if name not in own:
            unknown += [] if name in elsewhere else [name]
            continue
        if own[name].shape != tensor.shape:
            message = f"'{name}' has the shape {list(tensor.shape)}, and the model's has {list(own[name].shape)}"
            raise fail("checkpoint", message, help="take weights of a model of the same sizes")
        fill(own[name], tensor)
        missing.discard(name)
    engine.loaded()
    for names, what in (
        (unknown, "the model knows none called"),
        (sorted(missing), "there is none called"),
    ):
        if names and strict:
            raise fail(
                "checkpoint",
                f"of the weights that were given {what}: {shortened(names)}",
                help="give all of its weights, or strict=False",
            )


def export_huggingface(
    folder: Path,
    *,
    engine: Engine,
    model_config: ModelConfig,
    tokenizer: TokenizerConfig | None,
    dtype_name: str,
    is_writer: bool,
    lora: AdapterConfig | None = None,
) -> None:
    """Writes a folder that transformers opens: config.json, the weights as `dtype_name`, and the tokenizer's files where they are known.

    Adapters become part of the weights beside which they are.
    Every rank must call it, since each may hold a part of the weights; one of them is the writer.
    """
    family = family_module(type(model_config), "huggingface")
    state = huggingface_state(
        engine, model_config, dtype=dtype_named(dtype_name), lora=lora, is_kept=is_writer
    )
    if not is_writer:
        return
    files, texts = huggingface_files(tokenizer, model_config)
    config = family.huggingface_config(model_config, dtype_name)
    stem = stem_of(family)
    write_folder(folder, state, config, files, texts, stem=stem)
    log.info(
        "wrote %s, which %s opens", folder, "transformers" if stem == STEMS[0] else "diffusers"
    )


def huggingface_state(
    engine: Engine,
    model_config: ModelConfig,
    *,
    dtype: torch.dtype | None,
    lora: AdapterConfig | None = None,
    is_kept: bool = True,
) -> dict[str, Tensor]:
    """The whole weights under Hugging Face's names, in host memory, adapters merged; a tied head has no name.

    Empty where `is_kept` is false.

    Every rank must call it. `dtype`: None keeps that of training.
    """
    state: dict[str, Tensor] = {}
    # adapters are merged in the type they were trained in, and rounded once
    for name, tensor in engine.state_dict_stream(dtype=dtype if lora is None else None):
        if is_kept:
            state[name] = tensor.cpu()
    if not is_kept:
        return {}
    if lora is not None:
        state = {
            name: tensor if dtype is None else tensor.to(dtype)
            for name, tensor in merged(state, scale=lora.scale).items()
        }
    found: dict[str, Tensor] = family_module(type(model_config), "huggingface").to_huggingface(
        model_config, state
    )
    return found


def stem_of(family: ModuleType) -> str:
    """What the files of weights are called that a family's `huggingface` module is about: as transformers does, unless it says so."""
    return str(getattr(family, "WEIGHTS_NAME", STEMS[0]))


def huggingface_files(
    tokenizer: TokenizerConfig | None, model_config: ModelConfig
) -> tuple[list[Path], dict[str, bytes]]:
    """What lies beside the weights: the tokenizer's files, and generation_config.json.

    That is the one of the folder that the model came from, else one with the ids of the tokenizer's special tokens, so that
    `generate` knows where a text ends. A model that writes none has neither.
    """
    if model_config.takes != "tokens":
        return [], {}
    files = [] if tokenizer is None else open_folder(tokenizer.folder).files
    given = Path(model_config.hf_assets_path or "") / GENERATION_FILE
    if model_config.hf_assets_path is not None and given.is_file():
        return [*files, given], {}
    ids = {} if tokenizer is None else special_token_ids(tokenizer.folder)
    text = json.dumps(
        {f"{role}_id": ids.get(role) for role in ("bos_token", "eos_token", "pad_token")}, indent=2
    )
    return files, {GENERATION_FILE: f"{text}\n".encode()}
