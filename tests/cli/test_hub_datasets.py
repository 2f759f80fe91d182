"""Datasets of the Hub in recipes, without a revision, against a hub on this machine."""

from pathlib import Path

import pytest
from yaml import safe_load

from tests.cli.model_hub import run_titanrun as titanrun
from tests.cli.model_hub import write_model
from tests.components.data.test_hub_dataset import (  # noqa: F401
    COMMIT,
    FILES,
    Hub,
    hub_environment,
)

pytestmark = pytest.mark.slow
RECIPE = """\
version: 1
kind: sft
device: cpu
tokenizer: tiny
model: {name: llama3, flavor: debugmodel, vocab_size: 2048, attention: {mask: block_causal}}
training: {dataset: {name: chat, repo: owner/words, subset: chats}, seq_len: 64, steps: 1,
           local_batch_size: 1, mixed_precision_param: float32, data_cache: null}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def hub(place: Path, hub_environment: dict[str, str]) -> dict[str, str]:  # noqa: F811
    """The environment of a command that finds the hub, with a cache of its own."""
    return {**hub_environment, "TITANRUN_CACHE": str(place / "cache")}


def test_a_run_records_the_commit_and_never_asks_again(
    place: Path,
    hub: dict[str, str],
) -> None:
    offline = {**hub, "HF_HUB_OFFLINE": "1"}
    assert titanrun(place, offline, "validate", "mine.yaml").returncode == 0
    done = titanrun(place, offline, "validate", "mine.yaml", "--level", "environment")
    assert done.returncode == 2
    assert "the commit of 'owner/words' is not known here" in done.stderr

    done = titanrun(place, offline, "train", "mine.yaml", "dump_folder=runs/mine")
    assert done.returncode == 2 and "help: unset HF_HUB_OFFLINE and run" in done.stderr
    assert "run hf download owner/words --repo-type dataset" in done.stderr

    done = titanrun(place, hub, "train", "mine.yaml", "dump_folder=runs/mine")
    assert done.returncode == 0, done.stderr
    assert f"owner/words: main is commit {COMMIT}" in done.stderr
    resolved = safe_load((place / "runs/mine/resolved.yaml").read_text(encoding="utf-8"))
    assert resolved["training"]["dataset"]["revision"] == COMMIT

    longer = titanrun(place, offline, "resume", "runs/mine", "training.steps=2")
    assert longer.returncode == 0, longer.stderr
    done = titanrun(place, offline, "validate", "mine.yaml", "--level", "environment")
    assert done.returncode == 0, done.stderr
    again = titanrun(place, offline, "train", "mine.yaml", "dump_folder=runs/again")
    assert again.returncode == 0, again.stderr
    assert f"commit {COMMIT}, which main was when it was last asked for" in again.stderr


def test_download_asks_for_commits_again(
    place: Path,
    hub: dict[str, str],
) -> None:
    reference = place / "cache" / "hub" / "datasets--owner--words" / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text("a" * 40)
    done = titanrun(place, hub, "download", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == f"owner/words: main is commit {COMMIT}"
    assert reference.read_text() == f"{COMMIT}\n"


def test_documents_of_the_hub_get_a_commit_too(
    place: Path,
    hub: dict[str, str],
) -> None:
    titanrun(place, hub, "download", "mine.yaml")
    words = ("kind=pretrain", "training.dataset={name: hub, repo: owner/words}")
    shown = titanrun(place, hub, "show", "mine.yaml", *words)
    assert shown.returncode == 0, shown.stderr
    assert COMMIT in shown.stdout


def test_without_a_hub_training_is_a_problem(
    place: Path,
    hub: dict[str, str],
) -> None:
    Hub.faults = {"/api/datasets/owner/words/revision/main": [404]}
    done = titanrun(place, hub, "train", "mine.yaml")
    assert done.returncode == 2
    assert "error[file]: the Hub names no commit of 'owner/words' at 'main'" in done.stderr
    assert not (place / "runs").exists()


def test_init_writes_a_recipe_for_data_of_the_hub(
    place: Path,
    hub: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = FILES["README.md"].replace(b"- config_name: default", b"- config_name: text")
    first = b"configs:\n- config_name: chats\n  data_files: [{split: train, path: chats/train-*}]\n"
    monkeypatch.setitem(FILES, "README.md", card.replace(b"configs:\n", first, 1))
    write_model(place / "model")
    named = ("--model", "model", "--data", "hub:owner/words", "-o", "new.yaml")
    done = titanrun(place, hub, "init", "--kind", "lora", *named)
    assert done.returncode == 0, done.stderr
    text = (place / "new.yaml").read_text(encoding="utf-8")
    assert "{name: chat, repo: owner/words, subset: chats, packing: best_fit}" in text
    assert len(text.splitlines()) <= 40
    # what the next command needs is recorded
    offline = {**hub, "HF_HUB_OFFLINE": "1"}
    done = titanrun(place, offline, "validate", "new.yaml", "--level", "environment")
    assert done.returncode == 0, done.stderr
    short = ("validation.holdout=0.3", "training.epochs=null", "training.steps=1", "device=cpu")
    done = titanrun(place, hub, "train", "new.yaml", *short)
    assert done.returncode == 0, done.stderr

    named = ("--model", "model", "--data", f"hub:owner/words@{COMMIT}", "-o", "pinned.yaml")
    done = titanrun(place, hub, "init", "--kind", "sft", *named)
    assert done.returncode == 0, done.stderr
    assert COMMIT in (place / "pinned.yaml").read_text(encoding="utf-8")


def test_tokenizing_does_not_print_requests_to_the_hub(place: Path, hub: dict[str, str]) -> None:
    options = (f"training.dataset.revision={COMMIT}", "training.data_cache=tokens")
    done = titanrun(place, hub, "data", "build", "mine.yaml", *options)
    assert done.returncode == 0, done.stderr
    assert "tokenizing 'owner/words chats train@" in done.stderr
    assert "HTTP" not in done.stderr


@pytest.mark.parametrize("text", [b"---\n: [\n---\n", None])
def test_init_says_that_a_card_cannot_be_read(
    text: bytes | None, place: Path, hub: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is None:
        monkeypatch.delitem(FILES, "README.md")
    else:
        monkeypatch.setitem(FILES, "README.md", text)
    write_model(place / "model")
    named = ("--model", "model", "--data", "hub:owner/words", "-o", "new.yaml")
    done = titanrun(place, hub, "init", "--kind", "sft", *named)
    assert done.returncode == 0, done.stderr
    assert "the dataset card of 'owner/words' cannot be read (" in done.stderr
    assert "so subset, split and columns are the defaults: check them" in done.stderr
    assert "{name: chat, repo: owner/words, packing: best_fit}" in (place / "new.yaml").read_text()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("hub:words", "'hub:words' is not a dataset on the Hub"),
        ("hub:owner/none", "the Hub names no commit of 'owner/none' at 'main'"),
    ],
)
def test_init_says_what_is_wrong_with_the_name(
    data: str,
    message: str,
    place: Path,
    hub: dict[str, str],
) -> None:
    write_model(place / "model")
    named = ("--model", "model", "--data", data, "-o", "new.yaml")
    done = titanrun(place, hub, "init", "--kind", "sft", *named)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (place / "new.yaml").exists()
