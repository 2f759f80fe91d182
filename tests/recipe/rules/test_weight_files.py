"""Weight files that an interrupted download left are told before a run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from titanrun.components.checkpoints.spec.weight_files import find_weight_faults
from titanrun.recipe.resolving.hub_models import RECORD_FILE
from titanrun.recipe.resolving.validation_levels import validate_file

WEIGHTS = {"a": torch.zeros(4, 4), "b": torch.ones(3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files of weights and their index."""
    names = {
        name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate(WEIGHTS)
    }
    for name, file in names.items():
        save_file({name: WEIGHTS[name]}, tmp_path / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_whole_files_have_no_fault(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert [*find_weight_faults(folder)] == []
    single = tmp_path_factory.mktemp("single")
    save_file(WEIGHTS, single / "model.safetensors")
    assert [*find_weight_faults(single)] == []


def test_files_that_are_gone_cut_or_no_weights_are_told(folder: Path) -> None:
    first, second = sorted(folder.glob("*.safetensors"))
    size = first.stat().st_size
    first.write_bytes(first.read_bytes()[:-10])
    second.unlink()
    assert [*find_weight_faults(folder)] == [
        f"'{first}' is cut: it has {size - 10:,} bytes of {size:,}",
        f"'{second}' is missing, although the index beside it names it",
    ]
    first.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n")
    told = next(iter(find_weight_faults(folder)))
    assert told == f"'{first}' is no safetensors file, or its beginning is damaged"


def test_a_folder_without_weights_is_told_unless_they_are_pickles(tmp_path: Path) -> None:
    (told,) = find_weight_faults(tmp_path)
    assert told == f"'{tmp_path}' has no model.safetensors, nor an index of several"
    (tmp_path / "pytorch_model.bin").touch()
    assert [*find_weight_faults(tmp_path)] == []


def test_a_download_may_hold_the_tokenizer_alone(tmp_path: Path) -> None:
    config = Path(__file__).parents[2] / "problems/weight-files-are-whole/model/config.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    model = f"{{name: llama3, flavor: auto, hf_assets_path: {tmp_path}}}"
    given = [f"model={model}", "checkpoint.initial_load_in_hf=true"]

    def find_rules() -> list[str | None]:
        found = validate_file("llama3_debug", given, level="environment", environment={})
        return [problem.rule for problem in found.problems]

    assert "weight-files-are-whole" in find_rules()
    (tmp_path / RECORD_FILE).write_text('{"repository": "owner/model"}')
    assert "weight-files-are-whole" not in find_rules()
