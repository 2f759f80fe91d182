"""Models that recipes name as `hub:OWNER/NAME@REVISION`, and their folders in the user's cache.

A command that may use the network fills the cache. Everything else reads it, so that resolving a
recipe never asks the Hub. A resolved recipe holds the folder, whose name is the commit.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from titanrun.components.data.spec.hub_advice import (
    OFFLINE_VARIABLE,
    advise_model,
    is_set_offline,
)
from titanrun.config.json_text import parse_json
from titanrun.config.near_path import suggest_near_path
from titanrun.config.problems import DataPath, Problem, problem_error
from titanrun.config.tree import Node, find_node, iter_nodes, replace_text
from titanrun.models.shared.huggingface_config import find_named_repository

HUB_PREFIX = "hub:"
HUB_NAME = re.compile(r"hub:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^@\s]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
CACHED_FOLDER = re.compile(r"/hub/(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)/(?P<commit>[0-9a-f]{40})$")
OWNERS = {
    "Qwen": "Qwen",
    "Llama-": "meta-llama",
    "DeepSeek-": "deepseek-ai",
    "gpt-oss-": "openai",
    "gemma-": "google",
    "Mistral-": "mistralai",
    "Phi-": "microsoft",
}
"""Owners on the Hub of the models whose names begin with a word."""
RECORD_FILE = "download.json"
"""Written after the last file of a download, with the parts that were asked for."""
CONFIG, TOKENIZER, WEIGHTS = "config", "tokenizer", "weights"
TEACHER: DataPath = ("loss", "teacher")
RL_TEACHER: DataPath = ("rl", "teacher")
MODEL_FIELDS: tuple[DataPath, ...] = (
    ("model", "hf_assets_path"),
    ("tokenizer", "path"),
    TEACHER,
    RL_TEACHER,
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the Hub: OWNER/NAME, and a branch, tag or commit of it."""

    repository: str
    revision: str = "main"

    @property
    def text(self) -> str:
        """How a recipe names it."""
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{HUB_PREFIX}{self.repository}{at}"


def parse_hub_name(
    text: str, path: DataPath = (), *, what: Literal["model", "dataset"] = "model"
) -> HubModel | None:
    """Return the model or dataset that a value names, None if it is no name of the Hub.

    Raises:
        ProblemsFound: at `path` if the name is incomplete.
    """
    if not text.startswith(HUB_PREFIX):
        return None
    found = HUB_NAME.fullmatch(text)
    if found is None:
        raise problem_error(
            "file",
            f"'{text}' is not a {what} on the Hub",
            path=path,
            hint="write hub:OWNER/NAME or hub:OWNER/NAME@REVISION",
        )
    return HubModel(found["repository"], found["revision"] or "main")


def get_user_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder of what titanrun keeps for all runs of a user."""
    cache = environment.get("TITANRUN_CACHE")
    home = Path(environment.get("HOME") or "~").expanduser()
    return (Path(cache).expanduser() if cache else home / ".cache" / "titanrun").absolute()


def get_hub_folder(repository: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of all commits of a model in the cache."""
    return get_user_cache(environment) / "hub" / repository.replace("/", "--")


def get_reference_file(model: HubModel, environment: Mapping[str, str]) -> Path:
    """Return the file with the commit that a branch or tag had when it was last fetched."""
    folder = get_hub_folder(model.repository, environment)
    return folder / "refs" / quote(model.revision, safe="")


