"""Metadata of an installed titanrun-core, with addresses that the project does not have yet."""

import os
from pathlib import Path

from titanrun.config.version import LIGHT_DISTRIBUTION, VERSION


def build_environment(folder: Path, urls: dict[str, str]) -> dict[str, str]:
    """Return an environment whose Python finds titanrun-core with these URLs, and no others."""
    name = LIGHT_DISTRIBUTION.replace("-", "_")
    about = folder / f"{name}-{VERSION}.dist-info"
    about.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {LIGHT_DISTRIBUTION}", f"Version: {VERSION}"]
    lines += [f"Project-URL: {label}, {url}" for label, url in urls.items()]
    (about / "METADATA").write_text("\n".join(lines) + "\n")
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
