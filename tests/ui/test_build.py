"""The built page is that of the sources, within its size, and all of it comes along."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ui.page_parts import PAGE_BUDGETS, compress_files, list_page_parts

ROOT = Path(__file__).parents[2]
UI, STATIC = ROOT / "ui", ROOT / "titanrun" / "ui" / "static"
KIB = 1024


def read_manifest() -> Any:
    return json.loads((STATIC / "manifest.json").read_text())


def compute_sources_digest() -> str:
    files = [path for path in (UI / "src").rglob("*") if path.is_file()]
    files += [UI / "build.mjs", UI / "package-lock.json"]
    lines = sorted(
        f"{path.relative_to(UI).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in files
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_page_was_built_from_these_sources() -> None:
    assert read_manifest()["sources"] == compute_sources_digest(), "run make ui"


def test_the_manifest_names_every_built_file() -> None:
    manifest = read_manifest()
    built = {path.name: path.stat().st_size for path in STATIC.iterdir()}
    built.pop("manifest.json")
    assert manifest["files"] == built
    assert {manifest["script"], manifest["style"], manifest["icon"]} <= set(built)


def test_the_page_is_within_its_budget() -> None:
    parts = list_page_parts(STATIC)
    assert set(parts) == set(PAGE_BUDGETS)
    for name, files in parts.items():
        assert compress_files(files) <= PAGE_BUDGETS[name], name
    assert set.union(*parts.values()) >= set(STATIC.glob("*.js"))
    assert sum(read_manifest()["files"].values()) <= 1.2 * KIB**2


def test_one_version_of_what_must_not_come_twice() -> None:
    packages = json.loads((UI / "package-lock.json").read_text())["packages"]
    for name in ("@codemirror/state", "@codemirror/view", "@lezer/common", "preact"):
        assert [path for path in packages if path.endswith(f"node_modules/{name}")] == [
            f"node_modules/{name}"
        ]
    wanted = json.loads((UI / "package.json").read_text())
    for name, version in {**wanted["dependencies"], **wanted["devDependencies"]}.items():
        assert packages[f"node_modules/{name}"]["version"] == version
        assert packages[f"node_modules/{name}"]["integrity"]


def test_nothing_built_names_another_server() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert "sourceMappingURL" not in text
        for host in ("cdn.", "unpkg", "jsdelivr", "googleapis"):
            assert host not in text, (path.name, host)


def test_no_source_is_longer_than_the_files_of_python() -> None:
    sources = [*(UI / "src").rglob("*.ts*"), UI / "build.mjs"]
    assert len(sources) > 20
    assert [path.name for path in sources if len(path.read_text().splitlines()) > 400] == []


@pytest.mark.browser
def test_a_build_gives_the_committed_bytes(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None and (UI / "node_modules").is_dir(), "run make ui"
    subprocess.run([node, "build.mjs", str(tmp_path)], cwd=UI, check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in STATIC.iterdir()}
