"""Recipes for Hugging Face folders, for commands that need no other recipe."""

import tempfile
from pathlib import Path

from titanrun.config import registry
from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_yaml
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe

CONFIG = "config.json"

USUAL_SEQ_LEN = 2048
LENGTH_KEY = "max_position_embeddings"


def is_huggingface_folder(folder: Path) -> bool:
    """Return whether a folder has a config.json that describes its model."""
    return (folder / CONFIG).is_file()


def resolve_from_huggingface(folder: Path) -> Resolved:
    """Return the recipe of the folder's model and tokenizer.

    Raises:
        ProblemsFound: If no model family reads such a model.
    """
    family = get_model_family(folder)
    assets = str(folder.resolve())
    data = {
        "version": 1,
        "model": {"name": family, "flavor": "auto", "hf_assets_path": assets},
        "tokenizer": {"name": "huggingface", "path": assets},
        "training": {
            "dataset": {"name": "text", "path": assets},
            "seq_len": read_usual_seq_len(folder),
            "mixed_precision_param": "float32",
        },
    }
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / f"{folder.resolve().name}.yaml"
        file.write_text(to_yaml(data), encoding="utf-8")
        return resolve_recipe(str(file), environment={})


def read_usual_seq_len(folder: Path) -> int:
    """Return the usual sequence length, or the context in config.json where that is shorter."""
    try:
        found = parse_json((folder / CONFIG).read_text(encoding="utf-8")).get(LENGTH_KEY)
    except (OSError, ValueError, AttributeError):
        return USUAL_SEQ_LEN  # the family says what is wrong with the file
    return min(USUAL_SEQ_LEN, found) if type(found) is int and found > 0 else USUAL_SEQ_LEN


def get_model_family(folder: Path) -> str:
    """Return the model family for the model type in config.json."""
    register_builtins()
    try:
        written = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
        found = written["model_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise problem_error(
            "file", f"{folder / CONFIG} does not state its model_type: {error}"
        ) from None
    families = {
        kind: name
        for name, choice in registry.load_choices(ModelConfig).items()
        if issubclass(choice, ModelConfig)
        for kind in choice.huggingface_types
    }
    if found not in families:
        raise problem_error(
            "file",
            f"no model family reads models of type '{found}'",
            hint=f"supported types: {format_word_list(sorted(families))}",
        )
    return families[found]
