"""Two ranks save one checkpoint, agree on everything, and one process reads it."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader

SCRIPT = Path(__file__).with_name("one_of_two_ranks.py")


def test_what_two_ranks_saved_is_read_by_two_and_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    command = [sys.executable, str(SCRIPT)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet"), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    met = [json.loads(process.communicate(timeout=120)[0]) for process in ranks]
    expected = torch.arange(15.0).reshape(5, 3)
    for rank in range(2):
        assert met[rank]["steps"] == [2, 3]
        assert met[rank]["loaded"] == (expected + 3).tolist()
        assert met[rank]["rng"] == [rank] * 4
        assert "step-3 already exists and is never overwritten" in met[rank]["taken"]
        assert "No space left on device" in met[rank]["one rank fails"]
        assert met[rank]["damage"] == ["__1_0.distcp has other bytes than were saved"]
    into = {"w": torch.zeros(5, 3), "whole": torch.zeros(2)}
    checkpoint = CheckpointReader(folder / "step-2")
    checkpoint.load_tensors(into)
    assert torch.equal(into["w"], expected + 2)
    assert set(checkpoint.load_manifest().files) >= {
        "__0_0.distcp",
        "__1_0.distcp",
        "rng-rank-0.safetensors",
        "rng-rank-1.safetensors",
    }
