"""Fetching of the models that a recipe names on the Hub, into the user's cache."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from titanrun.cli.download import (
    FILE_PATTERNS,
    fetch_commit,
    fetch_model_files,
    record_files,
)
from titanrun.cli.messages import print_note
from titanrun.config.problems import ProblemsFound
from titanrun.config.tree import Node
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.resolving.hub_models import (
    COMMIT,
    CONFIG,
    RECORD_FILE,
    TOKENIZER,
    WEIGHTS,
    HubModel,
    find_model_folder,
    get_hub_folder,
    get_reference_file,
    iter_hub_models,
)
from titanrun.recipe.resolving.multi_stage import StageRequiredError
from titanrun.recipe.resolving.read_recipe import read_tree
from titanrun.recipe.rundir.run_files import read_json_or_empty

CONFIG_ONLY = (CONFIG,)
WITHOUT_WEIGHTS = (TOKENIZER, CONFIG)
ALL_PARTS = tuple(FILE_PATTERNS)


def fetch_recipe_models(
    file: str, overrides: Sequence[str], options: Namespace, *, parts: Sequence[str] = ALL_PARTS
) -> bool:
    """Fetch what the cache lacks of the models that a recipe names; return whether it did.

    A recipe that cannot be read names none: resolving it tells why.

    Raises:
        ProblemsFound: If the Hub refuses, or cannot be reached.
    """
    fetched = False
    for model in list_recipe_models(file, overrides):
        wanted = WEIGHTS if WEIGHTS in parts else parts[0]
        if find_model_folder(model, get_environment(), part=wanted) is None:
            fetch_model(model, options, parts=parts)
            fetched = True
    return fetched


def list_recipe_models(file: str, overrides: Sequence[str]) -> list[HubModel]:
    """Return the models that a recipe and its stages name, each once."""
    tree = read_named_tree(file, overrides)
    return [] if tree is None else list(dict.fromkeys(iter_hub_models(tree)))


def read_named_tree(file: str, overrides: Sequence[str]) -> Node | None:
    """Return what a recipe says, with its stages, None if it cannot be read."""
    try:
        tree: Node = read_tree(file, overrides, get_environment()).tree
    except StageRequiredError as staged:
        tree = staged.tree
    except ProblemsFound:
        return None
    return tree


def fetch_model(model: HubModel, options: Namespace, *, parts: Sequence[str] = ALL_PARTS) -> Path:
    """Fetch parts of a model's files into the cache, and return their folder.

    What was fetched before of the same commit stays.
    """
    environment = get_environment()
    commit = fetch_commit(model.repository, model.revision)
    folder = get_hub_folder(model.repository, environment) / commit
    print_note(options, f"fetching {model.text} at commit {commit[:8]} into {folder}")
    known = read_parts(folder)
    parts = [part for part in FILE_PATTERNS if part in parts or part in known]
    patterns = [pattern for part in parts for pattern in FILE_PATTERNS[part]]
    fetch_model_files(model.repository, commit, folder, patterns)
    record_files(folder, model.repository, model.revision, commit, patterns, parts)
    if COMMIT.fullmatch(model.revision) is None:
        reference = get_reference_file(model, environment)
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(f"{commit}\n", encoding="utf-8")
    return folder


def read_parts(folder: Path) -> list[str]:
    """Return the parts of a model that a folder of the cache has."""
    parts = read_json_or_empty(folder / RECORD_FILE).get("parts")
    return parts if isinstance(parts, list) else []
