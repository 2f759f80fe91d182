"""One file with all that a run can be trained again from, but its data and weights, which it names by their digests."""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.config.problems import fail
from titanrun.recipe.run_files import METRICS, RESOLVED, RUN_JSON, SOURCES, STATUS, TAGS, read_json

LIST = "bundle.json"
LOCK = "environment.txt"
# what was not committed at a start; run.json says at which
PATCH = re.compile(r"git-[0-9a-f]{16}\.diff")
FORMAT = 1
NEEDED = (RESOLVED, RUN_JSON, METRICS)
OPTIONAL = (SOURCES, STATUS, TAGS)
# the same run makes the same bytes; zip knows no earlier time
TIME = (1980, 1, 1, 0, 0, 0)


def pack(run: Path, out: Path) -> dict[str, bytes]:
    """Write the bundle of a run directory. Gives its files by name. Raises ProblemsFound where the run lacks what it needs."""
    missing = [name for name in NEEDED if not (run / name).is_file()]
    if missing:
        raise fail(
            "file",
            f"'{run}' has no {' and no '.join(missing)}: nothing to make a bundle of",
            help="name a run directory",
        )
    if out.exists():
        raise fail(
            "file", f"'{out}' exists and is never written over", help="name something new with -o"
        )
    files = {
        name: (run / name).read_bytes() for name in (*NEEDED, *OPTIONAL) if (run / name).is_file()
    }
    start = last_start(read_json(run / RUN_JSON))
    files[LOCK] = lock_text(start).encode()
    files |= {path.name: path.read_bytes() for path in run.iterdir() if PATCH.fullmatch(path.name)}
    about = {
        "format": FORMAT,
        "run": run.resolve().name,
        "inputs": start.get("inputs", []),
        "files": digests(files),
    }
    files[LIST] = (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()
    part = out.with_name(f"{out.name}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, TIME), files[name], zipfile.ZIP_DEFLATED)
    part.replace(out)
    return files


def unpack(file: Path, folder: Path) -> Path:
    """Put the files of a bundle into a run directory inside `folder`. Gives it. Raises ProblemsFound where it is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            about = json.loads(archive.read(LIST))
            known = (*NEEDED, *OPTIONAL, LOCK)
            names = [name for name in about["files"] if name in known or PATCH.fullmatch(name)]
            files = {name: archive.read(name) for name in names}
            run = Path(about["run"]).name
    except (
        OSError,
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        ValueError,
        EOFError,
        zlib.error,
    ) as error:
        raise fail(
            "file",
            f"'{file}' is no bundle of a run: {error}",
            help="name what titanrun bundle wrote",
        ) from None
    wrong = [name for name, digest in digests(files).items() if about["files"][name] != digest]
    if wrong or not set(NEEDED) <= files.keys():
        raise fail(
            "file",
            f"'{file}' is damaged: {', '.join(wrong) or 'files are missing'}",
            help="make it again from the run",
        )
    target = folder / (run or "run")
    target.mkdir(parents=True)
    for name, content in files.items():
        (target / name).write_bytes(content)
    return target


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


def last_start(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a run was started the last time."""
    starts = [start for start in record.get("starts") or [] if isinstance(start, dict)]
    return starts[-1] if starts else {}


def lock_text(start: Mapping[str, Any]) -> str:
    """The packages of a start, for `pip install --requirement`."""
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
