"""Control characters in files of a run or recipe never reach the terminal.

Row B11 of the defect list: escaped ESC in keys, values, tags.json, run.json and status.json did.
"""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.config.control_characters import CONTROL_BUT_LAYOUT
from titanrun.config.safe_stream import make_safe

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eabc\x00\r"
START = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"


def ran(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", *words],
        cwd=folder,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode != 70, done.stderr
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def write_run(folder: Path) -> None:
    """A run directory whose every text is hostile."""
    folder.mkdir(parents=True)
    start = {"time": EVIL, "argv": [EVIL], "environment": {"git": {"commit": EVIL, "dirty": EVIL}}}
    (folder / "run.json").write_text(json.dumps({"format": 1, "name": EVIL, "starts": [start]}))
    (folder / "tags.json").write_text(json.dumps({"tags": [EVIL]}))
    (folder / "status.json").write_text(json.dumps({"state": EVIL, "step": 1, "host": EVIL}))
    (folder / "resolved.yaml").write_text(START)
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')


@pytest.mark.parametrize(
    "words", [["runs", "ls"], ["runs", "tag", "runs/evil"], ["runs", "ls", "--format", "json"]]
)
def test_texts_of_a_run_directory_are_escaped(tmp_path: Path, words: list[str]) -> None:
    write_run(tmp_path / "runs" / "evil")
    told = ran(tmp_path, *words)
    assert CONTROL_BUT_LAYOUT.search(told) is None
    assert "u001b" in told


def test_keys_and_values_of_a_recipe_are_escaped_in_every_format(tmp_path: Path) -> None:
    evil = json.dumps(EVIL)
    (tmp_path / "recipe.yaml").write_text(START + f"{evil}: 1\nname: {evil}\nkind: {evil}\n")
    for output_format in ("text", "json", "github", "sarif"):
        told = ran(tmp_path, "validate", "recipe.yaml", "--format", output_format)
        assert CONTROL_BUT_LAYOUT.search(told) is None and "u001b" in told, output_format


def test_a_file_name_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb.yaml").write_text(START + "unknown: 1\n")
    told = ran(tmp_path, "validate", "a\x1b[2Jb.yaml")
    assert "a\\u001b[2Jb.yaml:4:1" in told and "\x1b" not in told


def test_on_a_terminal_only_titanruns_own_colors_pass(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(START + f"{json.dumps(EVIL)}: 1\n")
    parent, child = pty.openpty()
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "titanrun", "validate", "recipe.yaml"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=child, stderr=child, env={**environment, "TERM": "xterm"}
    )
    process.wait()
    os.close(child)
    told = os.read(parent, 65536).decode()
    os.close(parent)
    assert "\x1b[1;31merror" in told
    assert "\x1b[2J" not in told and "\x07" not in told and "\u202e" not in told


def test_json_keeps_its_meaning() -> None:
    stream = io.StringIO()
    make_safe(stream).write(json.dumps({"a": EVIL}, ensure_ascii=False))
    assert json.loads(stream.getvalue()) == {"a": EVIL}
    assert CONTROL_BUT_LAYOUT.search(stream.getvalue()) is None
