"""A recipe for a checkpoint of torchtitan, which says nothing of its model but the names and shapes of its parameters."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.addresses import Place
from titanrun.components.checkpoints.checkpoint import tensor_files
from titanrun.config import registry
from titanrun.config.emit import emit
from titanrun.config.problems import fail
from titanrun.config.suggest import listing
from titanrun.distributed.meta_device import on_meta_device
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.flavors import flavors
from titanrun.recipe.menu import open_menu
from titanrun.recipe.resolve import Resolved, resolve

Shapes = Mapping[str, tuple[int, ...]]
LAYER = re.compile(r"layers\.(\d+)\.")
EMBEDDING = "tok_embeddings.weight"
# families that torchtitan does not have
OURS = ("decoder", "transformers")
# choices that leave the parameters as they are
WITHOUT_WEIGHTS = ("attention",)


def recipe_of(source: Place) -> Resolved:
    """The recipe of the flavor whose parameters are those of the checkpoint. Raises a problem where none has them, or several do."""
    open_menu()
    saved = {
        name: tuple(layout.shape)
        for name, layout in tensor_files().read_layouts(source, others_allowed=True).items()
    }
    found = [(family, flavor) for family, flavor in alike(saved) if fits(saved, family, flavor)]
    help = "name the recipe of its model, before the folder to write"
    if not found:
        raise fail(
            "checkpoint",
            f"the parameters in {source} are those of no flavor that titanrun knows",
            help=help,
        )
    if len(found) > 1:
        names = listing([f"{family} {flavor}" for family, flavor in found], last="and")
        raise fail("checkpoint", f"the parameters in {source} are those of {names}", help=help)
    return of_flavor(*found[0], vocab_size=saved[EMBEDDING][0], source=source)


def alike(saved: Shapes) -> Iterator[tuple[str, str]]:
    """Families and flavors of the width and the number of layers that the parameters show; one of those that differ in no parameter."""
    layers = len({match[1] for name in saved if (match := LAYER.match(name))})
    width = saved.get(EMBEDDING, (0, 0))[1]
    for family in (name for name in registry.choices(ModelConfig) if name not in OURS):
        seen: list[dict[str, Any]] = []
        for flavor, sizes in flavors(family).items():
            weights = {key: value for key, value in sizes.items() if key not in WITHOUT_WEIGHTS}
            if (sizes.get("dim"), sizes.get("n_layers")) == (width, layers) and weights not in seen:
                seen.append(weights)
                yield family, flavor


def fits(saved: Shapes, family: str, flavor: str) -> bool:
    """Whether a flavor's parameters have the names and shapes of what is saved, which may hold more: an optimizer, counters."""
    model = of_flavor(family, flavor, vocab_size=saved[EMBEDDING][0]).run.model
    with on_meta_device():
        built = model.builder()(model, seq_len=1)
    wanted = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    extra = [name for name in saved if name not in wanted and LAYER.match(name)]
    return not extra and all(saved.get(name) == shape for name, shape in wanted.items())


def of_flavor(
    family: str, flavor: str, *, vocab_size: int, source: Place | None = None
) -> Resolved:
    """The recipe of a flavor with the vocabulary of a checkpoint."""
    data: dict[str, Any] = {
        "version": 1,
        "model": {"name": family, "flavor": flavor, "vocab_size": vocab_size},
        # documents are told apart by its end-of-text tokens in some flavors; it is named and not read
        "tokenizer": {"name": "huggingface", "path": "tokenizer"},
        "training": {
            "dataset": {"name": "tokens", "path": "tokens.npy"},
            "seq_len": 1,
            "mixed_precision_param": "float32",
        },
    }
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / f"{'model' if source is None else source.name}.yaml"
        file.write_text(emit(data), encoding="utf-8")
        return resolve(str(file), environment={})
