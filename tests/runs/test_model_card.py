"""What a model card says of a run whose files are damaged."""

from pathlib import Path

from titanrun.runs.model_card import read_step_metrics


def test_lines_of_metrics_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """Row B13 of the defect list: bytes that are no UTF-8 ended a command with a traceback."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        b'{"step": 1, "loss": 3.0}\n\xff\xfe\n{"step": "two", "loss": 2.5}\n[1]\n'
        b'{"step": 2, "loss": 2.0}\n{"step": 9, "loss": 1.0}\n'
    )
    assert read_step_metrics(file, 2) == {"step": 2, "loss": 2.0}
    assert read_step_metrics(tmp_path / "nothing", 2) == {}
