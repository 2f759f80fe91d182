"""Files that the page reads and saves: only recipes, only below the workspace, byte by byte."""

import codecs
import hashlib
import os
import shutil
import stat
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.ui.conftest import UiProcess
from titanrun.ui import folder_walk
from titanrun.ui.folder_walk import read_below, replace_below
from titanrun.ui.refusal import Refusal
from titanrun.ui.workspace import Workspace

TEXT = "version: 1\nmodel: llama3\ntraining: {dataset: tiny}"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_nothing_outside_of_the_workspace_is_read_or_written(ui: UiProcess, tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text(TEXT)
    link = ui.workspace / "recipes" / "link.yaml"
    link.symlink_to(outside)
    (ui.workspace / "linked").symlink_to(tmp_path)
    (ui.workspace / "notes.txt").write_text("not a recipe")
    os.mkfifo(ui.workspace / "pipe.yaml")
    for path in (
        "../outside.yaml",
        "recipes/../../outside.yaml",
        "../../../../etc/passwd",
        "/etc/passwd",
        str(outside),
        "%2e%2e/outside.yaml",
        "recipes/link.yaml",
        "linked/outside.yaml",
        "recipes\\..\\outside.yaml",
        "recipes/mine.yaml\0.yaml",
        "recipes//mine.yaml",
        "shipped:../README.yaml",
        "shipped:/etc/x.yaml",
        "notes.txt",
        "pipe.yaml",
        "recipes",
        "",
        "x" * 5000 + ".yaml",
    ):
        where = f"/api/file?path={quote(path, safe='')}"
        read = ui.ask("GET", where)
        assert read.status in (403, 404), (path, read.body)
        for headers in ({"If-Match": f'"{digest(outside)}"'}, {"If-None-Match": "*"}):
            saved = ui.ask("PUT", where, {"text": "version: 2\n"}, headers=dict(headers))
            assert saved.status in (403, 404, 412), (path, headers, saved.body)
    assert outside.read_text() == TEXT
    assert ui.ask("GET", "/api/runs/" + quote("../recipes", safe="")).status in (403, 404)


def test_a_link_that_appears_after_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "recipes", outside):
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(folder.name)
    # as if both names had been swapped between the check and the use
    monkeypatch.setattr(folder_walk, "confine", lambda root, name: name.split("/"))
    (root / "recipes" / "a.yaml").unlink()
    (root / "recipes" / "a.yaml").symlink_to(outside / "a.yaml")
    (root / "swapped").symlink_to(outside)
    for name in ("recipes/a.yaml", "swapped/a.yaml"):
        with pytest.raises(Refusal):
            read_below(root, name, 100)
    with pytest.raises(Refusal):
        replace_below(root, "swapped/a.yaml", b"new", 0o644, is_new=False)
    replace_below(root, "recipes/a.yaml", b"new", 0o644, is_new=False)
    assert (outside / "a.yaml").read_text() == "outside"


def test_saving_keeps_what_the_editor_does_not_show(ui: UiProcess) -> None:
    file = ui.workspace / "recipes" / "windows.yaml"
    file.write_bytes(codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    read = ui.ask("GET", "/api/file?path=recipes/windows.yaml").data
    assert (read["text"], read["newline"], read["writable"]) == (TEXT, "crlf", True)
    new = TEXT + "\ndebug: {seed: 1}"
    headers = {"If-Match": f'"{read["sha256"]}"'}
    saved = ui.ask(
        "PUT", "/api/file?path=recipes/windows.yaml", {"text": new}, headers=dict(headers)
    )
    assert (saved.status, saved.data["sha256"]) == (200, digest(file))
    assert file.read_bytes() == codecs.BOM_UTF8 + new.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert {path.name for path in file.parent.iterdir()} == {"mine.yaml", "windows.yaml", "parts"}


def test_a_file_that_has_changed_is_not_overwritten(ui: UiProcess) -> None:
    file = ui.workspace / "recipes" / "mine.yaml"
    read = ui.ask("GET", "/api/file?path=recipes/mine.yaml").data
    file.write_text(TEXT)
    headers = {"If-Match": f'"{read["sha256"]}"'}
    refused = ui.ask(
        "PUT", "/api/file?path=recipes/mine.yaml", {"text": "x"}, headers=dict(headers)
    )
    assert (refused.status, refused.data["text"]) == (412, TEXT)
    assert file.read_text() == TEXT
    new = ui.ask(
        "PUT", "/api/file?path=recipes/mine.yaml", {"text": "x"}, headers={"If-None-Match": "*"}
    )
    assert (new.status, file.read_text()) == (412, TEXT)
    unconditional = ui.ask("PUT", "/api/file?path=recipes/mine.yaml", {"text": "x"})
    assert (unconditional.status, file.read_text()) == (400, TEXT)


def test_what_could_not_be_restored_is_read_only(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path / "runs")
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for name, data in {
        "mixed.yaml": b"a: 1\r\nb: 2\n",
        "old_mac.yaml": b"a: 1\rb: 2",
        "latin.yaml": b"name: caf\xe9\n",
        "runs/first/resolved.yaml": b"version: 1\n",
    }.items():
        (tmp_path / name).write_bytes(data)
        read = workspace.read(name)
        assert not read.is_writable, name
        with pytest.raises(Refusal):
            workspace.save(name, "x: 1\n", read.sha256)
        assert (tmp_path / name).read_bytes() == data
    with pytest.raises(Refusal):
        workspace.save("runs/first/new.yaml", "x: 1\n", None)


def test_only_what_belongs_to_titanrun_is_listed(ui: UiProcess) -> None:
    (ui.workspace / "compose.yaml").write_text("services: {web: {image: nginx}}\n")
    (ui.workspace / "sweep.yaml").write_text("recipe: recipes/mine.yaml\ngrid: {}\n")
    run = ui.workspace / "runs" / "first"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "resolved.yaml").write_text(TEXT)
    listed = {one["path"]: one["kind"] for one in ui.ask("GET", "/api/files").data["files"]}
    own = {path: kind for path, kind in listed.items() if kind != "shipped"}
    assert own == {
        "recipes/mine.yaml": "recipe",
        "recipes/parts/fp32.yaml": "part",
        "recipes/parts/tiny_corpus.yaml": "part",
        "sweep.yaml": "sweep",
    }
    assert listed["shipped:llama3_debug.yaml"] == "shipped"
    shipped = ui.ask("GET", "/api/file?path=shipped:llama3_debug.yaml").data
    assert shipped["writable"] is False and "version: 1" in shipped["text"]


def test_shipped_recipes_and_their_copies_have_no_problems(ui: UiProcess, workspace: Path) -> None:
    shutil.rmtree(workspace / "recipes")
    shipped = [
        entry["path"]
        for entry in ui.ask("GET", "/api/files").data["files"]
        if entry["kind"] == "shipped"
    ]
    for path in shipped[::8]:
        text = ui.ask("GET", f"/api/file?path={path}").data["text"]
        assert "$schema=" not in text and "#:schema" not in text
        for name in (path, f"my{path.rpartition('.')[1]}{path.rpartition('.')[2]}"):
            body = {"path": name, "text": text, "version": 1, "want": []}
            found = ui.ask("POST", "/api/examine", body).data["problems"]
            assert [one for one in found if one["severity"] == "error"] == [], name
