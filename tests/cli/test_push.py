"""`titanrun push` against a hub on this machine, by the Hub's own client."""

import json
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.push_hub import UploadHub
from titanrun.cli import push
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.runs.model_card import CARD_BEGIN, CARD_END, merge_cards

TOKEN = "hf_" + "a1B2" * 9
RECIPE = """\
version: 1
name: mine
device: cpu
model: {name: llama3, vocab_size: 2048, dim: 32, n_layers: 1, n_heads: 4, n_kv_heads: 2,
        hf_assets_path: %s, attention: {mask: block_causal}}
tokenizer: {name: tiny}
converters: [{name: lora, rank: 2}]
training: {dataset: {name: chat, path: %s, packing: best_fit}, local_batch_size: 2, seq_len: 128,
           steps: 2, mixed_precision_param: float32, data_cache: null}
checkpoint: {enable: true}
"""


def titanrun(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `mine`: adapters, trained on conversations, of a downloaded model."""
    folder = tmp_path_factory.mktemp("push")
    base = folder / "base"
    base.mkdir()
    record = {"repository": "owner/base", "revision": "main", "commit": "c" * 40, "files": {}}
    (base / "download.json").write_text(json.dumps(record))
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"Say {number}"},
                {"role": "assistant", "content": f"{number}"},
            ]
        }
        for number in range(40)
    ]
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    (folder / "mine.yaml").write_text(RECIPE % (base, folder / "chats.jsonl"))
    done = titanrun(folder, "train", "mine.yaml", "dump_folder=runs/mine")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def hub(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    UploadHub.reset()
    server = ThreadingHTTPServer(("127.0.0.1", 0), UploadHub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "HF_ENDPOINT": address,
        "HF_TOKEN": TOKEN,
        "HOME": str(trained),
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield address
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_run_is_pushed_with_a_card(trained: Path, hub: str, tmp_path: Path) -> None:
    done = titanrun(trained, "push", "mine", "me/mine", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{hub}/me/mine/commit/")
    assert UploadHub.created == [
        {"name": "mine", "organization": "me", "visibility": "private"}
    ] or [created.get("private") for created in UploadHub.created] == [True]
    assert UploadHub.tokens == {f"Bearer {TOKEN}"}
    for name, content in UploadHub.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        assert TOKEN.encode() not in content
        assert str(trained).encode() not in content
    card = ModelCard(UploadHub.files["README.md"].decode())
    assert card.data.to_dict() == {
        "base_model": "owner/base",
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["titanrun", "sft", "lora"],
        "model_name": "mine",
    }
    pushed = (tmp_path / "titanrun" / "resolved.yaml").read_text()
    own = (trained / "runs" / "mine" / "resolved.yaml").read_text()
    assert pushed in card.text
    assert [line.partition(":")[0] for line in pushed.splitlines()] == [
        line.partition(":")[0] for line in own.splitlines()
    ]
    for fact in (
        "| steps | 2 |",
        "| loss | ",
        "| resolved recipe | sha256:",
        "| data `chats.jsonl`",
    ):
        assert fact in card.text
    weights = load_resolved(trained / "runs" / "mine" / "resolved.yaml").model.hf_assets_path
    assert f"| model `{Path(str(weights)).name}` | xxh3_128:" in card.text
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say 3"}], tokenize=False, add_generation_prompt=True
    )
    with torch.no_grad():
        assert model(**tokenizer(text, return_tensors="pt")).logits.shape[-1] == 2048


def test_adapters_are_pushed_for_peft(trained: Path, hub: str) -> None:
    done = titanrun(trained, "push", "runs/mine", "me/mine", "--format", "adapter", "--public")
    assert done.returncode == 0, done.stderr
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(UploadHub.files)
    assert "model.safetensors" not in UploadHub.files
    assert ModelCard(UploadHub.files["README.md"].decode()).data.library_name == "peft"


def test_a_dry_run_uploads_nothing(trained: Path, hub: str) -> None:
    done = titanrun(trained, "push", "runs/mine", "me/mine", "--dry-run")
    assert done.returncode == 0, done.stderr
    card, files = done.stdout.index(CARD_BEGIN), done.stdout.index("model.safetensors  ")
    assert card < files
    assert (UploadHub.files, UploadHub.created) == ({}, [])
    assert done.stderr.splitlines()[-1] == "next: titanrun push runs/mine me/mine"


def test_a_dry_run_repeats_the_options_and_warns_of_a_base_model_that_is_only_here(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "home")
    (tmp_path / "home" / "base" / "download.json").unlink()
    options = ("--format", "adapter", "--dtype", "bfloat16", "--public")
    moved = ("--moved", f"{trained / 'base'}={tmp_path / 'home' / 'base'}")
    words = ("push", "runs/mine", "me/mine", *options, *moved)
    done = titanrun(tmp_path / "home", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    base = tmp_path / "home" / "base"
    assert f"the adapters name their base model '{base}'" in done.stderr
    assert done.stderr.splitlines()[-1] == f"next: titanrun {shlex.join(words)}"


@pytest.mark.parametrize("name", ["mine", "hub:me/mine", "me/mine/files", "/mine"])
def test_a_name_without_owner_is_refused_before_the_export(name: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        push.run(["runs/missing", name, "--dry-run"])
    (problem,) = found.value.problems
    assert problem.message == f"'{name}' is not the name of a repository"
    assert "OWNER/NAME" in str(problem.hint)


def test_a_card_of_another_origin_stays(trained: Path, hub: str) -> None:
    UploadHub.files["README.md"] = b"# Mine\n\nwritten by hand\n"
    done = titanrun(trained, "push", "runs/mine", "me/mine")
    assert done.returncode == 0, done.stderr
    assert UploadHub.files["README.md"] == b"# Mine\n\nwritten by hand\n"
    assert "me/mine has a README.md of its own, which is left unchanged" in done.stderr
    assert "config.json" in UploadHub.files


def test_what_stands_around_the_marks_stays() -> None:
    earlier = f"---\na: 1\n---\nmine\n{CARD_BEGIN}\nold\n{CARD_END}\nalso mine\n"
    ours = f"---\nb: 2\n---\n\n{CARD_BEGIN}\nnew\n{CARD_END}\n"
    assert merge_cards(earlier, ours) == (
        f"---\na: 1\n---\nmine\n{CARD_BEGIN}\nnew\n{CARD_END}\nalso mine\n"
    )
    assert merge_cards(None, ours) == ours


def test_a_hub_that_refuses_is_a_problem(trained: Path, hub: str) -> None:
    UploadHub.refuses = True
    done = titanrun(trained, "push", "runs/mine", "me/mine")
    assert done.returncode == 2
    assert "the Hub does not let you write to me/mine" in done.stderr
    assert "Traceback" not in done.stderr and TOKEN not in done.stderr


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="is for --format gguf"):
        push.run([str(tmp_path), "me/mine", "--dtype", "q8_0"])
    with pytest.raises(ProblemsFound, match="neither a checkpoint nor a run directory"):
        push.run([str(tmp_path), "me/mine"])


def test_an_exported_folder_is_told_to_push_its_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ProblemsFound) as found:
        push.run([str(tmp_path), "me/model"])
    (problem,) = found.value.problems
    assert problem.message == f"'{tmp_path}' is an exported model, and its model card needs the run"
    assert problem.hint is not None and "titanrun push RUN me/model" in problem.hint
