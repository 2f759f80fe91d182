"""The editors' own checkers, installed from npm once into the user's cache."""

import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache" / "titanrun-tests" / "editors"
PACKAGES = (
    "yaml-language-server@1",
    "@taplo/cli@0.7",
    "@microsoft/jest-sarif@1.0.0-beta.0",
    "ajv@8",
)


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder with yaml-language-server and taplo; the tests are skipped where npm is absent."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = CACHE / "node_modules" / ".bin"
    needed = ("yaml-language-server", "taplo", "../@microsoft/jest-sarif", "../ajv/dist/2020.js")
    if not all((folder / name).exists() for name in needed):
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), *PACKAGES]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"npm cannot install them here: {done.stderr.strip()[-200:]}")
    return folder
