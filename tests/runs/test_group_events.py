"""What run.json says about the replica groups of a run."""

import json
from pathlib import Path

from titanrun.runs.group_events import record_changes

JOINED = {"step": 0, "event": "joined", "groups": 2}
KEPT = [("joined", 0), ("joined", 1), ("left", 1), ("joined", 1), ("healed", 1), ("left", 1)]


def write_events(folder: Path, group: int, *events: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / f"group-{group}.jsonl").write_text(text + '{"step": 9, "eve')


def test_run_json_says_which_groups_joined_left_and_took_over_a_state(tmp_path: Path) -> None:
    lost = {"step": 4, "event": "left", "groups": 2}
    logs = tmp_path / "logs"
    write_events(
        logs,
        0,
        {**JOINED, "time": 1.0},
        {"step": 1, "event": "committed", "groups": 2, "time": 2.0},
        {**lost, "left": ["titanrun_1:a"], "time": 3.0},
        {**lost, "left": ["titanrun_1:b"], "groups": 1, "time": 6.0},
    )
    write_events(
        logs,
        1,
        {**JOINED, "time": 1.5},
        {**JOINED, "step": 4, "time": 4.0},
        {"step": 4, "event": "healed", "groups": 2, "time": 5.0},
    )
    # another survivor saw the same start of a group go
    write_events(logs, 2, {**lost, "left": ["titanrun_1:a"], "time": 3.5})
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "starts": []}))
    for _ in range(2):
        record_changes(tmp_path)
        record = json.loads((tmp_path / "run.json").read_text())
        assert [(event["event"], event["group"]) for event in record["groups"]] == KEPT
    assert record["groups"][-1] == {"step": 4, "event": "left", "group": 1, "groups": 1}
    assert record["format"] == 1 and record["starts"] == []


def test_a_run_without_groups_keeps_its_record(tmp_path: Path) -> None:
    record_changes(tmp_path)
    assert not (tmp_path / "run.json").exists()
    text = '{"format": 1, "starts": []}'
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "logs").mkdir()
    record_changes(tmp_path)
    assert (tmp_path / "run.json").read_text() == text
