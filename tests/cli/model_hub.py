"""A hub on this machine from which a model can be downloaded, and which takes uploads."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from shutil import copy
from typing import ClassVar

from tests.cli.push_hub import COMMIT, UploadHub
from titanrun.components.tokenizers.config import TinyTokenizerConfig

REPOSITORY = "owner/model"


class ModelHub(UploadHub):
    """One repository with the files of a folder; what was fetched from it is listed."""

    folder: ClassVar[Path] = Path()
    fetched: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        api = f"/api/models/{REPOSITORY}"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            names = [{"rfilename": file.name} for file in self.folder.iterdir()]
            return self.send({"id": REPOSITORY, "sha": COMMIT, "siblings": names})
        if path.startswith(f"{api}/tree/{COMMIT}"):
            return self.send([self.describe(file) for file in self.folder.iterdir()])
        if path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            name = path.rpartition("/")[2]
            if (self.folder / name).is_file():
                if self.command == "GET":
                    self.fetched.append(name)
                return self.send((self.folder / name).read_bytes())
        return super().do_GET()

    def describe(self, file: Path) -> dict[str, object]:
        content = file.read_bytes()
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": file.name, "size": len(content), "oid": oid}


@contextmanager
def serve_model(folder: Path, home: Path) -> Iterator[dict[str, str]]:
    """Serve the model of a folder, and yield the variables of a user who finds only this hub."""
    ModelHub.reset()
    ModelHub.folder, ModelHub.fetched = folder, []
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_TOKEN": f"hf_{'a1B2' * 9}",
            "HF_HOME": str(home / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HOME": str(home),
        }
        server.shutdown()


def write_model(folder: Path) -> Path:
    """Write a small model of transformers with random weights and the tiny tokenizer."""
    # imported here: tests of the text tools need neither torch nor transformers
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, folder)
    return folder


def run_titanrun(
    place: Path, variables: dict[str, str], *words: str
) -> "subprocess.CompletedProcess[str]":
    """Run `titanrun WORD ...` in a folder, with further environment variables."""
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "COLUMNS": "200", **variables},
    )
