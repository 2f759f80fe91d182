"""Recipe for a torchtitan checkpoint, inferred from parameter names and shapes."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.checkpoint_reader import import_dcp_io
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config import registry
from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_yaml
from titanrun.config.suggest import format_word_list
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flavors import load_flavors
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe

Shapes = Mapping[str, tuple[int, ...]]
LAYER_PATTERN = re.compile(r"layers\.(\d+)\.")
EMBEDDING_NAME = "tok_embeddings.weight"
# families that torchtitan does not have
TITANRUN_ONLY_FAMILIES = ("decoder", "transformers")
# settings that do not change parameters
WEIGHTLESS_SETTINGS = ("attention",)


def get_torchtitan_recipe(source: AnyPath) -> Resolved:
    """Return the recipe of the flavor whose parameters match the checkpoint.

    Raises:
        ProblemsFound: no flavor matches, or several do.
    """
    register_builtins()
    saved = {
        name: tuple(layout.shape)
        for name, layout in import_dcp_io()
        .read_tensor_metadata(source, allows_other_objects=True)
        .items()
    }
    found = [
        (family, flavor)
        for family, flavor in iter_candidate_flavors(saved)
        if has_matching_parameters(saved, family, flavor)
    ]
    hint = "pass the recipe of its model, before the output folder"
    if not found:
        raise problem_error(
            "checkpoint",
            f"the parameters in {source} match no known flavor",
            hint=hint,
        )
    if len(found) > 1:
        names = format_word_list(
            [f"{family} {flavor}" for family, flavor in found], conjunction="and"
        )
        raise problem_error(
            "checkpoint", f"the parameters in {source} match several flavors: {names}", hint=hint
        )
    return resolve_flavor(*found[0], vocab_size=saved[EMBEDDING_NAME][0], source=source)


def iter_candidate_flavors(saved: Shapes) -> Iterator[tuple[str, str]]:
    """Yield families and flavors with the width and the number of layers of the parameters.

    Of flavors that do not differ in parameters, only the first is yielded.
    """
    layers = len({match[1] for name in saved if (match := LAYER_PATTERN.match(name))})
    width = saved.get(EMBEDDING_NAME, (0, 0))[1]
    for family in (
        name for name in registry.load_choices(ModelConfig) if name not in TITANRUN_ONLY_FAMILIES
    ):
        seen: list[dict[str, Any]] = []
        for flavor, sizes in load_flavors(family).items():
            weights = {key: value for key, value in sizes.items() if key not in WEIGHTLESS_SETTINGS}
            if (sizes.get("dim"), sizes.get("n_layers")) == (width, layers) and weights not in seen:
                seen.append(weights)
                yield family, flavor


def has_matching_parameters(saved: Shapes, family: str, flavor: str) -> bool:
    """Return whether a flavor's parameters have the saved names and shapes.

    The checkpoint may contain more, such as an optimizer or counters.
    """
    model = resolve_flavor(family, flavor, vocab_size=saved[EMBEDDING_NAME][0]).run.model
    with init_on_meta_device():
        built = model.load_builder()(model, seq_len=1)
    wanted = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    extra = [name for name in saved if name not in wanted and LAYER_PATTERN.match(name)]
    return not extra and all(saved.get(name) == shape for name, shape in wanted.items())


def resolve_flavor(
    family: str, flavor: str, *, vocab_size: int, source: AnyPath | None = None
) -> Resolved:
    """Resolve the recipe of a flavor with the vocabulary of a checkpoint."""
    data: dict[str, Any] = {
        "version": 1,
        "model": {"name": family, "flavor": flavor, "vocab_size": vocab_size},
        # never read, but some flavors separate documents by end-of-text tokens of a tokenizer
        "tokenizer": {"name": "huggingface", "path": "tokenizer"},
        "training": {
            "dataset": {"name": "tokens", "path": "tokens.npy"},
            "seq_len": 1,
            "mixed_precision_param": "float32",
        },
    }
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / f"{'model' if source is None else source.name}.yaml"
        file.write_text(to_yaml(data), encoding="utf-8")
        return resolve_recipe(str(file), environment={})
