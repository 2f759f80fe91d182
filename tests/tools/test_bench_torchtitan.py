"""The pairs against torchtitan: both trainers compute the same, and what differs does not count."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "bench"))

from gpu import Call, Options, gpu_report
from torchtitan_pairs import compare_losses, torchtitan_report


@pytest.mark.parametrize("loss", [5.5001, float("nan")])
def test_a_pair_with_different_losses_is_void(loss: float) -> None:
    compare_losses({"losses": [6.0, 5.5]}, {"losses": [6.0, 5.5]})
    with pytest.raises(SystemExit, match="VOID"):
        compare_losses({"losses": [6.0, loss]}, {"losses": [6.0, 5.5]})


@pytest.mark.oracles
def test_torchtitans_own_trainer_logs_the_same_losses(capsys: pytest.CaptureFixture[str]) -> None:
    # which of two steps of a few milliseconds is faster says nothing
    torchtitan_report(2, 10, batch=1, seq_len=32)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["pair 1", "pair 2", "median"]


@pytest.mark.oracles
def test_torchtitans_trainer_is_a_side_of_a_row_of_the_gpu_benchmark(tmp_path: Path) -> None:
    asked = Options(folder=tmp_path, budget=500, toy=True)
    gpu_report(Call(options=asked), ["1b_s4096_eager"])
    # the rows of its ceilings come first
    *_, row = json.loads((tmp_path / "table.json").read_text())
    assert row["row"] == "1b_s4096_eager"
    # its mixed precision is autocast
    assert row["torchtitan_verdict"] == "compared"
    assert len(row["torchtitan"]["first_losses"]) == 5
