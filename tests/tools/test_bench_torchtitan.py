"""The pairs against torchtitan: both trainers compute the same, and what differs does not count."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "bench"))

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
