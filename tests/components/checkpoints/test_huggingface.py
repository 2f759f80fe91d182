import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from titanrun.components.checkpoints.huggingface import (
    read_hf_folder,
    split_names_into_shards,
    write_hf_folder,
)
from titanrun.config.problems import ProblemsFound


def some_weights() -> dict[str, Tensor]:
    tied = torch.randn(4, 3)
    return {
        "embed": tied,
        "head": tied,
        "half": torch.randn(6, 2).bfloat16(),
        "view": torch.randn(3, 5).t(),
        "part": torch.randn(8)[2:4],
    }


def message_of(folder: Path) -> str:
    with pytest.raises(ProblemsFound) as error:
        read_hf_folder(folder)
    assert error.value.exit_code == 4
    return error.value.problems[0].message


@pytest.mark.parametrize(("shard_bytes", "files"), [(10**9, 1), (72, 3), (1, 5)])
def test_what_was_written_is_read_bitwise(tmp_path: Path, shard_bytes: int, files: int) -> None:
    weights = some_weights()
    write_hf_folder(tmp_path / "hf", weights, {"model_type": "llama"}, shard_bytes=shard_bytes)
    read = read_hf_folder(tmp_path / "hf")
    assert read.keys() == weights.keys()
    assert all(
        read[name].dtype == weights[name].dtype and torch.equal(read[name], weights[name])
        for name in weights
    )
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) == files
    assert json.loads((tmp_path / "hf" / "config.json").read_text()) == {"model_type": "llama"}


def test_files_hold_as_many_bytes_as_they_may_and_at_least_one_tensor() -> None:
    tensors = {name: torch.zeros(1) for name in "abcde"}
    assert split_names_into_shards(tensors, 8) == [["a", "b"], ["c", "d"], ["e"]]
    assert split_names_into_shards(tensors, 3) == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert split_names_into_shards({}, 8) == [[]]


def test_transformers_opens_both_forms_and_its_folders_are_read(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(6)[None]
    expected = model(tokens).logits
    model.save_pretrained(tmp_path / "theirs", max_shard_size="5KB")
    theirs = read_hf_folder(tmp_path / "theirs")
    assert all(torch.equal(theirs[name], tensor) for name, tensor in model.state_dict().items())
    for name, shard_bytes in (("one", 10**9), ("many", 5000)):
        write_hf_folder(
            tmp_path / name, model.state_dict(), model.config.to_dict(), shard_bytes=shard_bytes
        )
        opened = AutoModelForCausalLM.from_pretrained(tmp_path / name, local_files_only=True).eval()
        assert torch.equal(opened(tokens).logits, expected)


def test_extra_files_travel_along(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    write_hf_folder(tmp_path / "hf", {"w": torch.ones(1)}, {}, [tmp_path / "tokenizer.json"])
    assert sorted(file.name for file in (tmp_path / "hf").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_a_folder_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    with pytest.raises(ProblemsFound, match="already exists and is never overwritten"):
        write_hf_folder(tmp_path / "hf", {"w": torch.ones(1)}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["hf"]


def test_a_failed_export_leaves_nothing_and_leftovers_are_swept(tmp_path: Path) -> None:
    (tmp_path / "hf.tmp-0123abcd").mkdir()
    with pytest.raises(FileNotFoundError):
        write_hf_folder(tmp_path / "hf", {"w": torch.ones(1)}, {}, [tmp_path / "absent.json"])
    assert list(tmp_path.iterdir()) == []


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert (
        message_of(tmp_path)
        == f"{tmp_path} holds its weights as a pickle (pytorch_model.bin), which can run any "
        f"code when it is read"
    )


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert (
        message_of(tmp_path)
        == f"{tmp_path} holds neither model.safetensors nor model.safetensors.index.json"
    )
    assert message_of(tmp_path / "absent") == f"folder not found: {tmp_path / 'absent'}"


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    write_hf_folder(tmp_path / "hf", some_weights(), {}, shard_bytes=72)
    shard = tmp_path / "hf" / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    assert str(shard) in message_of(tmp_path / "hf")
    shard.unlink()
    assert str(shard) in message_of(tmp_path / "hf")


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", "cannot read"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        (
            '{"weight_map": {"w": "../model.safetensors"}}',
            "which is not a safetensors file of that folder",
        ),
        ('{"weight_map": {"w": "model.bin"}}', "which is not a safetensors file of that folder"),
        ('{"weight_map": {"w": 3}}', "which is not a safetensors file of that folder"),
        ('{"weight_map": {"other": "model.safetensors"}}', "does not hold other"),
    ],
)
def test_a_wrong_index_is_one_problem(tmp_path: Path, index: str, said: str) -> None:
    write_hf_folder(tmp_path / "hf", {"w": torch.ones(1)}, {})
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(index)
    assert said in message_of(tmp_path / "hf")