def find_model_folder(
    model: HubModel, environment: Mapping[str, str], *, part: str = CONFIG
) -> Path | None:
    """Return the folder with that part of the model's files, None if it was not fetched."""
    commit = model.revision
    if COMMIT.fullmatch(commit) is None:
        try:
            reference = get_reference_file(model, environment)
            commit = reference.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
    folder = get_hub_folder(model.repository, environment) / commit
    try:
        parts = parse_json((folder / RECORD_FILE).read_text(encoding="utf-8"))["parts"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if part in parts else None


def find_repository(folder: str | None) -> str | None:
    """Return the OWNER/NAME that a folder was downloaded from, None for another folder."""
    if folder is None:
        return None
    try:
        record = parse_json((Path(folder) / RECORD_FILE).read_text(encoding="utf-8"))
        return str(record["repository"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_fetching_command(folder: str) -> str | None:
    """Return the command that fetches a missing folder of a cache, None for another folder.

    The recipe of a run on another machine names such folders.
    """
    found = CACHED_FOLDER.search(folder)
    if found is None:
        return None
    command = f"titanrun download {HUB_PREFIX}{found['owner']}/{found['name']}@{found['commit']}"
    return f"{command} -o {folder}"


def suggest_fetching(folder: str) -> str:
    """Return how to get the model whose folder is missing.

    The name may be a misspelling of another folder. The recipe may name the model by its name on
    the Hub instead of by a folder.
    """
    command = find_fetching_command(folder)
    if command is not None:
        return command
    meant = suggest_near_path(folder, only_folders=True)
    if meant is not None:
        return f"{meant} a model of the Hub is written as hub:OWNER/NAME"
    repository = find_named_repository(folder) or guess_repository(Path(folder).name)
    return (
        f"titanrun download {repository} -o {folder} fetches it; or write hub:{repository} instead "
        "of the folder, and titanrun train fetches it"
    )


def guess_repository(name: str) -> str:
    """Return the OWNER/NAME of a model whose owner is known by its name."""
    owner = next((owner for word, owner in OWNERS.items() if name.startswith(word)), None)
    return f"{owner}/{name}" if owner else "OWNER/NAME"


def iter_hub_models(tree: Node) -> Iterator[HubModel]:
    """Yield the models that a recipe or its stages name, those of valid names only."""
    for path, node in iter_nodes(tree):
        if path[-2:] in MODEL_FIELDS and isinstance(node.value, str):
            found = HUB_NAME.fullmatch(node.value)
            if found is not None:
                yield HubModel(found["repository"], found["revision"] or "main")


def replace_hub_names(
    tree: Node, environment: Mapping[str, str], *, needs_tokenizer: bool = False
) -> tuple[Node, list[Problem]]:
    """Return the tree with the folder of each model that was fetched, and problems of the others.

    A rule reports a teacher that was not fetched.
    """
    part = TOKENIZER if needs_tokenizer else CONFIG
    problems: list[Problem] = []
    for path in MODEL_FIELDS:
        node = find_node(tree, path)
        if node is None or not isinstance(node.value, str):
            continue
        if not node.value.startswith(HUB_PREFIX):
            continue
        found = HUB_NAME.fullmatch(node.value)
        model = found and HubModel(found["repository"], found["revision"] or "main")
        folder = model and find_model_folder(model, environment, part=part)
        if folder is not None:
            tree = replace_text(tree, path, str(folder))
        elif path not in (TEACHER, RL_TEACHER):
            is_offline = is_set_offline(environment)
            problems.append(build_missing_problem(node, path, model, is_offline=is_offline))
    return tree, problems


def build_missing_problem(
    node: Node, path: DataPath, model: HubModel | None, *, is_offline: bool
) -> Problem:
    """Build the problem of a name that is wrong, or of a model that was not fetched."""
    text = str(node.value)
    if model is None:
        message = f"'{text}' is not a model on the Hub"
        hint = "write hub:OWNER/NAME or hub:OWNER/NAME@REVISION"
        return Problem("file", message, path, node.origin, hint=hint)
    message = f"{text} has not been downloaded"
    hint = (
        advise_model(model.repository, f"unset {OFFLINE_VARIABLE} and run titanrun download {text}")
        if is_offline
        else f"titanrun download {text}; titanrun train does it, too"
    )
    return Problem("file", message, path, node.origin, hint=hint, got=model.text)


def is_missing_model(problem: Problem) -> bool:
    """Return whether a problem is only that a model was not fetched."""
    return (
        problem.code == "file"
        and isinstance(problem.got, str)
        and problem.got.startswith(HUB_PREFIX)
    )
