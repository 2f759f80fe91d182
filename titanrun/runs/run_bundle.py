"""Bundle of a run: one archive with everything to train it again, except data and weights.

These are named by their digests.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.recipe.plugin_files import PLUGIN_FOLDER, PLUGIN_SUFFIX
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RESOLVED,
    RUN_JSON,
    SOURCES,
    STATUS,
    TAGS,
    get_starts,
    read_json_or_empty,
)

MANIFEST_FILE = "bundle.json"
REQUIREMENTS_FILE = "environment.txt"
# uncommitted changes at a start; run.json says at which
PATCH_FILE = re.compile(r"git-[0-9a-f]{16}\.diff")
# plug-in files, which run on another machine only once its user has allowed them
COPIED_PLUGIN = re.compile(rf"{PLUGIN_FOLDER}/[A-Za-z_]\w*{re.escape(PLUGIN_SUFFIX)}", re.ASCII)
FORMAT = 1
REQUIRED_FILES = (RESOLVED, RUN_JSON, METRICS)
OPTIONAL_FILES = (SOURCES, STATUS, TAGS)
# fixed time, so that the same run makes the same bytes; zip has no earlier time
ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def pack_bundle(run: Path, out: Path) -> dict[str, bytes]:
    """Write the bundle of a run directory and return its files by name.

    Raises ProblemsFound if the run lacks a required file.
    """
    missing = [name for name in REQUIRED_FILES if not (run / name).is_file()]
    if missing:
        raise problem_error(
            "file",
            f"'{run}' has no {' and no '.join(missing)}, which a bundle needs",
            hint="pass a run directory",
        )
    if out.exists():
        raise problem_error(
            "file", f"'{out}' exists and is never overwritten", hint="pass a new file name with -o"
        )
    files = {
        name: (run / name).read_bytes()
        for name in (*REQUIRED_FILES, *OPTIONAL_FILES)
        if (run / name).is_file()
    }
    start = get_last_start(read_json_or_empty(run / RUN_JSON))
    files[REQUIREMENTS_FILE] = format_requirements(start).encode()
    files |= {
        path.name: path.read_bytes() for path in run.iterdir() if PATCH_FILE.fullmatch(path.name)
    }
    files |= {
        f"{PLUGIN_FOLDER}/{path.name}": path.read_bytes()
        for path in sorted((run / PLUGIN_FOLDER).glob(f"*{PLUGIN_SUFFIX}"))
        if COPIED_PLUGIN.fullmatch(f"{PLUGIN_FOLDER}/{path.name}")
    }
    about = {
        "format": FORMAT,
        "run": run.resolve().name,
        "inputs": start.get("inputs", []),
        "files": compute_digests(files),
    }
    files[MANIFEST_FILE] = (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()
    part = out.with_name(f"{out.name}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, ZIP_TIME), files[name], zipfile.ZIP_DEFLATED)
    part.replace(out)
    return files


def unpack_bundle(file: Path, folder: Path) -> Path:
    """Unpack a bundle into a run directory inside `folder` and return that directory.

    Raises ProblemsFound if the bundle is damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            about = parse_json(archive.read(MANIFEST_FILE))
            known = (*REQUIRED_FILES, *OPTIONAL_FILES, REQUIREMENTS_FILE)
            names = [name for name in about["files"] if name in known or is_extra_file(name)]
            files = {name: archive.read(name) for name in names}
            run = Path(about["run"]).name.replace("\0", "").lstrip(".")
            is_newer = int(about["format"]) > FORMAT
    except (
        OSError,
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        ValueError,
        EOFError,
        RecursionError,
        RuntimeError,
        zlib.error,
    ) as error:
        raise problem_error(
            "file",
            f"'{file}' is not a bundle of a run: {error}",
            hint="pass a file written by titanrun bundle",
        ) from None
    if is_newer:
        raise problem_error(
            "file",
            f"'{file}' was written by a newer titanrun: it has format {about['format']}, this "
            f"version reads {FORMAT}",
            hint="use the version that wrote it",
        )
    wrong = [
        name for name, digest in compute_digests(files).items() if about["files"][name] != digest
    ]
    if wrong or not set(REQUIRED_FILES) <= files.keys():
        raise problem_error(
            "file",
            f"'{file}' is damaged: {', '.join(wrong) or 'files are missing'}",
            hint="create it again from the run",
        )
    target = folder / (run or "run")
    target.mkdir(mode=0o700, parents=True)
    write_files(target, files)
    return target


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their names relative to a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        (folder / name).write_bytes(content)


def is_extra_file(name: str) -> bool:
    """Return whether a bundle may hold a file of this name beside those of every run."""
    return any(pattern.fullmatch(name) for pattern in (PATCH_FILE, COPIED_PLUGIN))


def compute_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """Compute the SHA-256 of each file, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


def get_last_start(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the last start of a run."""
    starts = get_starts(record)
    return starts[-1] if starts else {}


def format_requirements(start: Mapping[str, Any]) -> str:
    """Format the packages of a start for `pip install --requirement`."""
    environment = start.get("environment") or {}
    head = [
        f"# Python {environment.get('python', 'unknown')}, {environment.get('platform', 'unknown')}"
    ]
    git = environment.get("git") or {}
    head += (
        [
            f"# the working directory at git commit {git['commit']}"
            + (f", with {git['diff']}" if git.get("diff") else "")
        ]
        if git
        else []
    )
    packages = environment.get("packages") or {}
    return "".join(
        f"{line}\n"
        for line in [*head, *(f"{name}=={version}" for name, version in sorted(packages.items()))]
    )
