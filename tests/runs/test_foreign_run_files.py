"""Files of a run that something else wrote, as the commands that read runs meet them."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.cli import main

HEAD = '{"version": 1, "model": {"name": "llama3", "flavor": "debugmodel"}, '


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", {"starts": [{"environment": 7}]}),
        ("run.json", {"starts": [{"environment": {"git": 7, "packages": 7, "code": 7}}]}),
        ("run.json", {"starts": [{"decided": 7, "time": 7}], "name": 7}),
        ("status.json", {"pid": "x", "host": 7, "boot_id": 7, "heartbeat": "x"}),
        ("resolved.sources.json", {"values": {"training.steps": 7}}),
    ],
)
def test_values_of_another_type_are_no_fault(
    name: str,
    content: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Row B13 of the defect list: one such run ended `runs ls` with exit code 70."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(f'{HEAD}"training": {{"dataset": "tiny", "steps": 2}}}}')
    assert main.run(["show", "recipe.yaml"]) == 0
    resolved = capsys.readouterr().out
    for run in ("runs/first", "runs/other"):
        Path(run).mkdir(parents=True)
        (Path(run) / "resolved.yaml").write_text(resolved)
        (Path(run) / "run.json").write_text('{"starts": [{}]}')
        (Path(run) / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (Path("runs/other") / name).write_text(json.dumps(content))
    for words in (
        ["runs", "ls"],
        ["runs", "show", "runs/other"],
        ["runs", "compare", "runs/first", "runs/other"],
        ["diff-config", "runs/other", "recipe.yaml", "--written"],
    ):
        assert main.run(words) in (0, 1), (words, capsys.readouterr().err)
