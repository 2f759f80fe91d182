"""Commits of the datasets that recipes read from the Hub without a revision.

A command that may use the network records the commit of `main` in the user's cache. Resolving a
recipe reads it there, so that resolved.yaml holds the commit and a resumed run asks nobody.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from titanrun.components.data.spec.data_files import SUFFIXES
from titanrun.config.problems import DataPath
from titanrun.config.tree import Node, iter_nodes
from titanrun.models.shared.huggingface_config import find_named_repository
from titanrun.recipe.resolving.hub_models import (
    COMMIT,
    HUB_PREFIX,
    HubModel,
    get_reference_file,
)

REVISION, REPOSITORY = "revision", "repo"
HAVE_COMMITS = ("c4", "c4_validation")
"""Datasets whose default revision is a commit."""


def find_hub_dataset(name: str) -> str | None:
    """Return the OWNER/NAME of a dataset on the Hub, None for a path of this machine."""
    word = name.removeprefix(HUB_PREFIX)
    return None if Path(word).suffix in SUFFIXES else find_named_repository(word)


def iter_datasets_without_revision(tree: Node) -> Iterator[tuple[DataPath, str]]:
    """Yield the path and the repository of each dataset on the Hub that has no revision."""
    for path, node in iter_nodes(tree):
        repository = find_text(node, REPOSITORY)
        if repository is not None and is_without_revision(node):
            yield path, repository


def is_without_revision(node: Node) -> bool:
    """Return whether a section of a dataset leaves its revision to the Hub."""
    assert isinstance(node.value, dict)
    revision = node.value.get(REVISION)
    is_open = revision is None or revision.value is None
    return is_open and find_text(node, "name") not in HAVE_COMMITS


def find_text(node: Node, key: str) -> str | None:
    """Return the text at a key of a section, None if it has none."""
    found = node.value.get(key) if isinstance(node.value, dict) else None
    return found.value if found is not None and isinstance(found.value, str) else None


def get_dataset_reference(repository: str) -> HubModel:
    """Return the branch main of a dataset: the Hub keeps datasets apart from models."""
    return HubModel(f"datasets/{repository}")


def find_dataset_commit(repository: str, environment: Mapping[str, str]) -> str | None:
    """Return the commit that main had when the Hub was last asked, None if it never was."""
    file = get_reference_file(get_dataset_reference(repository), environment)
    try:
        commit = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def record_dataset_commit(repository: str, commit: str, environment: Mapping[str, str]) -> None:
    """Record which commit main of a dataset is."""
    file = get_reference_file(get_dataset_reference(repository), environment)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{commit}\n", encoding="utf-8")


def add_dataset_commits(tree: Node, environment: Mapping[str, str]) -> Node:
    """Return the tree with the recorded commit in each dataset that has no revision."""
    if isinstance(tree.value, list):
        return replace(tree, value=[add_dataset_commits(item, environment) for item in tree.value])
    if not isinstance(tree.value, dict):
        return tree
    entries = {key: add_dataset_commits(item, environment) for key, item in tree.value.items()}
    repository = find_text(tree, REPOSITORY)
    if repository is not None and is_without_revision(tree):
        commit = find_dataset_commit(repository, environment)
        if commit is not None:
            entries[REVISION] = Node(commit, tree.value[REPOSITORY].origin)
    return replace(tree, value=entries)
