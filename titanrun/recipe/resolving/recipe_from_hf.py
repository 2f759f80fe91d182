"""Recipes for Hugging Face folders, for commands that need no other recipe."""

import tempfile
from pathlib import Path

from titanrun.config import registry
from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_yaml
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.huggingface_config import CONFIG
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe

USUAL_SEQ_LEN = 2048
CLASSIFIER = "ForSequenceClassification"
LENGTH_KEY = "max_position_embeddings"


def resolve_from_huggingface(folder: Path) -> Resolved:
    """Return the recipe of the folder's model and tokenizer.

    Raises:
        ProblemsFound: If no model family reads such a model, or it gives scores.
    """
    family = get_model_family(folder)
    check_predicts_tokens(folder)
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


def check_predicts_tokens(folder: Path) -> None:
    """Raise a problem if the model has a head of its own in place of that of a language model."""
    named = parse_json((folder / CONFIG).read_text(encoding="utf-8")).get("architectures")
    names = [str(name) for name in (named if isinstance(named, list) else ())]
    scoring = [name for name in names if name.endswith(CLASSIFIER)]
    if scoring:
        raise problem_error(
            "usage",
            f"{folder} is a {scoring[0]}: a reward model gives scores, not replies",
            hint="use the run that trained it in rl.rewards: [{name: model, path: RUN}]",
        )


def read_usual_seq_len(folder: Path) -> int:
    """Return the usual sequence length, or the context in config.json where that is shorter."""
    return min(USUAL_SEQ_LEN, read_context(folder) or USUAL_SEQ_LEN)


def read_context(folder: Path) -> int | None:
    """Return the context in config.json, None if it has none."""
    try:
        found = parse_json((folder / CONFIG).read_text(encoding="utf-8")).get(LENGTH_KEY)
    except (OSError, ValueError, AttributeError):
        return None  # the family says what is wrong with the file
    return found if type(found) is int and found > 0 else None


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
