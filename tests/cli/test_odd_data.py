"""Files that are no data, or that nobody may read: a problem each, never a traceback."""

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: {name: text, path: texts}
  seq_len: 16
  steps: 1
  data_cache: cache
"""
LINES = "".join(
    json.dumps({"text": f"text number {number} and more"}) + "\n" for number in range(9)
)
PR_CAPBSET_DROP = 24
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, with which the superuser reads everything
READ_ALL = (1, 2)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_text(LINES)
    (tmp_path / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)


def drop_capabilities() -> None:
    """Let the superuser be denied what permissions deny. Others cannot do so, nor need it."""
    for capability in READ_ALL:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a data command as somebody who may not read everything."""
    return subprocess.run(
        [sys.executable, "-m", "titanrun", "data", *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=drop_capabilities,
    )


def deny(path: Path, mode: int = 0) -> None:
    path.chmod(mode)


def deny_file() -> None:
    deny(Path("texts/a.jsonl"))


def deny_folder() -> None:
    deny(Path("texts"))


def deny_entries() -> None:
    deny(Path("texts"), 0o444)


def deny_folder_within() -> None:
    Path("texts/more").mkdir()
    deny(Path("texts/more"))


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (deny_file, "texts/a.jsonl"),
        (deny_folder, "texts"),
        (deny_entries, "texts"),
        (deny_folder_within, "texts/more"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_may_not_be_read_is_named(
    break_it: Callable[[], None], named: str, streaming: bool
) -> None:
    """A folder was taken for an empty one, and what was in one within it was left out silently."""
    break_it()
    words = ["show", "-n", "1", "r.yaml"] if streaming else ["build", "r.yaml"]
    if streaming:
        words += ["training.dataset.streaming=true", "training.global_batch_size=8"]
    try:
        done = run(*words)
    finally:
        for path in ("texts", "texts/more"):
            if Path(path).exists():
                deny(Path(path), 0o755)
    assert done.returncode == 3
    assert re.search(rf"error\[data[^]]*\]: '{named}' cannot be read: Permission", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_cache_that_may_not_be_read_is_not_said_to_be_empty() -> None:
    Path("cache").mkdir()
    deny(Path("cache"))
    try:
        done = run("verify", "cache")
    finally:
        deny(Path("cache"), 0o755)
    assert done.returncode == 2 and "error[usage]: 'cache' cannot be read" in done.stderr


@pytest.mark.parametrize("action", ["verify", "prune"])
@pytest.mark.parametrize("kind", ["empty", "cut", "list", "folder", "loop"])
@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_files_of_an_index_that_are_none_are_damage(action: str, kind: str, suffix: str) -> None:
    """Without a record that can be read, an index was not there."""
    resolved = resolve_recipe("r.yaml", [], environment={}).text
    request: dict[str, Any] = {"resolved": resolved, "repair": False, "workers": None}
    ACTIONS["build"]({**request, "part": None, "finish": False})
    (tokens,) = Path("cache").glob("*.npy")
    path = tokens.with_suffix(suffix)
    content = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes({"empty": b"", "cut": content[:-9], "list": b"[1, 2]"}[kind])
    more = {"all": False, "days": None, "yes": False}
    (entry,) = ACTIONS[action]({"folder": "cache", **more})
    assert entry["name"] == tokens.stem
    damage = entry["damage" if action == "verify" else "why"]
    assert damage == "its record cannot be read" if suffix == ".json" else damage


def test_a_link_to_nothing_is_a_missing_file() -> None:
    """Suggestions of a near name looked for it without end."""
    Path("link.jsonl").symlink_to("nowhere.jsonl")
    done = run("build", "r.yaml", "training.dataset.path=link.jsonl")
    assert done.returncode == 3 and "file not found: 'link.jsonl'" in done.stderr


@pytest.mark.parametrize("content", ["", LINES, LINES[:-20]])
def test_a_name_may_hold_a_line_end(content: str) -> None:
    Path("texts/a.jsonl").rename("texts/odd\nname.jsonl")
    Path("texts/odd\nname.jsonl").write_text(content)
    done = run("build", "r.yaml")
    assert done.returncode == (0 if content == LINES else 3)
    told = {"": "holds no documents", LINES: "tokenizing 'texts'"}
    assert told.get(content, "name.jsonl' line 9 column 10 is not JSON") in done.stderr
    assert "Traceback" not in done.stderr
