"""Verification of a checkpoint against its manifest: bytes, required files, state and layout.

Torch-free: the index of the tensors is read without the classes that it names.
"""

import pickle
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from titanrun.components.checkpoints.spec.hashed_file import FileEntry, compute_file_xxh3
from titanrun.components.checkpoints.spec.manifest import Manifest, corrupt_file_error
from titanrun.components.checkpoints.spec.storage_path import AnyPath, get_file_size
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound

STATE_FILE = "state.json"
RESOLVED_FILE = "resolved.yaml"
INDEX_FILE = ".metadata"
# files up to this size are read under every policy but off
SMALL_BYTES = 1024**2
VerifyMode = Literal["always", "sampled", "off"]

# errors that unpickling damaged bytes may raise
UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    MemoryError,
    RecursionError,
)


def get_rng_file_name(rank: int) -> str:
    """Return the name of the file with the RNG states of one rank."""
    return f"rng-rank-{rank}.safetensors"


def find_damaged_files(
    folder: AnyPath,
    manifest: Manifest,
    policy: VerifyMode,
    *,
    shard_index: int = 0,
    num_shards: int = 1,
) -> list[str]:
    """Return what is wrong with a checkpoint, empty if it is as saved.

    Args:
        folder: Checkpoint.
        manifest: Its expected content.
        policy: always reads every byte, sampled the small files and one of the others, off checks
            names and sizes only.
        shard_index: Index of the share of files that this rank reads. The first share includes
            state and index.
        num_shards: Number of shares.
    """
    mine = sorted(manifest.files.items())[shard_index::num_shards]
    read = _select_files_to_read(dict(mine), policy)
    found = []
    for name, entry in mine:
        path = folder / name
        try:
            size = get_file_size(path)
            if size != entry.size:
                found.append(f"{name} has {size:,} bytes, {entry.size:,} were saved")
            elif name in read and compute_file_xxh3(path) != entry.xxh3_128:
                found.append(f"{name} has other bytes than were saved")
        except OSError as error:
            found.append(f"{name} cannot be read: {(error.strerror or str(error)).lower()}")
    if found or shard_index > 0:
        return found
    return find_content_damage(folder, manifest, policy)


def find_content_damage(folder: AnyPath, manifest: Manifest, policy: VerifyMode) -> list[str]:
    """Return how a manifest contradicts itself, or the state and the index of its folder."""
    ranks = manifest.layout.get("ranks") if isinstance(manifest.layout, Mapping) else None
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        return ["its manifest does not say how many ranks saved it"]
    required = (RESOLVED_FILE, STATE_FILE, INDEX_FILE, *map(get_rng_file_name, range(ranks)))
    missing = [name for name in required if name not in manifest.files]
    if missing:
        return [f"its manifest does not list {missing[0]}"]
    if policy == "off":
        return []
    return [*find_state_damage(folder, manifest), *find_tensor_index_damage(folder, manifest)]


def find_state_damage(folder: AnyPath, manifest: Manifest) -> list[str]:
    """Return what a run could not be resumed from in state.json."""
    try:
        state = read_state(folder)
    except ProblemsFound as error:
        return [problem.message for problem in error.problems]
    train = state.get("train")
    if not isinstance(train, dict) or not isinstance(train.get("step"), int):
        return [f"{STATE_FILE} has no train.step"]
    for name, step in (("step", state["step"]), ("train.step", train["step"])):
        if step != manifest.step:
            return [f"{STATE_FILE} has {name} {step}, its manifest step {manifest.step}"]
    if manifest.holds == "model":
        return []
    engine = state.get("engine")
    if not isinstance(engine, dict) or not isinstance(engine.get("steps_done"), int):
        return [f"{STATE_FILE} has no engine.steps_done"]
    # an engine in an external loop, which has a policy version, has no data position
    if "policy_version" not in engine and not isinstance(state.get("data"), dict):
        return [f"{STATE_FILE} has no data"]
    return []


def find_tensor_index_damage(folder: AnyPath, manifest: Manifest) -> list[str]:
    """Return which shards or tensors of the index the manifest does not list."""
    try:
        with (folder / INDEX_FILE).open("rb") as file:
            index = vars(IndexReader(file).load())
        places = [vars(place).get("relative_path") for place in index["storage_data"].values()]
        tensors = set(index["state_dict_metadata"])
    except OSError as error:
        return [f"{INDEX_FILE} cannot be read: {(error.strerror or str(error)).lower()}"]
    except UNPICKLING_ERRORS as error:
        return [f"{INDEX_FILE} is not an index of tensors: {type(error).__name__}"]
    unlisted = sorted({str(place) for place in places if place not in manifest.files})
    if unlisted:
        return [f"its manifest does not list {unlisted[0]}, which {INDEX_FILE} names"]
    if tensors != set(manifest.tensors):
        return [f"its manifest and {INDEX_FILE} name different tensors"]
    return []


def read_state(folder: AnyPath) -> dict[str, Any]:
    """Return the state of the run in a checkpoint, with `step`.

    Raises:
        ProblemsFound: A problem `checkpoint` if the file cannot be read or has no step.
    """
    path = folder / STATE_FILE
    try:
        state = parse_json(path.read_text(encoding="utf-8"), parse_constant=_reject_constant)
    except (OSError, ValueError) as error:
        raise corrupt_file_error(path, str(error)) from error
    if not isinstance(state, dict) or not isinstance(state.get("step"), int):
        raise corrupt_file_error(path, "it has no step")
    return state


class IndexPart:
    """Stand-in for every object in the index: it keeps attributes, and does nothing."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


class IndexReader(pickle.Unpickler):
    """Unpickler of a checkpoint index that imports and calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for every class and function."""
        return IndexPart


def _select_files_to_read(files: Mapping[str, FileEntry], policy: VerifyMode) -> Iterable[str]:
    if policy == "off":
        return ()
    if policy == "always":
        return files
    small = [name for name, entry in files.items() if entry.size <= SMALL_BYTES]
    large = [name for name in files if name not in small]
    # not from the run's own RNGs, which a resume must not advance
    return [*small, *([secrets.choice(large)] if large else [])]


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
