"""manifest.json: what a checkpoint holds, and size and digest of each of its files. It is written last: without it there is no checkpoint.

No torch here: `titanrun checkpoint ls` reads manifests only.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from titanrun.components.checkpoints.addresses import Address, Place, size_of
from titanrun.components.checkpoints.digested_file import FileEntry, digest_of, text_digest
from titanrun.config.problems import ProblemsFound, fail

MANIFEST_FILE = "manifest.json"
STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
# raised when the files change so that an older titanrun would misread them
FORMAT = 2
# files up to this size are read whatever the policy is
SMALL_BYTES = 1024**2

AnyPlace = TypeVar("AnyPlace", Path, Address, Place)
Holds = Literal["everything", "model"]
Verify = Literal["always", "sampled", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known about a checkpoint without reading its tensors.

    Args:
        step: optimizer steps done.
        holds: all of the run's state, or its weights only.
        layout: the ranks that saved it, and how they split the model.
        versions: of the packages that wrote it.
        recipe: sha256 of resolved.yaml.
        saved_at: when, as ISO 8601.
        tensors: type and shape of every tensor by name, as `float32[4, 2]`.
        files: every other file of the folder by name.
        validation_loss: measured after that very step; None where none was.
    """

    step: int
    holds: Holds
    layout: Mapping[str, Any]
    versions: Mapping[str, str]
    recipe: str
    saved_at: str
    tensors: Mapping[str, str]
    files: Mapping[str, FileEntry]
    validation_loss: float | None = None
    format: int = field(default=FORMAT)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files.values())


def manifest_text(manifest: Manifest) -> str:
    """The content of manifest.json, with a digest of its own."""
    content = asdict(manifest)
    return written({**content, "digest": text_digest(canonical(content))})


def written(content: Mapping[str, Any]) -> str:
    """The one way in which a manifest's content is written."""
    return json.dumps(content, allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: Place) -> Manifest:
    """The manifest of a checkpoint folder. Raises a problem `checkpoint` where there is none, or none that can be trusted."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        reason = f"it has no {MANIFEST_FILE}" if folder.is_dir() else "there is no such folder"
        raise fail(
            "checkpoint",
            f"{folder} is no checkpoint: {reason}",
            help="name a folder step-N that titanrun saved",
        )
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text, parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise damaged(path, "it is no mapping")
    if content.get("format") != FORMAT and isinstance(content.get("format"), int):
        raise fail(
            "checkpoint",
            f"{path} was written by another version of titanrun",
            help="use the version that saved it",
        )
    # the digest knows nothing of the spaces between values; a byte that changed there came from a disk that is not to be trusted either
    if written(content) != text or content.pop("digest", None) != text_digest(canonical(content)):
        raise damaged(path, "it is not what was written")
    try:
        return Manifest(
            **{
                **content,
                "files": {
                    plain_name(name): FileEntry(**entry) for name, entry in content["files"].items()
                },
            }
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise damaged(path, f"it is no manifest: {error}") from error


def plain_name(name: str) -> str:
    """The name of a file in the folder itself. Raises ValueError for a way out of it."""
    if Path(name).name != name:
        raise ValueError(f"{name!r} leads out of the folder")
    return name


def canonical(content: Mapping[str, Any]) -> str:
    """The text that a manifest's own digest is taken of."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def damage(
    folder: Place, manifest: Manifest, policy: Verify, *, share: int = 0, shares: int = 1
) -> list[str]:
    """What is wrong with the files of a checkpoint, in words; empty where they are as they were saved.

    Args:
        folder: the checkpoint.
        manifest: what it should be.
        policy: always reads every byte, sampled the small files and one of the others, off looks at sizes only.
        share: which part of the files this rank reads, of `shares`.
    """
    mine = sorted(manifest.files.items())[share::shares]
    read = _to_read(dict(mine), policy)
    found = []
    for name, entry in mine:
        path = folder / name
        try:
            size = size_of(path)
            if size != entry.size:
                found.append(f"{name} has {size} bytes, {entry.size} were saved")
            elif name in read and digest_of(path) != entry.xxh3_128:
                found.append(f"{name} has other bytes than were saved")
        except OSError as error:
            found.append(f"{name} cannot be read: {(error.strerror or str(error)).lower()}")
    return found


def step_folders(folder: AnyPlace) -> dict[int, AnyPlace]:
    """The folders that are named as checkpoints, by step, ascending; whether they are whole is not looked at."""
    if not folder.is_dir():
        return {}
    found = {
        int(match[1]): entry
        for entry in folder.iterdir()
        if (match := STEP_FOLDER.fullmatch(entry.name)) and entry.is_dir()
    }
    return dict(sorted(found.items()))


def is_checkpoint(folder: Place) -> bool:
    """Whether the folder has a manifest."""
    return (folder / MANIFEST_FILE).is_file()


def damaged(path: Place, reason: str) -> ProblemsFound:
    """The problem of a file that cannot be what was written."""
    return fail("checkpoint", f"{path} is damaged: {reason}")


def _to_read(files: Mapping[str, FileEntry], policy: Verify) -> Iterable[str]:
    if policy == "off":
        return ()
    if policy == "always":
        return files
    small = [name for name, entry in files.items() if entry.size <= SMALL_BYTES]
    large = [name for name in files if name not in small]
    # not from the run's own generators, which a resume may not move
    return [*small, *([secrets.choice(large)] if large else [])]


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
