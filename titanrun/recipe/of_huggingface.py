"""A recipe for a model that comes as a Hugging Face folder, for commands that need no other."""

import json
import tempfile
from pathlib import Path

from titanrun.config import registry
from titanrun.config.emit import emit
from titanrun.config.problems import fail
from titanrun.config.suggest import listing
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.menu import open_menu
from titanrun.recipe.resolve import Resolved, resolve

CONFIG = "config.json"


def is_huggingface(folder: Path) -> bool:
    """Whether a folder says by itself which model it holds."""
    return (folder / CONFIG).is_file()


def recipe_of(folder: Path) -> Resolved:
    """The recipe of the folder's model and tokenizer. Raises ProblemsFound where no family reads such a model."""
    family = family_of(folder)
    assets = str(folder.resolve())
    data = {
        "version": 1,
        "model": {"name": family, "flavor": "auto", "hf_assets_path": assets},
        "tokenizer": {"name": "huggingface", "path": assets},
        "training": {
            "dataset": {"name": "text", "path": assets},
            "seq_len": 1,
            "mixed_precision_param": "float32",
        },
    }
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / f"{folder.resolve().name}.yaml"
        file.write_text(emit(data), encoding="utf-8")
        return resolve(str(file), environment={})


def family_of(folder: Path) -> str:
    """The name of the family whose models config.json describes."""
    open_menu()
    try:
        written = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found = written["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fail("file", f"{folder / CONFIG} does not say its model_type: {error}") from None
    families = {
        kind: name
        for name, choice in registry.choices(ModelConfig).items()
        for kind in choice.huggingface_types
    }  # type: ignore[attr-defined]
    if found not in families:
        raise fail(
            "file",
            f"no family reads models of type '{found}'",
            help=f"those that are read: {listing(sorted(families))}",
        )
    return families[found]
