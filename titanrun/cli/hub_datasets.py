"""Questions to the Hub about the datasets that a recipe reads from it."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from titanrun.cli.hub_models import read_named_tree
from titanrun.cli.messages import print_note
from titanrun.components.data.spec.hub_advice import (
    advise_again,
    advise_dataset,
    is_refused_offline,
    is_unreachable,
)
from titanrun.config.problems import DataPath, Origin, problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.resolving.hub_datasets import (
    find_dataset_commit,
    iter_datasets_without_revision,
    record_dataset_commit,
)

MAIN = "main"
CARD = "README.md"


def record_recipe_datasets(
    file: str, overrides: Sequence[str], options: Namespace, *, should_ask_again: bool = False
) -> int:
    """Record the commit of each dataset that a recipe names without one; return their number.

    Raises:
        ProblemsFound: If the Hub refuses, or cannot be reached.
    """
    tree = read_named_tree(file, overrides)
    named = [] if tree is None else list(iter_datasets_without_revision(tree))
    repositories = {repository: path for path, repository in named}
    for repository, path in repositories.items():
        commit = None if should_ask_again else find_dataset_commit(repository, get_environment())
        if commit is None:
            commit = fetch_dataset_commit(repository, MAIN, path=(*path, "repo"))
            record_dataset_commit(repository, commit, get_environment())
            print_note(options, f"{repository}: {MAIN} is commit {commit}")
        else:
            print_note(
                options,
                f"{repository}: commit {commit}, which {MAIN} was when it was last asked for; "
                f"titanrun download {file} asks again",
            )
    return len(repositories)


def fetch_dataset_commit(
    repository: str, revision: str, *, path: DataPath = (), origin: Origin | None = None
) -> str:
    """Ask the Hub for the commit of a branch, a tag or a commit of a dataset.

    Raises:
        ProblemsFound: At `path` and `origin`, with the Hub's reason.
    """
    # imported here: the text tools work without it
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(repository, revision=revision).sha
    except Exception as error:  # also errors of its HTTP client, a package that varies by version
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        is_offline = is_refused_offline(error)
        raise problem_error(
            "file",
            f"the commit of '{repository}' at '{revision}' is not known here, and HF_HUB_OFFLINE "
            "is set"
            if is_offline
            else f"the Hub names no commit of '{repository}' at '{revision}': {reason}",
            path=path,
            origin=origin,
            hint=advise_dataset(repository, None, advise_again(is_offline=is_offline))
            if is_unreachable(error)
            else "check repo and revision; HF_TOKEN opens gated datasets",
        ) from error
    assert commit is not None, "the Hub returns a commit with every revision"
    return str(commit)


def fetch_dataset_card(repository: str, commit: str, options: Namespace) -> Mapping[str, Any]:
    """Return the metadata of a dataset's card; if it has none that can be read, say so.

    The file stays in the Hub's cache, where it is found without network.
    """
    from huggingface_hub import DatasetCard, hf_hub_download

    try:
        file = hf_hub_download(repository, CARD, repo_type="dataset", revision=commit)
        card: Mapping[str, Any] = DatasetCard.load(file).data.to_dict()
    except Exception as error:  # also errors of its HTTP client; init works without a card
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        print_note(
            options,
            f"the dataset card of '{repository}' cannot be read ({reason}), so subset, split and "
            "columns are the defaults: check them",
        )
        return {}
    return card
