import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.components.metrics.spec.metrics_file import MetricsFile, read_metrics
from titanrun.config.problems import ProblemsFound


def written(path: Path, *steps: int, loss: float = 1.0) -> None:
    file = MetricsFile(path)
    for step in steps:
        file.write(step, {"loss": loss})
    file.close()


def test_floats_keep_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = {
        "loss": 0.1 + 0.2,
        "lr": 5e-324,
        "grad_norm": 1.7976931348623157e308,
        "tokens_seen": 2**60 + 1,
    }
    file = MetricsFile(path)
    file.write(1, values)
    assert path.read_text().startswith('{"step": 1, "loss": 0.30000000000000004, "lr": 5e-324, ')
    assert read_metrics(path) == [{"step": 1, **values}]
    file.close()


def test_non_finite_numbers_are_texts_in_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, {"loss": math.nan, "grad_norm": math.inf, "lr": -math.inf})
    file.close()
    assert json.loads(path.read_text()) == {
        "step": 1,
        "loss": "nan",
        "grad_norm": "inf",
        "lr": "-inf",
    }
    (line,) = read_metrics(path)
    assert math.isnan(line["loss"])
    assert (line["grad_norm"], line["lr"]) == (math.inf, -math.inf)


def test_the_last_line_of_a_step_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 1, 2, 3, loss=1.0)
    written(path, 2, 4, loss=2.0)
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 1.0),
        (4, 2.0),
    ]


@pytest.mark.parametrize(
    "torn", [b"{", b'{"step": 3, "lo', b'{"step": 3}', b"\x00\x00\x00", b'{"step": 3, "x": "\xc3']
)
def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_process(
    tmp_path: Path, torn: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 1, 2)
    with path.open("ab") as file:
        file.write(torn)
    is_whole = torn.endswith(b"}")
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3][: 3 if is_whole else 2]
    written(path, 4)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == (
        [1, 2, 3, 4] if is_whole else [1, 2, 4]
    )


def test_a_file_of_one_torn_line_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"st')
    assert read_metrics(path) == []
    written(path, 1)
    assert read_metrics(path) == [{"step": 1, "loss": 1.0}]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"loss": 2}\n{"step": 3}\n')
    with pytest.raises(ProblemsFound, match=r"metrics\.jsonl:2 is not a JSON object with a step"):
        read_metrics(path)


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="No such file"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_each_line_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, {"loss": 1.0})
    assert len(read_metrics(path)) == 1
    file.close()


def test_reading_needs_no_torch() -> None:
    code = (
        "import sys, titanrun.components.metrics.spec.metrics_file; print(sorted({'torch', "
        "'numpy', 'rich'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_lines_that_a_full_disk_does_not_take_are_counted_in_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(1, {"loss": 3.0})
    with Path("/dev/full").open("ab", buffering=0) as full:
        file._file, whole = full, file._file
        file.write(2, {"loss": 2.0})
        file.write(3, {"loss": 2.0})
        file._file = whole
    for step in (4, 5):
        file.write(step, {"loss": 1.0})
    file.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss": 3.0},
        {"step": 4, "loss": 1.0, "metrics/lost_lines": 2},
        {"step": 5, "loss": 1.0},
    ]
    assert caplog.text.count("cannot write metrics.jsonl") == 1
