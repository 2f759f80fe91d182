"""Two ranks save beside training, and what they save is what they would have saved while training
waited."""

from pathlib import Path

import pytest

from tests.distributed.ranks import train
from titanrun.components.checkpoints.spec.manifest import Manifest, list_step_folders, read_manifest

SAVING = (
    "checkpoint={enable: true, interval: 2, keep_latest_k: 0}",
    "model.n_layers=2",
    "validation.enable=false",
)


def manifests(folder: Path) -> dict[int, Manifest]:
    return {
        step: read_manifest(path) for step, path in list_step_folders(folder / "checkpoint").items()
    }


@pytest.mark.parametrize(
    "mode", ["async", pytest.param("async_with_pinned_mem", marks=pytest.mark.slow)]
)
def test_two_ranks_save_the_same_beside_training_and_while_it_waits(
    mode: str, tmp_path: Path
) -> None:
    for name in ("waits", "beside"):
        (tmp_path / name).mkdir()
    train(2, SAVING, folder=tmp_path / "waits")
    train(2, [*SAVING, f"checkpoint.async_mode={mode}"], folder=tmp_path / "beside")
    expected, found = manifests(tmp_path / "waits"), manifests(tmp_path / "beside")
    assert list(found) == list(expected) == [2, 4, 5]
    for step, manifest in found.items():
        assert manifest.layout["ranks"] == 2
        for name in (
            "__0_0.distcp",
            "__1_0.distcp",
            "rng-rank-0.safetensors",
            "rng-rank-1.safetensors",
        ):
            assert manifest.files[name] == expected[step].files[name], (step, name)
