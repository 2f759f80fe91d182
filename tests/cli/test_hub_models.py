"""Models of the Hub in recipes, `hub:OWNER/NAME`, against a hub on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from yaml import safe_load

from tests.cli.model_hub import REPOSITORY, ModelHub, serve_model, write_model
from tests.cli.model_hub import run_titanrun as titanrun
from tests.cli.push_hub import COMMIT

NAME = f"hub:{REPOSITORY}"
RECIPE = f"""\
version: 1
kind: sft
device: cpu
model: {{name: llama3, flavor: auto, hf_assets_path: "{NAME}", attention: {{mask: block_causal}}}}
training: {{dataset: {{name: chat, path: chats.jsonl, packing: best_fit}}, seq_len: 64, steps: 1,
           local_batch_size: 1, mixed_precision_param: float32, data_cache: null}}
"""
CHAT = [{"role": "user", "content": "Say moon"}, {"role": "assistant", "content": "moon"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps({'messages': CHAT})}\n" * 8)
    return tmp_path


@pytest.fixture
def hub(place: Path, model: Path) -> Iterator[dict[str, str]]:
    with serve_model(model, place / "home") as variables:
        yield variables


def test_validate_accepts_a_model_that_is_not_here_without_network(place: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HOME": str(place / "home")}
    done = titanrun(place, nowhere, "validate", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert f"warning[file]: {NAME} has not been downloaded" in done.stderr
    assert "help: titanrun download" in done.stderr
    done = titanrun(place, nowhere, "validate", "mine.yaml", "optimizer.lr=-1")
    assert done.returncode == 2
    assert "error[out-of-range]" in done.stderr
    done = titanrun(place, nowhere, "validate", "mine.yaml", "--level", "environment")
    assert done.returncode == 2
    assert done.stderr.count("error[") == 1
    assert f"error[file]: {NAME} has not been downloaded" in done.stderr


@pytest.mark.parametrize(
    ("variables", "message", "hint"),
    [
        (
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "could not be fetched from http://127.0.0.1:9",
            "check the network and HF_ENDPOINT, and run the same command again; without a network",
        ),
        (
            {"HF_HUB_OFFLINE": "1"},
            "HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE and run the same command again; without a network",
        ),
    ],
)
def test_without_a_hub_training_is_a_problem(
    place: Path, variables: dict[str, str], message: str, hint: str
) -> None:
    done = titanrun(place, {"HOME": str(place / "home"), **variables}, "train", "mine.yaml")
    assert done.returncode == 2
    assert message in done.stderr and hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "runs").exists()


@pytest.mark.parametrize("name", ["hub:model", "hub:owner/model@", "hub:a/b/c"])
def test_an_incomplete_name_is_a_problem(place: Path, name: str) -> None:
    done = titanrun(place, {}, "validate", "mine.yaml", f"model.hf_assets_path={name}")
    assert done.returncode == 2
    assert f"'{name}' is not a model on the Hub" in done.stderr
    assert "write hub:OWNER/NAME or hub:OWNER/NAME@REVISION" in done.stderr


def test_plan_fetches_config_json_only(place: Path, hub: dict[str, str]) -> None:
    done = titanrun(place, hub, "plan", "mine.yaml", "--world-size", "1")
    assert done.returncode == 0, done.stderr
    assert sorted(ModelHub.fetched) == ["config.json", "generation_config.json"]
    done = titanrun(place, hub, "plan", "mine.yaml", "--world-size", "1", "--fetch")
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in ModelHub.fetched


def test_problems_are_told_before_weights_are_fetched(place: Path, hub: dict[str, str]) -> None:
    done = titanrun(place, hub, "train", "mine.yaml", "training.seq_len=4096")
    assert done.returncode == 2
    assert "model.max_seq_len" in done.stderr
    assert "model.safetensors" not in ModelHub.fetched


def test_a_run_has_the_commit_and_never_asks_again(place: Path, hub: dict[str, str]) -> None:
    done = titanrun(place, hub, "train", "mine.yaml", "dump_folder=runs/mine")
    assert done.returncode == 0, done.stderr
    assert f"fetching {NAME} at commit {COMMIT[:8]} into " in done.stderr
    folder = place / "home" / ".cache" / "titanrun" / "hub" / "owner--model" / COMMIT
    resolved = safe_load((place / "runs/mine/resolved.yaml").read_text(encoding="utf-8"))
    assert resolved["model"]["hf_assets_path"] == str(folder)
    assert f"loaded initial weights from {folder}" in (
        (place / "runs/mine/logs/rank-0.log").read_text(encoding="utf-8")
    )
    nowhere = {**hub, "HF_ENDPOINT": "http://127.0.0.1:9"}
    longer = titanrun(place, nowhere, "resume", "runs/mine", "training.steps=2")
    assert longer.returncode == 0, longer.stderr
    # neither does another run of the recipe, by the branch or by the commit
    for name in (NAME, f"{NAME}@{COMMIT}"):
        done = titanrun(place, nowhere, "train", "mine.yaml", f"model.hf_assets_path={name}")
        assert done.returncode == 0, done.stderr


def test_download_fetches_what_a_recipe_names(place: Path, hub: dict[str, str]) -> None:
    done = titanrun(place, hub, "download", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "next: titanrun train mine.yaml"
    done = titanrun(place, hub, "validate", "mine.yaml", "--level", "environment")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    ModelHub.fetched.clear()
    assert titanrun(place, hub, "download", NAME).returncode == 0
    assert ModelHub.fetched == []


def test_the_cache_moves_with_its_variable(place: Path, hub: dict[str, str]) -> None:
    variables = {**hub, "TITANRUN_CACHE": str(place / "cache")}
    assert titanrun(place, variables, "download", REPOSITORY).returncode == 0
    assert (place / "cache/hub/owner--model" / COMMIT / "model.safetensors").is_file()
