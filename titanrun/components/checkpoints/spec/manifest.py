"""manifest.json: content of a checkpoint, with size and digest of each file.

It is written last: without it, there is no checkpoint. Torch-free: `titanrun checkpoint ls` reads
manifests only.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from titanrun.components.checkpoints.spec.hashed_file import FileEntry, compute_text_xxh3
from titanrun.components.checkpoints.spec.storage_path import AnyPath, StoragePath
from titanrun.config.json_text import parse_json
from titanrun.config.problems import Problem, ProblemsFound, problem_error

MANIFEST_FILE = "manifest.json"
STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
# raised when the files change so that an older titanrun would misread them
FORMAT = 2

AnyPathT = TypeVar("AnyPathT", Path, StoragePath, AnyPath)
CheckpointScope = Literal["everything", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of a checkpoint, without its tensors.

    Args:
        step: Number of completed optimizer steps.
        holds: Whether it has the whole state of the run or its weights only.
        layout: Number of ranks that saved it, their device, and how they shard the model.
        versions: Versions of the packages that wrote it.
        recipe: SHA-256 of resolved.yaml.
        saved_at: Time of the save, as ISO 8601.
        tensors: Dtype and shape of every tensor by name, as `float32[4, 2]`.
        files: Every other file of the folder by name.
        validation_loss: Validation loss after that step, None if not measured.
        run: Id of the run that saved it, None if unknown.
    """

    step: int
    holds: CheckpointScope
    layout: Mapping[str, Any]
    versions: Mapping[str, str]
    recipe: str
    saved_at: str
    tensors: Mapping[str, str]
    files: Mapping[str, FileEntry]
    validation_loss: float | None = None
    run: str | None = None
    format: int = field(default=FORMAT)

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(entry.size for entry in self.files.values())


KNOWN_KEYS = frozenset(entry.name for entry in fields(Manifest))


def format_manifest(manifest: Manifest) -> str:
    """Return the content of manifest.json, with its digest."""
    content = asdict(manifest)
    return encode_manifest({**content, "digest": compute_text_xxh3(to_canonical_json(content))})


def encode_manifest(content: Mapping[str, Any]) -> str:
    """Return the canonical text of a manifest's content."""
    return json.dumps(content, allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: AnyPath) -> Manifest:
    """Return the manifest of a checkpoint folder.

    Raises:
        ProblemsFound: A problem `checkpoint` if it is missing or cannot be trusted.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        reason = f"it has no {MANIFEST_FILE}" if folder.is_dir() else "folder not found"
        raise problem_error(
            "checkpoint",
            f"{folder} is not a checkpoint: {reason}",
            hint="name a folder step-N that titanrun saved",
        )
    try:
        text = path.read_text(encoding="utf-8")
        content = parse_json(text, parse_constant=_reject_manifest_constant)
    except (OSError, ValueError) as error:
        raise corrupt_file_error(path, str(error)) from error
    if not isinstance(content, dict):
        raise corrupt_file_error(path, "it is not a mapping")
    check_format(path, content)
    # the digest does not cover the spaces between values, but a byte that changed there shows that
    # the disk cannot be trusted either
    if encode_manifest(content) != text or content.pop("digest", None) != compute_text_xxh3(
        to_canonical_json(content)
    ):
        raise corrupt_file_error(path, "its content has changed")
    try:
        # further keys are those of a newer version, which did not need another format for them
        return Manifest(
            **{
                **{name: content[name] for name in content if name in KNOWN_KEYS},
                "files": {
                    validate_file_name(name): FileEntry(**entry)
                    for name, entry in content["files"].items()
                },
            }
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise corrupt_file_error(path, f"it is not a manifest: {error}") from error


def try_read_manifest(folder: AnyPath) -> tuple[Manifest | None, list[str]]:
    """Return the manifest of a checkpoint folder, or why it cannot be trusted.

    Raises:
        OtherFormatError: Another version of titanrun wrote it.
    """
    try:
        return read_manifest(folder), []
    except OtherFormatError:
        raise
    except ProblemsFound as error:
        return None, [problem.message for problem in error.problems]


class OtherFormatError(ProblemsFound):
    """Raised if another version of titanrun wrote a checkpoint, which is not damaged."""


def check_format(path: AnyPath, content: Mapping[str, Any]) -> None:
    """Raise OtherFormatError if a manifest has the format of another version of titanrun."""
    written = content.get("format")
    if written == FORMAT or not isinstance(written, int):
        return
    expected = {name: value for name, value in content.items() if name != "digest"}
    if content.get("digest") == compute_text_xxh3(
        to_canonical_json({**expected, "format": FORMAT})
    ):
        # this format, in which the number itself is damaged
        return
    versions = content.get("versions")
    own = versions.get("titanrun") if isinstance(versions, dict) else None
    writer = f"titanrun {own}" if isinstance(own, str) else "the version that saved it"
    raise OtherFormatError(
        [
            Problem(
                "checkpoint",
                f"{path} was written by {'a newer' if written > FORMAT else 'an older'} titanrun: "
                f"it has format {written}, this version reads {FORMAT}",
                hint=f"use {writer}",
            )
        ]
    )


def validate_file_name(name: str) -> str:
    """Return the name of a file in the folder. Raise ValueError if it leads out of it."""
    if Path(name).name != name:
        raise ValueError(f"{name!r} leads out of the folder")
    return name


def to_canonical_json(content: Mapping[str, Any]) -> str:
    """Return the text that the digest of a manifest is computed from."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def list_step_folders(folder: AnyPathT) -> dict[int, AnyPathT]:
    """Return the folders named as checkpoints, by step, ascending, complete or not."""
    if not folder.is_dir():
        return {}
    found = {
        int(match[1]): entry
        for entry in folder.iterdir()
        if (match := STEP_FOLDER.fullmatch(entry.name)) and entry.is_dir()
    }
    return dict(sorted(found.items()))


def is_checkpoint(folder: AnyPath) -> bool:
    """Return whether the folder has a manifest."""
    return (folder / MANIFEST_FILE).is_file()


def corrupt_file_error(path: AnyPath, reason: str) -> ProblemsFound:
    """Build the problem of a file that differs from what was written."""
    return problem_error("checkpoint", f"{path} is damaged: {reason}")


def _reject_manifest_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
